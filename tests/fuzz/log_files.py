"""Logs that are no JSON lines, followed while they grow: consoles, tables, event files, runs of W&B."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from governor.adapters.trainers.log_readers import tail_of, text_log
from governor.adapters.trainers.understanding import Understanding
from governor.core.base.units import NS_PER_S, MonoNs
from governor.settings.streams import Jsonl
from governor.wire import files
from governor.wire.files.cutter import RECORD_BYTES_MAX
from governor.wire.records import RecordReader
from tests.fuzz import mutate
from tests.unit.wire.files.written import BLOCK, RunFile, begin, event, frame, history, scalar
from tests.unit.wire.formats.written import WRITERS, run


class LogFiles:
    """An input is what a log of another format has grown by: console lines, a table, event files, a run of W&B."""

    name = "logfiles"
    share = 0.15
    block = 500

    def begin(self, work: Path) -> None:
        self._work = work
        self._number = 0
        self._run = RunFile()
        self._logs = {name: _Log(work, name) for name in (*files.NAMES, *WRITERS)}
        for name, log in self._logs.items():
            log.path.write_bytes(_whole(name, 0))

    def draw(self, random: Random) -> Any:
        self._number += 1
        name = random.choice((*files.NAMES * 3, *WRITERS))
        draw = random.random()
        if draw < 0.02:
            self._run = RunFile() if name == files.WANDB else self._run
        if draw < 0.01:
            return name, "truncate", bytes(RunFile().data) if name == files.WANDB else b""
        if draw < 0.02:
            return name, "replace", mutate.damaged(random, _whole(name, self._number), 0.2)
        if name == files.WANDB:
            return name, "append", self._of_run(random)
        data = mutate.damaged(random, _more(random, name, self._number), 0.2)
        if draw < 0.03:
            data *= random.choice((50, 3_000))
        return name, "append", data[: random.randrange(len(data) + 1)] if random.random() < 0.1 else data

    def _of_run(self, random: Random) -> bytes:
        """Its blocks are where they belong, so what is damaged is one record, or one block of many."""
        loss = random.choice(mutate.NUMBERS) if random.random() < 0.2 else 2.5
        loss = loss if isinstance(loss, float) or abs(loss) < 2**63 else 2.5
        before = len(self._run.data)
        self._run.put(mutate.damaged(random, history(self._number, {"loss": loss, "a": [1]}), 0.3))
        if random.random() < 0.01:
            self._run.put(bytes(random.choice((100, BLOCK, 5 * BLOCK))))
        return mutate.damaged(random, bytes(self._run.data[before:]), 0.01)

    def play(self, one: Any) -> None:
        name, how, data = one
        log = self._logs[name]
        if how == "append":
            with log.path.open("ab") as file:
                file.write(data)
        elif how == "truncate":
            log.path.write_bytes(data)
        else:
            log.path.unlink()
            log.path.write_bytes(data)
        log.look(MonoNs(self._number * NS_PER_S))

    def end(self) -> None:
        for log in self._logs.values():
            log.tail.close()


class _Log:
    def __init__(self, work: Path, name: str) -> None:
        self.path = work / f"{name}.log"
        entry = Jsonl(path=self.path, run=name, format=name)
        self.tail, self._text = tail_of(entry), text_log(entry)
        self._reader = RecordReader(name, text=self._text)
        self._understanding = Understanding(format=name)

    def look(self, at: MonoNs) -> None:
        chunk = self.tail.read()
        assert chunk.problem is None or chunk.problem.isprintable(), chunk.problem
        json.dumps(chunk.position.row() if chunk.position is not None else None)
        for line in chunk.lines:
            assert len(line) <= 2 * RECORD_BYTES_MAX
            self._understanding.see(line, self._reader.read_line(line, at), at)
        assert self._understanding.problem("log").isprintable()
        assert self._understanding.advice().isprintable()
        if self._text is not None:
            json.dumps(self._text.state())


def _whole(name: str, number: int) -> bytes:
    """A log of that format with its first step."""
    if name == files.CSV:
        return b"step,loss,lr\n"
    if name == files.TENSORBOARD:
        return begin()
    if name == files.WANDB:
        return bytes(RunFile().data)
    return "".join(f"{line}\n" for line in WRITERS[name](run(1, first=number + 1))).encode()


def _more(random: Random, name: str, number: int) -> bytes:
    loss = random.choice(mutate.NUMBERS) if random.random() < 0.2 else 2.5
    if name == files.CSV:
        return f"{number},{_quoted(loss)},{_quoted(random.choice(mutate.TEXTS))}\n".encode("utf-8", "surrogatepass")
    if name == files.TENSORBOARD:
        found = mutate.damaged(random, event(number, "loss", 2.5), 0.3)
        return scalar(number, random.choice(("loss", "eval/loss", "x")), 2.5) + frame(found)
    lines = list(WRITERS[name](run(2, first=number + 1)))
    return "".join(f"{line}\n" for line in lines[-2:]).encode()


def _quoted(value: Any) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < 10**300 else "9" * 400
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text
