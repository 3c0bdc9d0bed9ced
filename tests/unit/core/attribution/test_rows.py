"""What every view tells of a run's time: sums, and one advice for each cause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import LOST, Amount, Cause
from governor.core.attribution.parts import BACKWARD, DATA, FORWARD, PARTS, RankSums
from governor.core.attribution.rows import ADVICE, WEAKER, time_row, told_time, whole_of
from governor.core.attribution.split import split
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.machine import HostSample, NodeUse, ProcessUse
from tests.unit.core.attribution.test_account import account_of, end, step, steps
from tests.unit.core.attribution.test_split import in_steps
from tests.unit.core.money.test_waste import a_world, until


def test_every_cause_has_its_advice() -> None:
    assert set(ADVICE) == set(LOST)


def test_a_row_adds_up() -> None:
    world = a_world()
    until(world, 5)
    world.hear()
    steps(world, range(1, 31), began=6, data_s=0.4, forward_s=0.1)
    end(world)
    row = time_row(whole_of(account_of(world), MonoNs(world.mono)))
    assert row["wall_s"] == 30.0, "it holds the node from its hello on"
    assert abs(row["productive_s"] + sum(cause["s"] for cause in row["causes"]) - row["wall_s"]) < 1e-6
    assert abs(row["productive_usd"] + sum(cause["usd"] for cause in row["causes"]) - row["usd"]) < 1e-9
    assert row["causes"][0]["cause"] == "data_starvation"


def data_row(**told: Any) -> dict[str, Any]:
    """Of a run that waits for data, told so, as its journal has it."""
    world = a_world()
    until(world, 5)
    world.hear()
    for second in range(31):
        rank = ProcessId(100, 1000, "boot-1")
        below = ProcessUse(ProcessId(200, 1, "boot-1"), rank, "pt_data_worker", "R", second * NS_PER_S)
        processes = (ProcessUse(rank, rank, "python", "S", 0), below)
        until(world, 6 + second)
        step(world, second + 1, **({"data_s": 0.4, "forward_s": 0.1} | told))
        world.play(HostSample(MonoNs(world.mono), NodeUse(cores=8), processes, "llama"))
    end(world)
    kept = json.loads(json.dumps(account_of(world).snapshot()))
    account = TimeAccount.restored(kept, same_boot=True)
    assert account.snapshot() == kept
    row = time_row(whole_of(account))
    assert row == time_row(whole_of(account_of(world), MonoNs(world.mono)))
    found: dict[str, Any] = next(one for one in row["causes"] if one["cause"] == "data_starvation")
    return found


def test_the_loaders_kind_is_in_the_row_live_and_from_the_journal() -> None:
    row = data_row()
    assert (row["kind"], row["confidence"]) == ("cpu", "high")
    assert "1 loader worker at 100% of a core" in row["evidence"]
    assert row["next_step"] != ADVICE[Cause.DATA].next_step
    little = data_row(data_s=0.01, forward_s=0.49)
    assert little["kind"] is None, "nobody was starved"


def test_a_bound_is_told_as_one() -> None:
    row = data_row(data_bound=True)
    assert row["confidence"] == "low"
    assert row["evidence"].startswith("up to")


def sums(forward: int, **told: Any) -> RankSums:
    parts = [0] * PARTS
    parts[FORWARD], parts[BACKWARD], parts[DATA] = forward, 100, 50
    return in_steps(RankSums(parts=parts, steps=9, **told))


def told(computing_ns: int) -> dict[str, int]:
    return {"told_communication_ns": 10, "told_of_ns": computing_ns}


def test_what_each_cause_is_weak_by() -> None:
    """By the frames: a bound of data, and a straggler without the time in collectives."""
    slow = split({0: sums(90), 1: sums(10)})
    assert slow.weak == {Cause.STRAGGLER: slow.by_cause[Cause.STRAGGLER]}
    fast = split({0: sums(10), 1: sums(90), 2: sums(90)})
    assert fast.weak == {Cause.IMBALANCE: fast.by_cause[Cause.IMBALANCE]}
    assert fast.weak.keys() <= WEAKER.keys(), "else it would be told as known by a log's lines"
    assert split({0: sums(90, **told(190)), 1: sums(10, **told(110))}).weak == {}
    bound = split({0: sums(90, bound_ns={DATA: 50}, **told(190)), 1: sums(90, **told(190))})
    assert bound.weak == {Cause.DATA: bound.by_cause[Cause.DATA] // 2}


@pytest.mark.parametrize("cause", WEAKER)
def test_a_tenth_that_is_weak_weakens_the_cause(cause: Cause) -> None:
    for weak, expected in ((10, ADVICE[cause].confidence), (11, WEAKER[cause][0])):
        account = TimeAccount({cause: Amount(100, 1)}, told_ns={cause: 100}, weak_ns={cause: weak}, has_begun=True)
        row = time_row(whole_of(account))["causes"][0]
        assert row["confidence"] == expected


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_can_be_weak(cause: Cause) -> None:
    """A log's lines may be weak in each: an unexplained pause, an idle phase, the start after a fault."""
    account = TimeAccount({cause: Amount(100, 1)}, told_ns={cause: 100}, weak_ns={cause: 100}, has_begun=True)
    row = time_row(whole_of(account))
    assert row["productive_s"] + sum(one["s"] for one in row["causes"]) == row["wall_s"]
    assert all(one["confidence"] != "high" and "of costgov" not in one["evidence"] for one in row["causes"])


def test_an_account_that_cannot_be_told_says_so_and_has_its_sums() -> None:
    broken: Any = None
    account = TimeAccount({Cause.DATA: Amount(2 * NS_PER_S, 5)}, pool_ns=NS_PER_S, pool_usd_micros=2, hardware=broken)
    row = told_time(account, MonoNs(1))
    (unknown,) = row["causes"]
    assert (row["wall_s"], row["usd"], unknown["cause"], unknown["s"]) == (3.0, 7e-6, "unknown", 3.0)
    assert "fault of costgov's own (AttributeError)" in unknown["evidence"]
