"""What attach() asks of an engine, and what the user told it about one."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Protocol

from trainer_shim.interfaces import Saver
from trainer_shim.meter import StepMeter


class Options(NamedTuple):
    """What the user told attach() about saving and stepping."""

    checkpoint_dir: Optional[str] = None
    optimizer: Any = None
    stateful: Mapping[str, Any] = {}
    save_fn: Optional[Callable[..., Any]] = None
    load_fn: Optional[Callable[..., Any]] = None


class Kind(Protocol):
    """One kind of engine."""

    def checkpoint_dir(self) -> Optional[str]:
        """Return the directory that the engine's own configuration names, if any."""

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        """Return how this engine saves into `directory`."""

    def hello_fields(self) -> Dict[str, Any]:
        """Return hello fields: framework, zero_stage, parameters."""

    def token_replicas(self) -> int:
        """Return how many ranks see different tokens."""

    def step(self) -> int:
        """Return the absolute step it stands at."""

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        """Hook it. Returns what takes the hooks off."""
