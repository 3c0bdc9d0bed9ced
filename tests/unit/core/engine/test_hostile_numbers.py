"""Whatever numbers another user's frames have: nobody else's spend, budget, forecast or run is touched by them.

Two nodes live through the same: on one the stranger's trainer is quiet, on the other it says the numbers. What is not
its own must be the same on both.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, DurationNs, usd
from governor.core.engine import step as engine
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.resume import restore_runs
from governor.core.engine.run_forecast import outlook
from governor.core.events.checkpoints import CheckpointWeighed
from governor.core.events.effects import Alarm, WeighCheckpoint
from governor.core.events.inputs import FramesLost
from governor.core.money.budgets import by_scope
from governor.core.money.lines import Lines
from governor.core.views.status import run_status
from governor.ports import Packet
from governor.wire.answer_shapes import ANSWERS, is_shaped
from governor.wire.frames import FrameReader
from tests.sweeps import share_of
from tests.unit.billed import LAUNCH, UPLOAD
from tests.unit.core.engine.test_budgeting import budget
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, peer, play, rule, tick
from trainer_shim.wire import FRAMES

STRANGER = 12345
LINK = ConnectionId(50)
SCOPES = ("day", "node", "label:team=a")
GRACE_NS = 60 * NS_PER_S  # Of make_node()'s policy.
HOSTILE = (
    -1, 0, 1, 7, 2**31, 2**53 + 1, 10**13, 10**14, 10**14 + 1, 2**62, 2**63 - 1, -(2**63), 2**63, 10**400, 0.5, -0.0,
    1e-320, 1e9, 1e15, 1e308, -1e308, "nan", "inf", "-inf", True,
)  # fmt: skip
OF_RECORD = {
    "last_good": ("step", "tokens_total", "mono_ns"),
    "harmed_save": ("step",),
    "open_incident": ("step",),
    "origin": ("step", "tokens_total"),
    "collective": ("count", "entered_ns"),
    "fetch": ("longest_ns", "since_ns", "starts"),
    "forwards": ("count", "seen", "nonfinite"),
    "checkpoint": ("files", "bytes", "tokens_total"),
    "failure": (),
}
TEXTS = {
    "last_good": {"path": "/ck/1"},
    "harmed_save": {"path": "/ck/1"},
    "origin": {"run": "alpha"},
    "checkpoint": {"path": "/nowhere/1", "manifest": "m", "kind": "good"},
}


def spots() -> list[tuple[str, str, str | None]]:
    """Every number that a frame can say: its kind, its field, and for a record the field in that."""
    found: list[tuple[str, str, str | None]] = []
    for kind, fields in FRAMES.items():
        for name, field in fields.items():
            if field.kind in ("int", "num") and name != "v":
                found.append((kind, name, None))
            elif field.kind == "record":
                found += [(kind, name, inner) for inner in OF_RECORD[name]]
            elif field.kind == "map" and name != "labels":  # A label is a name: it says whose budget is spent.
                found.append((kind, name, "step"))
    return found


SPOTS = spots()
VALID: dict[str, dict[str, Any]] = {
    "hello": {"seq": 1, "run": "x", "attempt": "a1", "local_rank": 0, "world_size": 64, "signal": 0,
              "labels": {"team": "a"}, "tokens_per_step": 1000, "capabilities": ["ask", "beat"]},
    "step": {"step": 1, "attempt_step": 1, "loss": 2.0, "tokens": 1000, "tokens_total": 1000, "step_s": 1.0},
    "phase": {"phase": "train"},
    "beat": {"progress_seq": 1, "phase": "train", "phase_since_ns": 0},
    "ack": {"seq": 1, "incident": "none", "what": "saved"},
    "bye": {"seq": 1},
    "shown": {"look": "1", "what": "collectives"},
}  # fmt: skip


def frame(kind: str, when: float, *numbers: tuple[str, str | None, Any]) -> bytes:
    """A frame that is valid but for these numbers."""
    made = {"v": 1, "kind": kind, "rank": 0, "mono_ns": at(when), **VALID[kind]}
    for name, inner, value in numbers:
        if inner is None:
            made[name] = value
        else:
            made[name] = {**TEXTS.get(name, {}), **dict(made.get(name) or {}), inner: value}
    return json.dumps(made).encode()


class Twin:
    """A service with one honest run and the stranger's, both with a label that has a budget."""

    def __init__(self) -> None:
        lines = Lines((), (LAUNCH,), (UPLOAD,))
        node = make_node(
            rule(), rule("budget"), budget=Budget(usd(300)), cloud="none", lines=lines, stop_bound_ns=DurationNs(0)
        )
        node.budgets.configured = by_scope([budget(scope, 400) for scope in SCOPES])
        self.node: Node = node
        self._reader = FrameReader()
        play(node, tick(0), hello(0, 0, world_size=1, labels={"team": "a"}, total_steps=10_000))
        self.say(frame("hello", 0), 0)
        self.second = 0

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second += 1
            play(self.node, a_step(self.second, tokens=10_000), tick(self.second))

    def say(self, packet: bytes, when: float) -> None:
        events = self._reader.read(Packet(LINK, peer(900, STRANGER), packet), at(when))
        effects = [effect for event in events for effect in engine.step(self.node, event)]
        for effect in effects:  # Grows meanwhile.
            if isinstance(effect, WeighCheckpoint):
                seen = CheckpointWeighed(at(when), effect.run, effect.name, None, "not visible here")
                effects.extend(engine.step(self.node, seen))

    def others(self) -> dict[str, Any]:
        """What is not the stranger's: the honest run's money, forecast and halt."""
        managed = self.node.runs["llama"]
        run, seen = managed.run, outlook(managed, at(self.second))
        return {
            "spend": self.node.ledger.spend("llama"),
            "rate": run.spend_rate_usd_micros_per_hour,
            "reserve": run.reserve_usd_micros,
            "price of tokens": run.paid_tokens.prices(run.spend_usd_micros),
            "tokens": run.tokens_total,
            "left": seen.left,
            "cost left": seen.cost_left,
            "halt": managed.incident,
            "alive": run.alive,
        }

    def restarted(self) -> Node:
        """The next governor, from what the journal has."""
        kept = persist(self.node, at(self.second)).runs.values()
        rows = json.loads(json.dumps(list(kept), allow_nan=False))
        after = make_node(cloud="none", lines=self.node.facts.lines, boot=self.second)
        effects = restore_runs(after, rows, BootNs(at(self.second)), at(self.second))
        assert [effect for effect in effects if isinstance(effect, Alarm)] == []
        return after

    def caps(self) -> dict[str, tuple[int, int]]:
        return {cap.scope: (cap.spend_usd_micros, cap.reserve_usd_micros) for cap in self.node.budgets.caps}


def check(quiet: Twin, loud: Twin) -> None:
    assert loud.others() == quiet.others()
    for managed in loud.node.runs.values():
        told = json.loads(json.dumps(run_status(managed, at(loud.second))))
        assert is_shaped([told], ANSWERS["status"]["runs"]), "one row must not hide the others"
    own = loud.node.runs["x"].history.one_offs.checkpoints_usd_micros
    of_time = PRICE * loud.second // 3600 // 2
    assert own <= of_time, "what nobody has seen"
    # A halt of the stranger's run may wait for its checkpoint, as the policy allows for any run.
    wait = PRICE * GRACE_NS // NS_PER_HOUR + 1
    for scope, (spend, reserve) in quiet.caps().items():
        told, held = loud.caps()[scope]
        assert spend <= told <= spend + own, scope
        assert reserve - wait <= held <= reserve + wait + own, scope
    assert loud.node.ledger.groups.node_usd_micros == loud.node.ledger.total()
    after = loud.restarted()
    assert after.ledger.spend("llama") == quiet.node.ledger.spend("llama")
    assert after.ledger.groups.snapshot() == loud.node.ledger.groups.snapshot()


numbers = st.tuples(st.sampled_from(SPOTS), st.sampled_from(HOSTILE))


@settings(max_examples=share_of(200), deadline=None)
@given(st.lists(st.tuples(st.lists(numbers, min_size=1, max_size=4), st.integers(0, 5)), min_size=1, max_size=15))
def test_no_number_of_a_stranger_moves_anybody_elses_money(said: list[tuple[list[Any], int]]) -> None:
    quiet, loud = Twin(), Twin()
    for many, seconds in said:
        kind = many[0][0][0]
        same = [(name, inner, value) for (of, name, inner), value in many if of == kind]
        loud.say(frame(kind, loud.second, *same), loud.second)
        quiet.pass_time(seconds)
        loud.pass_time(seconds)
    quiet.pass_time(5)
    loud.pass_time(5)
    check(quiet, loud)


@pytest.fixture(scope="module")
def undisturbed() -> Twin:
    quiet = Twin()
    quiet.pass_time(len(HOSTILE))
    return quiet


@pytest.mark.parametrize(("kind", "name", "inner"), SPOTS)
def test_nor_does_any_one_of_them(kind: str, name: str, inner: str | None, undisturbed: Twin) -> None:
    loud = Twin()
    for value in HOSTILE:
        loud.say(frame(kind, loud.second, (name, inner, value)), loud.second)
        loud.pass_time(1)
    check(undisturbed, loud)


@pytest.mark.parametrize("kind", VALID)
def test_the_frames_are_believed_but_for_their_numbers(kind: str) -> None:
    reader = FrameReader()
    reader.read(Packet(LINK, peer(900, STRANGER), frame("hello", 0)), at(0))
    [event] = reader.read(Packet(LINK, peer(900, STRANGER), frame(kind, 1)), at(1))
    assert not isinstance(event, FramesLost)


def test_what_a_stranger_says_of_bytes_is_charged_to_it_within_the_bound() -> None:
    loud = Twin()
    loud.pass_time(10)
    loud.say(frame("ack", 10, ("checkpoint", "bytes", 10**13)), 10)
    assert loud.node.runs["x"].history.one_offs.unseen_usd_micros > 0


def test_one_process_holds_one_share_of_the_node_whatever_ranks_it_says() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, 0, world_size=1))
    for rank in range(60):  # Each on a connection of its own, from one process.
        its = {"run": "x", "world_size": 64, "connection": ConnectionId(100 + rank), "peer": peer(900, STRANGER)}
        play(node, replace(hello(rank, 1), **its))
    assert node.holders() == {"llama": 1, "x": 1}
    play(node, replace(hello(60, 1), **(its | {"connection": ConnectionId(999), "peer": peer(901, STRANGER)})))
    assert node.holders() == {"llama": 1, "x": 2}, "two processes are two"
