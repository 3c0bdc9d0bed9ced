"""Ranks as threads over one store: each with a gate, an agreement and a training thread that runs at its own pace."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer_shim.governor_socket import GovernorSocket
from trainer_shim.launch import Place
from trainer_shim.progress import Progress
from trainer_shim.saving.agreement_thread import AgreementThread
from trainer_shim.saving.open_requests import CheckpointRequest, OpenRequests
from trainer_shim.saving.save_at_step import SaveAtStep
from trainer_shim.saving.step_gate import StepGate
from trainer_shim.saving.store import KeyStore

RANKS = 8
SAFETY_S = 60.0


class OneFileSaver:
    """interfaces.Saver: each rank writes its own file, without any collective."""

    loaded_from: str | None = None
    cannot_load: str | None = None

    def __init__(self, directory: Path, rank: int) -> None:
        self.directory: str | None = str(directory)
        self.rank = rank
        self.steps: list[int] = []
        self.gate: StepGate | None = None
        self.harm: str | None = None
        self.writes = True
        self.is_pending = False
        self.full = False  # Its disk.
        self.says: dict[str, Any] = {}

    def look_at_start(self) -> None:
        raise NotImplementedError

    def homes(self) -> list[str]:
        return [] if self.directory is None else [self.directory]

    def join_ranks(self) -> None:
        raise NotImplementedError

    def harmed(self) -> str | None:
        return self.harm

    def save(self, directory: str, tag: str, client_state: dict[str, Any]) -> None:
        assert self.gate is not None
        self.steps.append(self.gate.step)
        path = Path(directory) / tag
        path.mkdir(parents=True, exist_ok=True)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        (path / f"shard_{self.rank}").write_bytes(bytes((100 + self.rank) * self.writes))

    def contents(self) -> dict[str, Any]:
        return self.says

    def pending(self) -> bool:
        return self.is_pending

    def load(self, directory: str, tag: str) -> dict[str, Any]:
        raise NotImplementedError

    def position(self) -> dict[str, Any]:
        return {"rank": self.rank}

    def restore_position(self, position: dict[str, Any]) -> None:
        raise NotImplementedError


class Rank:
    """One rank: its training thread runs freely, at a pace of its own, while `running`."""

    def __init__(self, rank: int, store: KeyStore, directory: Path, pace_s: float) -> None:
        self.acks: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.gate = StepGate(0)
        self.saver = OneFileSaver(directory, rank)
        self.saver.gate = self.gate
        self.requests = OpenRequests(self._ack)
        governor = GovernorSocket(["/nonexistent/costgov"], rank, dict)
        self.progress = Progress(threading.get_ident())
        self.save_at_step = SaveAtStep(rank, self.gate, self.progress, self.saver, governor)
        place = Place("run", "attempt", rank, RANKS, rank, RANKS)
        self.agreement = AgreementThread(
            place, self.gate, self.save_at_step, self.requests, lambda: store, lambda *_: None, self._absent
        )
        self.lacking: Callable[[], str | None] = lambda: None
        self.pace_s = pace_s
        self.strides: Iterator[int] = itertools.repeat(1)  # From boundary to boundary.
        self.halt = threading.Event()
        self.thread = threading.Thread(target=self._train, daemon=True)

    def ask(self, incident: str, checkpoint_kind: str = "good", grace_s: float = SAFETY_S, reason: str = "") -> None:
        deadline_ns = time.monotonic_ns() + int(grace_s * 1e9)
        self.requests.receive(CheckpointRequest(incident, checkpoint_kind, deadline_ns, False, 86, reason))
        self.agreement.wake()

    def ack(self, incident: str, *whats: str) -> dict[str, Any]:
        """Wait for one of these acks."""

        def seen() -> dict[str, Any] | None:
            return next((a for a in self.acks if a["incident"] == incident and a["what"] in whats), None)

        with self.changed:
            assert self.changed.wait_for(lambda: seen() is not None, SAFETY_S), self.acks
        found = seen()
        assert found is not None
        return found

    def _ack(self, ack: dict[str, Any]) -> None:
        with self.changed:
            self.acks.append(dict(ack))
            self.changed.notify_all()

    def _absent(self) -> str | None:
        return self.lacking()

    def _train(self) -> None:
        step = 0
        while not self.halt.wait(self.pace_s):
            step += next(self.strides)
            if self.gate.reach(step):
                self.save_at_step.hold(step, False)


def start(ranks: list[Rank], training: range = range(RANKS)) -> None:
    for number, rank in enumerate(ranks):
        rank.agreement.start()
        if number in training:
            rank.thread.start()
