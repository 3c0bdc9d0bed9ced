"""A log, the process that writes it, and one governor after the other that follows it, without a thread or a clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from governor.adapters.trainers.stream_files import Asked, Seen, StreamFiles
from governor.adapters.trainers.streams import SavedStream, Stream
from governor.core.base.units import BootNs
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Effect
from governor.settings.streams import Jsonl
from tests.contract.fakes import FakeProcesses
from tests.unit.core.engine.test_step import at, make_node, play


class AtOnce:
    """`Answerer` without a thread: it looks when it is asked."""

    def __init__(self, _name: str, files: StreamFiles, _wake: object) -> None:
        self.files = files
        self.seen: Seen | None = None

    @property
    def is_busy(self) -> bool:
        return self.seen is not None

    def ask(self, asked: Asked) -> None:
        self.seen = self.files.answer(asked)

    def wait(self, _bound_s: float) -> None:
        pass

    def take(self) -> Seen | None:
        seen, self.seen = self.seen, None
        return seen

    def close(self) -> None:
        self.files.close()


class Watch:
    """A log, the process that writes it, and one governor after the other that follows it."""

    def __init__(
        self, directory: Path, *, pidfile: bool = True, launches: bool = False, is_there: bool = True,
        kind: type[Jsonl] = Jsonl, **keys: Any,
    ) -> None:  # fmt: skip
        self.path = directory / "m.jsonl"
        if is_there:
            self.path.write_text("")
        self.pidfile = directory / "pid"
        self.keys = keys | ({"pidfile": self.pidfile} if pidfile else {})
        self.processes = FakeProcesses("boot-1")
        self.launches, self.kind = launches, kind
        self.launch(4321)
        self.node = make_node()
        entry = kind(path=self.path, run="log", **self.keys)
        self.stream = Stream(entry, self.processes, begin=AtOnce, launches=launches)
        self.poll(0)

    def launch(self, pid: int) -> None:
        self.processes.add(pid, start_ticks=pid % 10)
        self.pidfile.write_text(f"{pid}\n")

    def write(self, first: int, last: int, loss: float = 2.0) -> None:
        lines = [json.dumps({"step": n, "loss": loss, "tokens": 1000}) for n in range(first, last + 1)]
        with self.path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def poll(self, when: float) -> list[Effect]:
        return [effect for event in self.stream.poll(at(when)) for effect in play(self.node, event)]

    def kept(self, when: float) -> str:
        """What the journal holds from now on."""
        return json.dumps(run_snapshot(self.node, self.node.runs["log"], at(when)))

    def restart(self, kept: str, when: float) -> list[Effect]:
        self.stream.close()
        self.node = make_node(boot=when)
        restore_runs(self.node, [json.loads(kept)], BootNs(at(when)), at(when))
        managed = self.node.runs["log"]
        left_at = SavedStream(managed.stream_position, managed.launch.remembered, managed.run.stream.has_record)
        entry = self.kind(path=self.path, run="log", **self.keys)
        self.stream = Stream(entry, self.processes, left_at, begin=AtOnce, launches=self.launches)
        return self.poll(when)

    @property
    def tokens(self) -> int | None:
        return self.node.runs["log"].run.tokens_total
