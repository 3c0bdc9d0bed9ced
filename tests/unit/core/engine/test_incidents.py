"""What a halt may take: never more of the machine than the policy's word allows, and nothing at all in observe mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget, HaltSettings, PolicySet
from governor.core.base.units import NS_PER_S, UsdMicros
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.events.effects import Alarm, Ask, Record, StopCompute, Term
from governor.core.events.inputs import PhaseChange, ProcessesSeen
from governor.core.events.operators import OperatorHalt
from governor.core.halt.table import StopTarget
from governor.reports.incident import incident_markdown, timeline_lines
from tests.unit.core.engine.test_step import a_step, ack, at, hello, make_node, play, rule, tick, training


@pytest.mark.parametrize(
    ("stop", "target"),
    [
        ("processes", StopTarget.PROCESSES),
        ("job", StopTarget.PROCESSES),
        ("auto", StopTarget.INSTANCE),
        ("instance", StopTarget.INSTANCE),
    ],
)
def test_the_machine_is_stopped_only_where_the_policy_says_so_or_leaves_it_to_us(stop: str, target: StopTarget) -> None:
    node = make_node()
    training(node)
    managed = node.runs["llama"]
    managed.policy = replace(managed.policy, halt=HaltSettings(stop=stop))
    play(node, OperatorHalt(at(31), "llama", "enough", 0), ack("failed", 32))
    effects = play(node, ProcessesSeen(at(33), "llama.node-a.1", ()))
    assert managed.incident is not None
    assert managed.incident.plan.stop is target
    assert any(isinstance(effect, StopCompute) for effect in effects) == (target is StopTarget.INSTANCE)


@pytest.mark.parametrize(
    ("on_finish", "halt_stop", "target"),
    [
        ("keep", "instance", StopTarget.PROCESSES),
        ("keep", "auto", StopTarget.PROCESSES),
        ("stop", "processes", StopTarget.INSTANCE),
        ("stop", "auto", StopTarget.INSTANCE),
    ],
)
def test_at_the_last_token_of_its_budget_on_finish_says_what_becomes_of_the_machine(
    on_finish: str, halt_stop: str, target: StopTarget
) -> None:
    """The run is complete, and nothing went wrong: `halt.stop` is for what did."""
    budget = Budget(tokens=25_000)
    node = make_node(rule("budget", params={"budget": budget}, checkpoint="good"), budget=budget)
    policy = replace(node.policies.policies[0], run_on_finish=on_finish, halt=HaltSettings(stop=halt_stop))
    node.policies = PolicySet((policy,), "digest")
    play(node, tick(0), hello(0, world_size=1))
    for number in range(1, 27):
        play(node, a_step(number, tokens=1000, tokens_total=1000 * number), tick(number))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert (incident.reason, incident.plan.stop, incident.plan.checkpoint) == ("tokens_reached", target, "good")


def test_a_complete_run_does_not_stop_the_machine_under_another() -> None:
    budget = Budget(tokens=5_000)
    node = make_node(rule("budget", params={"budget": budget}), budget=budget)
    policy = replace(node.policies.policies[0], run_on_finish="stop")
    node.policies = PolicySet((policy,), "digest")
    play(node, tick(0), hello(0, world_size=1), hello(5, world_size=6, run="other"))
    for number in range(1, 7):
        play(node, a_step(number, tokens=1000, tokens_total=1000 * number), tick(number))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.plan.stop is StopTarget.PROCESSES


def test_ranks_that_obey_another_governors_halt_are_joined_but_not_by_one_that_only_observes() -> None:
    for observe in (False, True):
        node = make_node(observe=observe)
        training(node)
        effects = play(node, ack("received", 31, incident_id="llama.node-b.1", exit_after=True))
        acted = any(isinstance(effect, (Ask, Term)) for effect in effects)
        assert acted is not observe
        assert ("joined" in [effect.name for effect in effects if isinstance(effect, Alarm)]) is observe


def test_the_time_between_two_attempts_is_no_unsaved_work() -> None:
    """Else a healthy run would be halted for the price of saving hours that nobody worked."""
    node = make_node()
    training(node, 10)
    run = node.runs["llama"].run
    run.last_good_at = at(9)
    assert run.unsaved_ns(at(10)) == NS_PER_S
    play(node, hello(0, 3600, attempt="a2", world_size=1))
    assert run.unsaved_ns(at(3600)) == 0, "nothing has been trained of this attempt"
    play(node, a_step(10, when=3601), a_step(11, when=3602))
    assert run.unsaved_ns(at(3605)) == 5 * NS_PER_S, (
        "since its own start: its steps before the first one seen are lost, too"
    )


def test_the_reserve_of_an_attempt_does_not_grow_with_the_pause_before_it() -> None:
    budget = Budget(ceiling_usd_micros=UsdMicros(10_000_000_000))
    reserves = []
    for pause in (0, 3600):
        node = make_node(rule("budget", params={"budget": budget}), budget=budget, cloud="none")
        training(node, 10)
        node.runs["llama"].run.last_good_at = at(9)
        play(node, hello(0, 10 + pause, attempt="a2", world_size=1), a_step(11, when=11 + pause), tick(12 + pause))
        reserves.append(node.runs["llama"].run.reserve_usd_micros)
    assert reserves[0] == reserves[1]


@pytest.mark.parametrize("resumes", ["called", "loaded", "never", None])
def test_a_halt_and_its_journal_know_whether_the_script_resumes(resumes: str | None) -> None:
    node = make_node()
    # Another rank's hello may come before that rank calls resume().
    play(node, tick(0), hello(0, resumes=resumes), hello(1, resumes="never"), a_step(1), tick(2))
    play(node, OperatorHalt(at(3), "llama", "enough", 0))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.resumes == resumes
    assert incident_of(incident_snapshot(node, incident)).resumes == resumes


@pytest.mark.parametrize(
    ("over_at", "stepped", "told"),
    [
        (120, (0,), "rank 1, in eval, has reached no step boundary in 1m 30s"),
        (120, (0, 1), None),  # It cannot save for another reason.
        (32, (0,), None),  # It says itself what has failed.
    ],
)
def test_a_rank_that_makes_no_step_while_it_is_asked_to_save_is_named(
    over_at: int, stepped: tuple[int, ...], told: str | None
) -> None:
    node = make_node()
    training(node)
    play(node, PhaseChange(at(30.5), ConnectionId(2), "llama", 1, "eval"))
    play(node, OperatorHalt(at(31), "llama", "enough", 0), *(ack("agreed", 31, rank, step=31) for rank in (0, 1)))
    play(node, *(a_step(31, rank, 31.5) for rank in stepped))
    effects = play(node, tick(over_at) if over_at > 60 else ack("failed", over_at, step=31))
    assert any(isinstance(effect, Term) for effect in effects)
    incident = node.runs["llama"].incident
    assert incident is not None
    said = [entry["detail"] for entry in incident.timeline if entry["what"] == "no_boundary"]
    assert said == ([] if told is None else [{"rank": 1, "reason": told}])
    snapshot = incident_snapshot(node, incident)
    assert (f"none was saved by this halt: {told}" in "\n".join(timeline_lines(snapshot))) == (told is not None)
    assert (f"No checkpoint: {told}, and only there" in incident_markdown(snapshot)) == (told is not None)


def test_the_step_of_a_halt_is_the_one_that_it_was_decided_at_where_another_rank_is_ahead() -> None:
    node = make_node()
    training(node)
    play(node, a_step(34, 1, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert (node.runs["llama"].run.step, incident.step) == (30, 34)


def test_a_person_may_halt_without_a_save_and_audits_that() -> None:
    node = make_node()
    training(node)
    effects = play(node, OperatorHalt(at(31), "llama", "it hangs", 0, is_unsaved=True))
    kinds = [type(effect) for effect in effects]
    assert (Ask in kinds, Term in kinds) == (False, True)
    (audit,) = [effect.data for effect in effects if isinstance(effect, Record) and effect.kind == "operator"]
    assert audit["checkpoint"] == "none"


@pytest.mark.parametrize("is_saving", [False, True])
def test_a_halt_that_waits_for_a_save_is_hastened_by_hand_but_no_save_that_has_begun(is_saving: bool) -> None:
    node = make_node()
    training(node)
    assert any(isinstance(effect, Ask) for effect in play(node, OperatorHalt(at(31), "llama", "it hangs", 0)))
    if is_saving:
        play(node, ack("received", 31.1), ack("agreed", 31.2, step=33), ack("saving", 31.3, step=33))
    effects = play(node, OperatorHalt(at(32), "llama", "at once", 0, is_unsaved=True))
    assert any(isinstance(effect, Term) for effect in effects) is not is_saving
    assert len(node.incidents) == 1
    again = play(node, OperatorHalt(at(33), "llama", "at once", 0, is_unsaved=True))
    assert not any(isinstance(effect, Term) for effect in again)
