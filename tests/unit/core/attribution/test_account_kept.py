"""A run's account under any schedule: its sums hold, and what the journal has of it tells the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.attribution.rows import time_row, whole_of
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros
from governor.core.events.hardware import GpuFigures
from governor.core.events.inputs import Bye, Disconnected, PhaseChange, Step, TrainerExited
from governor.core.events.machine import GpuSample, HostSample, NodeUse, PriceRead, ProcessUse
from governor.core.events.operators import OperatorHalt
from tests.unit.core.attribution.test_account import account_of, seconds, step, steps, sums_hold
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, peer
from tests.unit.core.money.test_waste import a_world, until


def kept(account: TimeAccount, *, same_boot: bool) -> TimeAccount:
    return TimeAccount.restored(json.loads(json.dumps(account.snapshot())), same_boot=same_boot)


def shown(account: TimeAccount, at: MonoNs | None = None) -> dict[str, Any]:
    return time_row(whole_of(account, at))


ACTS = st.one_of(
    st.tuples(st.sampled_from(["run", "restart", "suspend"]), st.integers(0, 9 * NS_PER_S)),
    st.tuples(st.sampled_from(["step", "rank1", "phase"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["again", "bye", "halt", "exit", "blip", "lost"]), st.just(0)),
    st.tuples(st.just("price"), st.integers(1, 10**9)),
    st.tuples(st.sampled_from(["clock", "queue", "fault"]), st.integers(0, 30)),
)


def sample(world: World, act: str, amount: int) -> GpuSample | HostSample:
    """Of a machine whose GPU's clock is held down, whose GPU is lost, or whose cores others use."""
    now = MonoNs(world.mono)
    ranks = [rank.peer.process for rank in world.node.runs["llama"].run.ranks.values()]
    if act == "queue":
        waited = now * amount // 30
        uses = tuple(ProcessUse(one, one, "python", "R", now - waited, waited) for one in ranks)
        return HostSample(now, NodeUse(2, 2.0 * now / NS_PER_S), uses)
    figures = GpuFigures(
        sm_clock_mhz=66.0 * amount, sm_clock_max_mhz=1980.0, clock_reasons=(0, 0x40)[amount % 2], is_lost=act == "fault"
    )
    pids = frozenset(one.pid for one in ranks)
    return GpuSample(now, None, (1.0,), ("GPU-0",), pids=(pids,), figures=(figures,))


def played(acts: list[tuple[str, int]]) -> Iterator[World]:
    """The world behind each act, ticked."""
    world, attempts = a_world(), 0
    for act, amount in [("again", 0), *acts, ("exit", 0)]:
        now, connection = MonoNs(world.mono), a_step(1).connection
        match act:
            case "run" | "suspend":
                world.pass_time(act, amount)
            case "restart":
                world.pass_time("run", amount)
                world.restart()
            case "again" | "blip":
                attempts += act == "again"
                world.hear(attempt=f"a{attempts}", peer=peer(1000 + attempts))
            case "step":
                step(world, amount)
            case "rank1":
                world.play(hello(1, 0, at=now, world_size=2, attempt=f"a{attempts}"))
                step(world, amount, 1, forward_s=0.7)
            case "phase":
                name = ("eval", "checkpoint", "finish", "train", "idle")[amount % 5]
                world.play(PhaseChange(now, connection, "llama", 0, name))
            case "bye" | "lost":
                world.play(Bye(now, connection, "llama", 0, 9) if act == "bye" else Disconnected(now, connection))
            case "exit":
                world.play(TrainerExited(now, "llama", exit_code=1))
            case "halt":
                world.play(OperatorHalt(now, "llama", uid=0, reason="enough"))
            case "clock" | "fault" | "queue":
                world.play(sample(world, act, amount))
            case "price":
                boot, wall = world.node.ledger.charged_to, world.node.metered_wall
                world.play(PriceRead(now, boot, wall, UsdMicros(amount), "x", "2026-11-01"))
        world.tick()
        if "llama" in world.node.runs:
            yield world


@given(st.lists(ACTS, max_size=60))
def test_every_micro_dollar_has_one_cause(acts: list[tuple[str, int]]) -> None:
    """At each tick, over restarts of the run and of the governor, price changes and halts; time likewise."""
    for world in played(acts):
        sums_hold(world)
        assert all(one.ns >= 0 for one in account_of(world).now(MonoNs(world.mono)).values())


@given(st.lists(ACTS, max_size=60))
def test_a_report_says_what_the_status_said(acts: list[tuple[str, int]]) -> None:
    """Each cause's time and money, how sure it is, and its evidence: from the journal, in this boot and in another."""
    for world in played(acts):
        account = account_of(world)
        for same_boot in (True, False):
            assert shown(kept(account, same_boot=same_boot)) == shown(account, account.counted_at)
        once = kept(account, same_boot=True)
        assert kept(once, same_boot=True).snapshot() == once.snapshot()


def test_a_restart_in_a_long_window_changes_nothing_of_the_time_before() -> None:
    """Two ranks are 40 steps apart, so their window waits. They wait for data, and after the restart no more."""
    account, killed_s, ends_s = TimeAccount(), 280, 320

    def begin(at_s: int) -> None:
        for rank in (0, 1):
            account.rank_begins(rank, MonoNs(at_s * NS_PER_S))

    begin(0)
    for second in range(1, ends_s + 1):
        now, data_s = MonoNs(second * NS_PER_S), 0.8 if second <= killed_s else 0.0
        if second == killed_s + 1:
            before = account.now(MonoNs(killed_s * NS_PER_S))
            account = kept(account, same_boot=True)
            begin(killed_s)
        for rank in (0, 1):
            told = Step(
                now, ConnectionId(rank + 1), "run", rank, second + 40 * rank, step_s=1.0, data_s=data_s,
                forward_s=(1 - data_s) / 2, backward_s=(1 - data_s) / 2, comm_s=0.0,
            )  # fmt: skip
            account.step(rank, told, now)
        account.tick(now, BootNs(now), BootNs(0), 0, holds=True)
    account.over(MonoNs(ends_s * NS_PER_S), ended_well=True)
    assert account.by_cause[Cause.DATA] == before[Cause.DATA]


def test_a_restart_in_a_long_step_makes_no_hang_of_it() -> None:
    """A view takes it for a hang until the step tells of its evaluation, and of what was before a restart as well."""
    account, begins_s, killed_s, ends_s = TimeAccount(), 20, 120, 140
    account.rank_begins(0, MonoNs(0))

    def told(second: int, **seconds: float) -> None:
        now = MonoNs(second * NS_PER_S)
        account.step(0, Step(now, ConnectionId(1), "run", 0, min(second, begins_s + 1), **seconds), now)  # type: ignore[arg-type]

    for second in range(1, ends_s + 1):
        now = MonoNs(second * NS_PER_S)
        if second == killed_s + 1:
            assert account.now(MonoNs(killed_s * NS_PER_S))[Cause.HANG].ns > 60 * NS_PER_S
            account = kept(account, same_boot=True)
            assert account.now(MonoNs(killed_s * NS_PER_S))[Cause.HANG].ns > 60 * NS_PER_S
            account.rank_begins(0, MonoNs(killed_s * NS_PER_S), goes_on=True)
        if second <= begins_s:
            told(second, step_s=1.0, forward_s=0.5, backward_s=0.5)
        elif second == ends_s:
            told(second, step_s=float(ends_s - begins_s), eval_s=ends_s - begins_s - 1.0, forward_s=0.5, backward_s=0.5)
        account.tick(now, BootNs(now), BootNs(0), 0, holds=True)
    account.over(MonoNs(ends_s * NS_PER_S), ended_well=True)
    assert Cause.HANG not in account.by_cause
    assert account.by_cause[Cause.EVALUATION].ns > 100 * NS_PER_S


def test_what_an_older_journal_does_not_say_of_its_pool_is_told_by_the_ranks_that_come_back() -> None:
    account = TimeAccount()
    account.rank_begins(0, MonoNs(0))
    for second in range(1, 10):
        now = MonoNs(second * NS_PER_S)
        account.tick(now, BootNs(now), BootNs(0), 0, holds=True)
    row = account.snapshot()
    del row["shown"]
    again = TimeAccount.restored(row, same_boot=True)
    assert (again.pool_ns, Cause.UNKNOWN in again.by_cause) == (account.pool_ns, False)
    assert again.now(MonoNs(9 * NS_PER_S))[Cause.NOT_TOLD].ns == account.pool_ns > 0


FALLEN = GpuFigures(is_lost=True)


def broken(world: World, numbers: range) -> None:
    """Ten steps, a GPU that falls off the bus, and the rank dies a second later."""
    world.hear()
    steps(world, numbers, began=1)
    until(world, 11)
    account_of(world).hardware.see_gpus(MonoNs(world.mono), {"GPU 3": FALLEN}, {0: ("GPU 3",)})
    until(world, 12)
    account_of(world).rank_ends(0, MonoNs(world.mono))
    until(world, 60)


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_gpus_fault_outlives_the_boot_until_the_next_attempts_first_step(same_boot: bool) -> None:
    world = a_world()
    broken(world, range(1, 11))
    assert seconds(world)["hardware"] == 49.0
    again = kept(account_of(world), same_boot=same_boot)
    told = again.now(MonoNs(0))
    assert told[Cause.HARDWARE].ns == 49 * NS_PER_S
    assert Cause.SHUT_DOWN not in told, "between the last step and the fault the next step was under way"
    began = MonoNs(70 * NS_PER_S if same_boot else NS_PER_S)
    again.attempt_begins(began)
    again.rank_begins(0, began)
    again = kept(again, same_boot=True)  # The governor starts anew before that step.
    again.rank_begins(0, began, goes_on=True)
    assert again.now(began)[Cause.HARDWARE].ns == 49 * NS_PER_S
    assert Cause.RESTART not in again.now(began)
    again.step(0, a_step(11, 0, step_s=1.0), MonoNs(began + 5 * NS_PER_S))
    assert again.hardware.fault_at is None, "one step is enough: it is of the next attempt"


def trained(account: TimeAccount, numbers: range, **told: Any) -> None:
    parts = {"step_s": 1.0, "data_s": 0.3, "forward_s": 0.3, "backward_s": 0.3, "optimizer_s": 0.1} | told
    for number in numbers:
        at = MonoNs(number * NS_PER_S)
        account.step(0, a_step(number, 0, **parts), at)
        account.tick(at, BootNs(at), BootNs(0), number * 27_000, holds=True)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_restart_of_the_governor_does_not_change_how_sure_a_cause_is(restarts: bool) -> None:
    """Twenty minutes in which each wait for a batch was seen; then forty seconds in which it is only bound."""
    account = TimeAccount()
    account.rank_begins(0, MonoNs(0))
    trained(account, range(1, 1200))
    if restarts:
        account = kept(account, same_boot=True)
        account.rank_begins(0, MonoNs(1199 * NS_PER_S), goes_on=True)
    trained(account, range(1200, 1240), data_bound=True)
    assert account.weak_ns[Cause.DATA] > 0
    assert Cause.DATA not in whole_of(account).weak


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_charged_after_a_restart_of_the_governor_has_its_time(restarts: bool) -> None:
    """The command has let go at a second, half a second later the governor starts anew, and then it is charged."""
    account = TimeAccount()
    account.tick(MonoNs(0), BootNs(NS_PER_S), BootNs(0), 1000, holds=True)
    account.tick(MonoNs(0), BootNs(NS_PER_S), BootNs(0), 1000, holds=False)
    account.tick(MonoNs(0), BootNs(3 * NS_PER_S // 2), BootNs(0), 1000, holds=False)
    if restarts:
        account = kept(account, same_boot=True)
    account.tick(MonoNs(0), BootNs(2 * NS_PER_S), BootNs(0), 2000, holds=False)
    assert sum(one.ns for one in account.now(MonoNs(0)).values()) == 2 * NS_PER_S


def test_what_waits_in_the_pool_is_told_by_the_journal_as_it_was_shown() -> None:
    """A rank that is silent behind its GPU's fault: nothing was divided when the governor was ended."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    account_of(world).hardware.see_gpus(MonoNs(world.mono), {"GPU 3": FALLEN}, {0: ("GPU 3",)})
    until(world, 60)
    assert seconds(world)["hardware"] == 50.0
    again = kept(account_of(world), same_boot=False)
    assert again.now(MonoNs(0))[Cause.HARDWARE].ns == 50 * NS_PER_S
    again.attempt_begins(MonoNs(NS_PER_S))
    assert again.by_cause[Cause.HARDWARE].ns == 50 * NS_PER_S, "nobody tells more of it"
    assert Cause.NOT_TOLD not in again.by_cause
