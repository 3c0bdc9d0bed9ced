"""What every saver does beside the engine's own files."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from trainer_shim import checkpoint, timing
from trainer_shim.loader import load_loader_states, loader_states
from trainer_shim.meter import StepMeter


class PositionSaver:
    """The part of interfaces.Saver that is the same for every engine."""

    directory: Optional[str] = None

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        meter.learn_directory = self.learn_directory

    def learn_directory(self, directory: str) -> None:
        """The script saved there by itself: without other orders, that is where checkpoints go."""
        if self.directory is None:
            self.directory = os.path.abspath(directory)
            self._meter.watch.hello_field("checkpoint_dir", self.directory)

    def begin_save(self) -> None:
        """From here to the end of the boundary the time belongs to the checkpoint, fsync and votes included."""
        self._meter.clock.switch(timing.CHECKPOINT)

    def pending(self) -> bool:
        return False

    def position(self) -> Dict[str, Any]:
        meter = self._meter
        tokens_total = meter.tokens_total if meter.tokens_known else None
        return {"step": meter.progress.step, "tokens_total": tokens_total, "loaders": loader_states()}

    def restore_position(self, position: Dict[str, Any]) -> None:
        load_loader_states(position.get("loaders") or [])
        self._meter.resumed(int(position.get("step", self._meter.progress.step)), position.get("tokens_total"))


def tell_last_good(meter: StepMeter, step: int, path: str) -> None:
    """Announce a whole checkpoint that the script saved by itself."""
    record: Dict[str, Any] = {"step": step, "path": path, "mono_ns": time.monotonic_ns()}
    if meter.tokens_total and meter.tokens_known:
        record["tokens_total"] = meter.tokens_total
    meter.watch.hello_field("last_good", record)


def tokens_before(path: str, rank: int) -> Optional[int]:
    """Return how many tokens went before checkpoint directory `path`, None where it is not one of ours."""
    position = (checkpoint.read_rank_file(path, rank) or {}).get("position") or {}
    tokens_total = position.get("tokens_total")
    return tokens_total if isinstance(tokens_total, int) else None
