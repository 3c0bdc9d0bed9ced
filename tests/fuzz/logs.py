"""Logs of trainers: lines of a followed file, and whole files that somebody has replayed."""

from __future__ import annotations

import gzip
import json
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

from governor.adapters.trainers.jsonl_tail import JsonlTail
from governor.adapters.trainers.understanding import Understanding
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import NodeFacts, new_node
from governor.core.events.inputs import Tick
from governor.core.events.streams import StreamOpened
from governor.replay.logs import records
from governor.replay.output.page import page, section
from governor.replay.play import Replay
from governor.replay.readers.lines import LogUnreadable
from governor.replay.trace import Trace
from governor.wire.jsonl import field_map
from governor.wire.records import RecordReader
from tests.fuzz import mutate
from tests.fuzz.frames import KINDS, frame
from tests.fuzz.rig import default_policies

SAMPLES: tuple[dict[str, Any], ...] = (
    {"step": 1, "loss": 2.5, "grad_norm": 1.0, "lr": 1e-4, "tokens_per_second": 5e5, "t": 3.5},
    {"step": 2, "loss": None, "tokens": 4096, "tokens_total": 8192, "step_time_ms": 120.5, "gpu_util_each": [99, 98]},
    {"global_step": 3, "train/loss": 2.0, "train/lr": 1e-3, "_timestamp": 1.7e9, "_runtime": 12.5},
    {"iteration": 4, "lm loss": 2.5, "grad-norm": 1.1, "loss-scale": 65536, "skipped_iterations": 0,
     "time": "2026-11-23T01:02:03"},
    {"Train/Samples/train_loss": 2.0, "step": 4096, "Train/Samples/lr": 1e-4,
     "Train/Samples/elapsed_time_ms_forward": 3.0},
    {"step": 5, "eval/loss": 2.4, "epoch": 1.0}, {"phase": "eval_start", "step": 6}, {"phase": "checkpoint", "t": 100},
    {"step": 7, "train": {"ce": 2.0, "z": 0.1}, "overflow": True, "loss_scale": 1024.0},
    {"meta": {"stage": "stage1", "labels": {"team": "nlp"}, "recording": 1, "run": "llama", "mono_ns": 5,
     "wall_ns": 10**18,
              "continues": True, "boot_id": "b"}},
    {"v": 1, "kind": "note", "note": "gpus", "at_ns": 5, "busy_frac": [0.5], "uuids": ["GPU-1"],
     "memory_used_bytes": [1],
     "memory_total_bytes": [2], "pids": [[4]]},
    {"v": 1, "kind": "note", "note": "memory", "at_ns": 6, "available_bytes": 5, "total_bytes": 10, "group": "g"},
    {"v": 1, "kind": "note", "note": "spot", "at_ns": 7, "action": "stop", "left_ns": 120 * NS_PER_S},
    {"v": 1, "kind": "note", "note": "gap", "at_ns": 8, "lines": 3}, {"v": 1, "kind": "note", "note": "lost",
     "conn": 1, "at_ns": 9},
)  # fmt: skip
MAPPED = field_map({"loss": ("train.ce", "loss"), "step": "it"})


def record(random: Random, number: int) -> Any:
    """A record of some trainer, or a frame of ours as a recording has it; broken or not."""
    if random.random() < 0.25:
        found: Any = frame(random, random.choice(KINDS), number, number * NS_PER_S)
        found |= {"at_ns": number * NS_PER_S, "conn": random.randrange(3), "pid": 7, "start_ticks": 8}
    else:
        found = dict(random.choice(SAMPLES))
        if "step" in found:
            found["step"] = number
    return mutate.broken(random, found, random.choice((1, 1, 2, 4))) if random.random() < 0.5 else found


class Lines:
    """An input is what a trainer's log has grown by: a line, a part of one, several; or the file is another one."""

    name = "lines"
    share = 0.35
    block = 2_000

    def __init__(self) -> None:
        self._policies = default_policies()

    def begin(self, work: Path) -> None:
        self._path = work / "train.jsonl"
        self._path.write_bytes(b"")
        self._tail = JsonlTail(str(self._path), from_start=True)
        self._readers = RecordReader("log"), RecordReader("log", MAPPED)
        self._understanding = Understanding()
        facts = NodeFacts("node", "boot", UsdMicros(98_320_000), "test")
        self._node = new_node(facts, self._policies, BootNs(0), WallNs(10**18))
        self._number = 0
        engine.step(self._node, StreamOpened(MonoNs(0), "log", 1000, None, {}))

    def draw(self, random: Random) -> Any:
        self._number += 1
        draw = random.random()
        if draw < 0.002:
            return "truncate", b""
        if draw < 0.004:
            return "replace", b""
        data = mutate.damaged(random, mutate.encoded(random, record(random, self._number)).replace(b"\n", b" "), 0.2)
        if draw < 0.006:
            data *= random.choice((50, 3_000))
        return "append", data + (b"\n" if random.random() < 0.97 else b"")

    def play(self, one: Any) -> None:
        how, data = one
        if how == "append":
            with self._path.open("ab") as file:
                file.write(data)
        elif how == "truncate":
            self._path.write_bytes(b"")
        else:
            self._path.unlink()
            self._path.write_bytes(b"{}\n")
        at = MonoNs(self._number * NS_PER_S)
        chunk = self._tail.read()
        assert chunk.problem is None, chunk.problem
        for line in chunk.lines:
            for reader in self._readers:
                found = reader.read_line(line, at)
                self._understanding.see(line, found, at)
                for event in found:
                    if not isinstance(event, str):
                        engine.step(self._node, event)
        if self._number % 16 == 0:
            engine.step(self._node, Tick(at, BootNs(at), WallNs(10**18 + at)))
            assert self._understanding.problem("log").isprintable()
            assert self._understanding.advice().isprintable()
            assert self._understanding.is_foreign(at) in (True, False)

    def end(self) -> None:
        self._tail.close()


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")], attrs


class Replayed:
    """An input is a file: JSON lines, CSV, a trainer_state.json, a recording, packed or not."""

    name = "replay"
    share = 0.01
    block = 1

    def __init__(self) -> None:
        self._policies = default_policies()
        clean = Replay(self._policies.policies, trace=(trace := Trace()))
        for number in range(1, 9):
            clean.read({"step": number, "loss": 2.0 if number < 7 else float("nan"), "t": float(number)})
        clean.end()
        self._tags = _tags(page([section("log", clean, trace)]))

    def begin(self, work: Path) -> None:
        self._work = work

    def draw(self, random: Random) -> Any:
        rows = [record(random, number) for number in range(1, random.choice((2, 6, 20)))]
        kind = random.choice((".jsonl", ".jsonl", ".csv", ".json", "recording"))
        if kind == ".json":
            data = mutate.encoded(
                random, mutate.broken(random, {"log_history": rows}) if random.random() < 0.2 else {"log_history": rows}
            )
        elif kind == ".csv":
            names = ["step", "loss", random.choice(mutate.TEXTS), "lr", "t"]
            lines = [names, *([number, 2.0, mutate.value(random), "", number] for number in range(len(rows)))]
            data = "\n".join(",".join(map(_cell, line)) for line in lines).encode("utf-8", "surrogatepass")
        else:
            if kind == "recording":
                rows.insert(0, SAMPLES[9])
            data = b"".join(mutate.encoded(random, row).replace(b"\n", b" ") + b"\n" for row in rows)
        data = mutate.damaged(random, data)
        name = "frames-000001.jsonl.gz" if kind == "recording" else f"log{kind}{random.choice(('', '', '.gz'))}"
        if name.endswith(".gz"):
            data = mutate.damaged(random, gzip.compress(data, 1, mtime=0), 0.15)
        return name, data, random.choice(mutate.TEXTS)

    def play(self, one: Any) -> None:
        name, data, title = one
        path = self._work / name
        path.write_bytes(data)
        trace = Trace()
        replay = Replay(self._policies.policies, UsdMicros(98_320_000), trace)
        try:
            for _, found in records(path):
                if isinstance(found, dict):
                    replay.read(found)
        except LogUnreadable as error:
            if "\n" in str(error):
                raise AssertionError(f"not one line: {error}") from error
        finally:
            path.unlink()
        replay.end()
        for verdict in replay.verdicts:
            json.dumps(verdict.evidence, default=str)
        drawn = page([section(title, replay, trace)])
        drawn.encode("utf-8", "backslashreplace")
        assert _tags(drawn) <= self._tags, "somebody else's tags"

    def end(self) -> None: ...


def _tags(html: str) -> set[str]:
    parser = _Tags()
    parser.feed(html)
    return parser.found


def _cell(value: Any) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < 10**300 else "9" * 400
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text
