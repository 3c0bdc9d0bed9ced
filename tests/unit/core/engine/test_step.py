"""The engine driven from a list: events in, effects out. No clock, no process, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from governor.core.base.findings import Response
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.policy import AT_ONCE, Budget, HaltSettings, Mode, Policy, PolicySet, Rule
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.checkpoints import CheckpointLook, CheckpointRead, SavedCheckpoint
from governor.core.events.effects import (
    Alarm,
    Ask,
    Confirm,
    Effect,
    Kill,
    PersistIncident,
    ReadBilling,
    Refuse,
    StopCompute,
    Term,
)
from governor.core.events.inputs import (
    Ack,
    BillingAnswer,
    BillingRead,
    Disconnected,
    Event,
    Hello,
    ProcessesSeen,
    Step,
    StopAnswer,
    StopReplied,
    Tick,
)
from governor.core.events.machine import GpuProcessesSeen
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.halt.state import GivenUp
from governor.core.halt.table import HaltState, StopTarget

E = TypeVar("E", bound=Effect)

PRICE = UsdMicros(98_320_000)  # An 8×H100 node on demand, $98.32/h.


def at(seconds: float) -> MonoNs:
    return MonoNs(round(seconds * NS_PER_S))


def peer(pid: int, uid: int = 1000) -> Peer:
    return Peer(ProcessId(pid, pid * 10, "boot-1"), uid)


def rule(trigger: str = "nonfinite", **changes: object) -> Rule:
    made = Rule("r-" + trigger, trigger, {}, AT_ONCE, Response.HALT, Mode.ENFORCE, "suspect")
    return replace(made, **changes)  # type: ignore[arg-type]


def make_node(*rules: Rule, budget: Budget | None = None, boot: float = 0, **facts: object) -> Node:
    policy = Policy(
        name="p",
        rules=rules or (rule(),),
        budget=budget or Budget(),
        halt=HaltSettings(stop="instance", grace_ns=DurationNs(60 * NS_PER_S)),
    )
    known = NodeFacts(
        "node-a", "boot-1", PRICE, "test", cloud="aws", instance_id="i-1", can_stop=True, said_running=True
    )
    return new_node(replace(known, **facts), PolicySet((policy,), "digest"), BootNs(at(boot)), WallNs(at(boot)))  # type: ignore[arg-type]


def hello(rank: int = 0, when: float = 0.0, **changes: object) -> Hello:
    made = Hello(
        at=at(when),
        connection=ConnectionId(rank + 1),
        peer=peer(100 + rank),
        seq=1,
        run="llama",
        attempt="a1",
        rank=rank,
        local_rank=rank,
        world_size=2,
        tokens_per_step=1000,
        resume_argv=("python", "train.py"),
        capabilities=frozenset({"ask", "beat"}),
        signal=10,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def a_step(number: int, rank: int = 0, when: float | None = None, **changes: object) -> Step:
    made = Step(
        at=at(number if when is None else when),
        connection=ConnectionId(rank + 1),
        run="llama",
        rank=rank,
        step=number,
        attempt_step=number,
        loss=2.0,
        loss_expected=True,
        step_s=1.0,
        applied=True,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def tick(when: float) -> Tick:
    """The ticks between it and the one before are left out: they would change nothing."""
    return Tick(at(when), BootNs(at(when)), WallNs(at(when) + 10**18), unbroken=True)


def play(node: Node, *events: Event) -> list[Effect]:
    return [effect for event in events for effect in engine.step(node, event)]


def training(node: Node, steps: int = 30) -> None:
    play(node, tick(0), hello(0), hello(1))
    for number in range(1, steps + 1):
        play(node, a_step(number, 0), a_step(number, 1), tick(number))


def only(effects: list[Effect], kind: type[E]) -> E:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def ack(
    what: str, when: float, rank: int = 0, checkpoint: Mapping[str, Any] | None = None, **changes: object
) -> Ack:  # fmt: skip
    saved = SavedCheckpoint.named(checkpoint)
    made = Ack(at(when), ConnectionId(rank + 1), "llama", rank, 7, "llama.node-a.1", what, checkpoint=saved)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_nan_on_one_rank_asks_all_for_a_suspect_checkpoint() -> None:
    node = make_node()
    training(node)
    effects = play(node, a_step(31, 1, loss=float("nan")))
    ask = only(effects, Ask)
    assert isinstance(ask, Ask)
    assert (ask.run, ask.checkpoint, ask.exit_after) == ("llama", "suspect", True)
    order = [type(effect) for effect in effects]
    assert order.index(PersistIncident) < order.index(Ask), "the incident is kept before the letter goes out"


def test_the_whole_halt_reaches_halted_only_by_reading_billing_back() -> None:
    node = make_node()
    training(node)
    play(node, a_step(31, 1, loss=float("inf")))
    play(node, ack("received", 31.1), ack("agreed", 31.2, step=33), ack("saving", 31.3, step=33))
    record = {"path": "/ck/cg_33", "manifest": "/ck/cg_33/manifest.json", "files": 4, "kind": "suspect"}
    effects = play(node, ack("saved", 31.5, step=33, checkpoint=record))
    assert only(effects, Term)
    effects = play(node, ProcessesSeen(at(32), "llama.node-a.1", ()))
    assert only(effects, StopCompute)
    effects = play(node, StopReplied(at(32.5), "llama.node-a.1", StopAnswer.ACCEPTED, False, "accepted"))
    assert only(effects, ReadBilling)
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.halt.stage is HaltState.VERIFYING
    play(node, CheckpointRead(at(32.6), "llama.node-a.1", CheckpointLook(True, 4, 4, "whole")))
    play(node, BillingRead(at(34.6), "llama.node-a.1", BillingAnswer.ENDED, "stopped"))
    assert incident.halt.stage is HaltState.HALTED
    assert incident.checkpoint is not None
    assert incident.checkpoint["verified_by"] == "governor"
    assert incident.agreed_step == 33
    whats = [entry["what"] for entry in incident.timeline]
    assert whats == [
        "verdict", "asked", "received", "agreed", "saving", "saved", "term", "exited", "stop_requested",
        "stop_accepted", "checkpoint_read", "verified", "halted",
    ]  # fmt: skip


def test_spend_is_price_times_time_to_the_micro_dollar() -> None:
    node = make_node()
    training(node, steps=30)
    assert node.ledger.spend("llama") == PRICE * 30 * NS_PER_S // NS_PER_HOUR


def test_a_ceiling_fires_while_the_halt_still_fits_below_it() -> None:
    budget = Budget(ceiling_usd_micros=UsdMicros(10_000_000))
    node = make_node(rule("budget", checkpoint="good"), budget=budget)
    play(node, tick(0), hello(0), hello(1))
    fired_at = None
    for second in range(1, 400):
        effects = play(node, a_step(second, 0), a_step(second, 1), tick(second))
        if any(isinstance(effect, Ask) for effect in effects):
            fired_at = second
            break
    assert fired_at is not None
    spent = node.ledger.spend("llama")
    lasts_ns = 10_000_000 * NS_PER_HOUR // PRICE
    # A tenth of it for the checkpoint, then TERM, KILL and four ticks; this provider declares no bound.
    bounds_ns = lasts_ns // 10 + (10 + 10 + 1) * NS_PER_S
    reserve = -(-PRICE * bounds_ns // NS_PER_HOUR)
    assert spent + reserve >= 10_000_000
    assert spent + reserve - 10_000_000 <= PRICE * NS_PER_S // NS_PER_HOUR + 1, "not a tick before"


def test_observe_mode_touches_nothing() -> None:
    node = make_node(observe=True)
    training(node)
    effects = play(node, a_step(31, loss=float("nan")))
    assert not any(isinstance(effect, (Ask, Term, Kill, StopCompute)) for effect in effects)
    alarm = only(effects, Alarm)
    assert isinstance(alarm, Alarm)
    assert "would halt" in alarm.text


def test_a_run_name_belongs_to_the_first_uid_seen_with_it() -> None:
    node = make_node()
    play(node, tick(0), hello(0))
    thief = hello(1, connection=ConnectionId(9), peer=peer(200, uid=1001))
    alarm = only(play(node, thief), Alarm)
    assert isinstance(alarm, Alarm)
    assert (alarm.name, alarm.run) == ("name_taken", "llama@1001")
    assert "belongs to uid 1000" in alarm.text
    assert node.connections[ConnectionId(9)] == ("llama@1001", 1)
    assert node.runs["llama"].run.known_ranks() == {0}


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 129, "näh", "a\nb"])
def test_a_run_name_that_labels_and_files_cannot_carry_is_refused(name: str) -> None:
    node = make_node()
    assert only(play(node, tick(0), hello(0, run=name)), Refuse)


def test_a_governor_that_comes_late_knows_how_much_work_is_unsaved() -> None:
    node = make_node()
    play(node, tick(7200), hello(0, 7200, started_at=at(0)), hello(1, 7200, started_at=at(0)))
    effects = play(node, a_step(5000, when=7201, loss=float("nan")))
    assert only(effects, Ask).deadline == at(7201 + 60)  # type: ignore[attr-defined]


@pytest.mark.parametrize("problem", [None, "the driver shows 4 of the machine's 8 accelerators"])
@pytest.mark.parametrize(("pids", "target"), [({100, 101}, StopTarget.INSTANCE), ({100, 999}, StopTarget.PROCESSES)])
def test_auto_leaves_a_machine_running_on_which_a_stranger_computes(
    pids: set[int], target: StopTarget, problem: str | None
) -> None:
    node = make_node()
    policy = node.policies.policies[0]
    node.policies = PolicySet((replace(policy, halt=replace(policy.halt, stop="auto")),), "digest")
    training(node)
    seen = GpuProcessesSeen(at(30), frozenset(pids), problem=problem)
    play(node, seen, GpuProcessesSeen(at(31), frozenset(), problem="silent"), a_step(31, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.plan.stop is target


def test_two_halts_at_once_are_one_incident_and_the_stricter_kind_wins() -> None:
    node = make_node()
    training(node)
    first = play(node, OperatorHalt(at(31), "llama", "wrong data", 0))
    assert only(first, Ask).checkpoint == "good"  # type: ignore[attr-defined]
    second = play(node, a_step(31, 1, when=31.2, loss=float("nan")))
    again = only(second, Ask)
    assert (again.incident_id, again.checkpoint) == ("llama.node-a.1", "suspect")  # type: ignore[attr-defined]
    assert again.deadline == only(first, Ask).deadline  # type: ignore[attr-defined]
    assert len(node.incidents) == 1


def test_a_hold_keeps_a_halt_back_and_its_end_lets_a_standing_one_through() -> None:
    node = make_node(rule(persistence=AT_ONCE))
    training(node)
    play(node, OperatorHold(at(30), "llama", DurationNs(100 * NS_PER_S), "debugging", 0))
    effects = play(node, a_step(31, loss=float("nan")))
    assert not any(isinstance(effect, Ask) for effect in effects)
    held = {effect.name: effect.text for effect in effects if isinstance(effect, Alarm)}
    assert held["halt_held"].endswith(' is held back by the operator, whose reason is "debugging"')
    assert not any(isinstance(effect, Ask) for effect in play(node, tick(129.9)))
    assert only(play(node, tick(130)), Ask)


def test_the_breaker_stops_a_fourth_halt_of_a_day() -> None:
    node = make_node()
    for attempt in range(4):
        offset = attempt * 1000
        play(node, tick(offset), hello(0, offset, attempt=f"a{attempt}", world_size=1, peer=peer(100 + attempt)))
        effects = play(node, a_step(1, when=offset + 1, loss=float("nan")))
        asked = any(isinstance(effect, (Ask, Term)) for effect in effects)
        assert asked == (attempt < 3), attempt
        incident = node.runs["llama"].incident
        if asked and incident is not None:
            nobody = ProcessesSeen(at(offset + 2), incident.incident_id, ())
            play(node, nobody, nobody)  # The ranks, then whatever outlived them.
            play(node, BillingRead(at(offset + 3), incident.incident_id, BillingAnswer.ENDED, "stopped"))
            assert incident.is_closed


@pytest.mark.parametrize(("exit_after", "halted"), [(True, True), (False, False), (None, False)])
def test_ranks_that_obey_another_governor_are_joined_only_in_a_halt(exit_after: bool | None, halted: bool) -> None:
    node = make_node()
    training(node)
    play(node, ack("received", 31, incident_id="llama.node-b.1", exit_after=exit_after))
    assert (node.runs["llama"].incident is not None) == halted


def test_an_open_breaker_does_not_hold_back_a_ceiling() -> None:
    budget = Budget(ceiling_usd_micros=UsdMicros(10_000_000))
    node = make_node(rule("budget", checkpoint="good"), budget=budget)
    play(node, tick(0), hello(0), hello(1))
    node.runs["llama"].history.halts_wall = [WallNs(10**18)] * 5
    effects = [effect for second in range(1, 400) for effect in play(node, a_step(second), tick(second))]
    assert any(isinstance(effect, Ask) for effect in effects)


def test_an_open_breaker_lets_a_standing_halt_through_when_its_day_is_over() -> None:
    node = make_node()
    training(node)
    node.runs["llama"].history.halts_wall = [WallNs(10**18)] * 3
    effects = play(node, a_step(31, loss=float("nan")))
    assert [effect.name for effect in effects if isinstance(effect, Alarm)] == ["breaker_open"]
    day_s = 24 * 3600
    assert not any(isinstance(effect, Ask) for effect in play(node, tick(day_s - 1)))
    assert only(play(node, tick(day_s)), Ask)


def test_a_rank_that_comes_back_in_the_middle_of_the_asking_gets_the_letter_again() -> None:
    node = make_node()
    training(node)
    play(node, a_step(31, loss=float("nan")), Disconnected(at(31.1), ConnectionId(2)))
    effects = play(node, hello(1, 31.2, connection=ConnectionId(7)))
    assert only(effects, Confirm)
    assert only(effects, Ask)


def test_a_new_process_of_the_run_after_term_is_killed() -> None:
    node = make_node()
    training(node)
    play(node, a_step(31, loss=float("nan")))
    record = {"path": "/ck", "manifest": "/ck/m.json", "kind": "suspect"}
    play(node, ack("saved", 32, step=33, checkpoint=record))
    again = hello(0, 33, attempt="a1.restart1", peer=peer(900), connection=ConnectionId(11))
    effects = play(node, again)
    assert any(isinstance(effect, (Kill, Term)) for effect in effects)
    assert peer(900).process in node.announced("llama.node-a.1")


def test_a_lost_connection_alone_never_halts_but_is_said_once() -> None:
    node = make_node(rule("hang"), rule())
    training(node)
    play(node, Disconnected(at(31), ConnectionId(1)), Disconnected(at(31), ConnectionId(2)))
    effects = [effect for second in range(32, 3000) for effect in play(node, tick(second))]
    assert not any(isinstance(effect, (Ask, Term)) for effect in effects)
    assert [effect.name for effect in effects if isinstance(effect, Alarm)] == ["unwatched"]


def test_a_restarted_governor_resumes_the_halt_where_it_stood() -> None:
    node = make_node()
    training(node)
    kept = [e for e in play(node, a_step(31, loss=float("nan"))) if isinstance(e, PersistIncident)]
    snapshot = run_snapshot(node, node.runs["llama"], at(31))
    reborn = make_node(boot=40)
    restore_runs(reborn, [snapshot], BootNs(at(40)), at(40))
    effects = restore_incidents(reborn, [kept[-1].snapshot], at(40), WallNs(10**18))
    ask = only(effects, Ask)
    assert isinstance(ask, Ask)
    assert ask.deadline == node.runs["llama"].incident.halt.deadline  # type: ignore[union-attr]
    play(reborn, tick(40))
    assert reborn.ledger.spend("llama") == PRICE * 40 * NS_PER_S // NS_PER_HOUR, "our downtime is charged"
    assert reborn.announced("llama.node-a.1") == node.announced("llama.node-a.1")


def test_a_machine_that_was_booted_again_is_not_stopped_for_yesterday() -> None:
    node = make_node()
    training(node)
    kept = [e for e in play(node, a_step(31, loss=float("nan"))) if isinstance(e, PersistIncident)]
    reborn = make_node(boot_id="boot-2")
    effects = restore_incidents(reborn, [kept[-1].snapshot], at(5), WallNs(10**18))
    assert not any(isinstance(effect, (Ask, Term, Kill, StopCompute)) for effect in effects)
    assert only(effects, PersistIncident).snapshot["halt_stage"] == GivenUp.SUPERSEDED  # type: ignore[attr-defined]


def test_a_token_budget_of_an_earlier_launch_ends_nobody_who_has_not_trained_yet() -> None:
    """A job whose training is done is launched again, to export: its first step would be too many, its hello is not."""
    budget = Budget(tokens=1000)
    node = make_node(rule("budget", params={"budget": budget}), budget=budget, cloud="none")
    play(node, tick(0), hello(0, 0, world_size=1))
    node.runs["llama"].run.tokens_total = 1000
    assert not any(isinstance(effect, Ask | Term) for effect in play(node, tick(1)))
    effects = play(node, a_step(1, when=2, tokens=100, tokens_total=1100), tick(3))
    assert any(isinstance(effect, Ask | Term) for effect in effects)
