"""Packets of trainers: decoded, judged by the engine, shown to everybody. And requests at the control socket."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from pathlib import Path
from random import Random
from typing import Any

from governor.adapters.control_socket import REQUEST_BYTES_MAX, Request, _line
from governor.app import requests
from governor.core.base.units import NS_PER_S
from governor.core.events.inputs import Ack, Hello
from governor.ports import Packet
from governor.wire import frames, recording
from governor.wire.jsonl import parse_line
from governor.wire.recorded import RecordedRanks
from tests.contract.fakes import FakeTrainer
from tests.fuzz import mutate
from tests.fuzz.rig import Rig, default_policies, readable, strict
from trainer_shim.wire import ACKS, CAPABILITIES, CHECKPOINT_KINDS, FRAME_BYTES_MAX, FRAMES, PHASES

RUNS = ("llama", "llama", "qwen", "a.b:c", "@node", "log")
KINDS = ("hello", "step", "step", "step", "step", "phase", "beat", "beat", "ack", "bye")
CONNECTIONS_MAX = 12
RANKS_MAX = 4
INCIDENTS = tuple(f"{run}.node-a.{number}" for run in ("llama", "qwen", "a.b:c") for number in (1, 2))

_OF_NAME: dict[str, Any] = {
    "run": RUNS, "attempt": ("a", "b"), "stage": ("stage1", "sft"), "framework": ("deepspeed", "hf"),
    "signal": (0, 10, 12), "local_rank": (0, 1), "phase": PHASES, "what": ACKS, "incident": INCIDENTS,
    "merged_into": INCIDENTS, "shim_version": ("0.9.0",), "device_wait": ("item", "cpu"), "completed": (True, False),
    "data_parallel_size": (2, 4), "data_parallel_rank": (0, 1, 3), "master": ("node1", "::1"),
    "checkpoint_dir": ("/ckpt",), "cwd": ("/home/u",), "loss": (2.0, 2.5, 3.0, "nan", "inf"), "exit_after": (True,
    False),
}  # fmt: skip


def frame(random: Random, kind: str, number: int, at_ns: int) -> dict[str, Any]:
    """A valid frame, as the wire's own table has it."""
    found: dict[str, Any] = {"v": 1, "kind": kind, "rank": random.randrange(RANKS_MAX), "mono_ns": at_ns}
    for name, field in FRAMES[kind].items():
        if name not in found and (field.required or random.random() < 0.6):
            found[name] = _value(random, name, field.kind, number)
    if kind == "hello":
        found["world_size"] = RANKS_MAX
    return found


def _value(random: Random, name: str, kind: str, number: int) -> Any:
    if name in _OF_NAME:
        return random.choice(_OF_NAME[name])
    if kind == "int":
        return number + random.choice((0, 0, 0, 1, -1, 5))
    if kind == "num":
        return random.choice((0.1, 1.0, 0.25, 2.5, 1e-4))
    if kind == "map":
        return random.choice(({}, {"team": "nlp", "stage": "1"}, {"step": number, "beat": 1}))
    if kind == "texts":
        return random.choice(
            ([], ["a.py:f:1", "b.py:g:2"], list(CAPABILITIES), ["GPU-1"], ["python", "train.py", "--x"])
        )
    if kind == "record":
        return random.choice((
            {"step": number, "tokens_total": number * 100, "path": f"/ckpt/step{number}", "mono_ns": number},
            {"path": "/ckpt/x", "manifest": "/ckpt/x/m", "files": 2, "bytes": 9, "hashed": True,
             "kind": random.choice(CHECKPOINT_KINDS), "tokens_total": 5},
            {"op": "all_reduce", "count": 3, "entered_ns": number, "done": False},
            {"incident": random.choice(INCIDENTS), "what": random.choice(ACKS), "step": number},
        ))  # fmt: skip
    return kind == "bool" or random.choice(("text", "other text"))


class Frames:
    """An input is one packet of one of a dozen connections, a hang-up, or some time that passes."""

    name = "frames"
    share = 0.2
    block = 2_000

    def __init__(self) -> None:
        self._policies = default_policies()

    def begin(self, work: Path) -> None:
        self._rig = Rig(work, self._policies)
        self._trainers: dict[int, FakeTrainer] = {}
        self._reader = frames.FrameReader()
        self._ranks = RecordedRanks("llama")
        self._number = 0

    def draw(self, random: Random) -> Any:
        self._number += 1
        place, draw = random.randrange(CONNECTIONS_MAX), random.random()
        if draw < 0.004:
            return place, "hang up", random.random() < 0.5
        if draw < 0.03:
            return place, "time", random.choice((10_000_000, 250_000_000, 10**9, 5 * 10**9, 70 * 10**9, 700 * 10**9))
        if draw < 0.035:
            return place, "look", 0
        kind = "hello" if place not in self._trainers else random.choice(KINDS)
        found: Any = frame(random, kind, self._number, self._rig.clock.mono())
        if random.random() < 0.5:
            found = mutate.broken(random, found, random.choice((1, 1, 2, 4)))
        data = mutate.damaged(random, mutate.encoded(random, found), 0.15)
        return place, data, random.random() < 0.002

    def play(self, one: Any) -> None:
        place, what, detail = one
        rig = self._rig
        if what == "time":
            rig.clock.advance(detail)
        elif what == "look":
            rig.look()
        else:
            trainer = self._trainers.get(place)
            if trainer is None or not trainer.is_open:
                trainer = self._trainers[place] = rig.inbox.connect(rig.peer(Random(place)))
            if what == "hang up":
                trainer.hang_up()
                if detail:  # Its process has ended, too.
                    rig.processes.by_pid.pop(trainer.peer.process.pid, None)
            else:
                trainer.send(what[:FRAME_BYTES_MAX], truncated=detail or len(what) > FRAME_BYTES_MAX)
                self._record(Packet(trainer.connection, trainer.peer, what[:FRAME_BYTES_MAX], detail))
        rig.clock.advance(1_000_000)
        rig.go_on()

    def _record(self, packet: Packet) -> None:
        """What a recording keeps of it is read back."""
        at = self._rig.clock.mono()
        for event in self._reader.read(packet, at):
            if type(event).__module__.endswith("inputs") and getattr(event, "why", None) is None:
                process = packet.peer.process if isinstance(event, Hello) else None
                kept = recording.ReceivedFrame(
                    at, packet.connection, packet.data, process, is_ack=isinstance(event, Ack)
                )
                line = recording.line(kept)
                assert line.count(b"\n") == 1, line
                record = parse_line(line)
                assert isinstance(record, dict), record
                self._ranks.read(record, at)

    def end(self) -> None:
        self._rig.end()


REQUESTS: tuple[dict[str, Any], ...] = (
    {"cmd": "ping"}, {"cmd": "status"}, {"cmd": "halt", "run": "llama", "reason": "by hand"},
    {"cmd": "halt", "run": "qwen", "reason": "by hand", "checkpoint": "none"},
    {"cmd": "hold", "run": "llama", "reason": "long eval", "duration_ns": 3_600 * NS_PER_S},
    {"cmd": "hold", "run": "@node", "reason": "night", "duration_ns": NS_PER_S},
    {"cmd": "budget_set", "scope": "run:llama", "reason": "more", "ceiling_usd_micros": 9_000_000_000, "tokens": 10**12,
     "alert_at": [0.5, 0.9]},
    {"cmd": "budget_set", "scope": "node", "reason": "more", "ceiling_usd_micros": 9_000_000_000},
    {"cmd": "budget_set", "scope": "label:team=nlp", "reason": "more", "ceiling_usd_micros": 10**10},
    {"cmd": "budget_clear", "scope": "run:llama", "reason": "done"}, {"cmd": "budget_clear", "scope": "node",
     "reason": "x"},
    {"cmd": "forget", "run": "qwen"}, {"cmd": "incidents", "last": 10}, {"cmd": "incidents", "last": 5, "of": "last"},
    {"cmd": "reload"}, {"cmd": "evidence", "run": "llama"}, {"cmd": "halt_marks"},
    {"cmd": "evidence", "run": "llama", "what": "collectives", "rank": 0},
    {"cmd": "evidence", "run": "llama", "what": "profile", "steps": 3, "rank": 0},
    {"cmd": "evidence", "run": "llama", "look": "look-1"},
    {"cmd": "incident_mark", "incident_id": INCIDENTS[0], "opened_wall_ns": 1, "said": "false", "note": "x"},
    {"cmd": "rule_rearm", "policy": "default", "rule": "nan", "note": "x"},
)  # fmt: skip
ANY_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 0.0, 1.5, 2**70, "", "0", "x" * 600, [], [1], [[]], {}, {"a": [1]}, "\ud800", "a\0b",
)  # fmt: skip
CODES = frozenset(("bad_request", "no_such_run", "denied", "refused", "unavailable"))


class Control:
    """An input is one request: half of them over the real socket, half as another user's."""

    name = "control"
    share = 0.05
    block = 1_000

    def __init__(self) -> None:
        self._policies = default_policies()

    def begin(self, work: Path) -> None:
        self._rig = Rig(work, self._policies, control=True)
        self._path = str(work / "control.sock")
        random = Random(1)
        for place, run in enumerate(("llama", "qwen")):
            trainer = self._rig.inbox.connect(self._rig.peer(random))
            for kind in ("hello", "step"):
                one = frame(random, kind, 1, 1) | ({"run": run, "rank": place} if kind == "hello" else {"loss": 2.0})
                trainer.send(json.dumps(one).encode())
            self._rig.go_on()

    def draw(self, random: Random) -> Any:
        if random.random() < 0.02:
            return "time", random.choice((250_000_000, 3_600 * 10**9))
        found: Any = random.choice(REQUESTS)
        if random.random() < 0.8:
            found = mutate.broken(random, found, random.choice((1, 1, 2, 3)))
        elif random.random() < 0.5:  # Each field is of another type than it should be.
            name = random.choice([name for name in found if name != "cmd"] or ["run"])
            found = {**found, name: random.choice(ANY_JSON)}
        data = mutate.damaged(random, mutate.encoded(random, found), 0.2)
        return ("socket" if random.random() < 0.5 else random.choice((0, 1000, 1001, 4_242))), data

    def play(self, one: Any) -> None:
        how, what = one
        if how == "time":
            self._rig.clock.advance(what)
            self._rig.go_on()
        elif how == "socket":
            self._check(self._ask(what.replace(b"\n", b" ") + b"\n"))
        else:
            body = json.loads(what) if _is_json(what) else None
            if isinstance(body, dict) and isinstance(body.get("cmd"), str):
                answer = requests.answer(self._rig.daemon, Request(how, 1, 0, body))
                self._rig.settle()
                if answer is not None:
                    self._check(_line(answer))

    def _ask(self, line: bytes) -> bytes:
        received = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(self._path)
            sock.setblocking(False)  # The daemon reads on this thread, too.
            while True:
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    line = line[sock.send(line) :] if line else line
                self._rig.daemon._drain_control()
                self._rig.settle()
                if select.select([sock], [], [], 0)[0]:
                    try:
                        data = sock.recv(1 << 20)
                    except ConnectionResetError:  # It was too long: the rest of it is not read.
                        return received
                    received += data
                    if not data:
                        return received

    def _check(self, answer: bytes) -> None:
        if not answer:
            return  # More than one request, or too long a one: hung up.
        document = strict(answer)
        assert document["ok"] in (True, False)
        if not document["ok"]:
            assert document["code"] in CODES, document
            readable(document["error"], "an error")
            assert "\n" not in document["error"]
            assert len(document["error"]) < REQUEST_BYTES_MAX

    def end(self) -> None:
        self._rig.end()


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
