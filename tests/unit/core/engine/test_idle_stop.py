"""Who uses the node, since when nobody does, and what follows: warned, stopped, given up. Driven from a list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Mode, Policy, PolicySet
from governor.core.base.units import NS_PER_HOUR, BootNs, WallNs
from governor.core.events.effects import Alarm, Ask, Kill, PersistIncident, Record, StopCompute, Term
from governor.core.events.inputs import BillingAnswer, CommandExited, CommandLaunched, StopAnswer, Tick, TrainerExited
from governor.core.halt.table import HaltState
from tests.unit.core.engine.test_step import PRICE, at, hello, peer
from tests.unit.idle_node import FACTS, Idle, seconds

LIMIT = 20
IDLE_STOP = replace(FACTS, idle_stop_ns=seconds(LIMIT))
FROM = 2  # The first second in which the GPUs have been looked at.
WARNED, STOPPED = FROM + LIMIT // 2, FROM + LIMIT


def idle(**changes: Any) -> Idle:
    return Idle(facts=replace(IDLE_STOP, **changes))


def test_a_node_that_nobody_uses_is_warned_then_stopped_and_read_back() -> None:
    world = idle()
    world.until(STOPPED)
    assert world.alarms() == [(WARNED, "node_idle")]
    assert world.said("node_idle") == (
        "nobody has used this node for 10.0s: in 10.0s I stop EC2 instance i-1 (idle_stop of costgov.toml); "
        "keep it with: costgov hold @node 2h --reason …"
    )
    assert world.stops() == [STOPPED]
    effects = [effect for second, effect in world.effects if second == STOPPED]
    kinds = [
        type(effect) for effect in effects if isinstance(effect, PersistIncident | StopCompute | Ask | Term | Kill)
    ]
    assert kinds == [PersistIncident, StopCompute], "kept before it is asked; nobody is asked to save, nobody is ended"
    world.replies(StopAnswer.ACCEPTED)
    assert world.incident.halt.stage is HaltState.VERIFYING
    world.reads(BillingAnswer.RUNNING)
    world.reads(BillingAnswer.ENDED)
    assert world.stage() == "HALTED"
    assert [entry["what"] for entry in world.incident.timeline] == [
        "verdict", "nobody_here", "stop_requested", "stop_accepted", "billing", "verified", "halted",
    ]  # fmt: skip
    world.until(STOPPED + 3 * LIMIT)
    assert world.stops() == [STOPPED], "once is enough, should anybody be left to ask again"


def test_what_nobodys_time_has_cost_stands_in_the_incident() -> None:
    world = idle()
    world.until(STOPPED)
    assert world.incident.spend_at_verdict_usd_micros == PRICE * LIMIT * 10**9 // NS_PER_HOUR


@pytest.mark.parametrize("who", ["run", "gpu", "unnamed", "governor", "hold"])
def test_whoever_is_here_keeps_the_node_and_the_time_begins_anew_when_they_have_gone(who: str) -> None:
    world = idle()
    world.until(STOPPED - 1)
    if who == "run":
        world.begins()
    world.pids = frozenset({77}) if who == "gpu" else frozenset()
    world.unnamed = 1 if who == "unnamed" else 0
    world.governors = (4711,) if who == "governor" else ()
    if who == "hold":
        world.holds(59)
    world.until(STOPPED + 57)
    assert world.stops() == []
    if who == "run":
        world.ends()
    world.pids, world.unnamed, world.governors = frozenset(), 0, ()
    world.until(STOPPED + 58 + LIMIT - 2)
    assert world.stops() == [], "also seconds before it was as long as that again"
    world.until(STOPPED + 58 + LIMIT + 3)
    assert len(world.stops()) == 1


def test_a_run_that_no_tick_has_seen_live_was_somebody() -> None:
    world = idle()
    world.until(STOPPED - 1)
    world.tell(hello(0, world.now + 0.2, world_size=1), TrainerExited(at(world.now + 0.4), "llama", 1))
    world.until(STOPPED + LIMIT - 2)
    assert world.stops() == []
    world.until(STOPPED + LIMIT + 1)
    assert len(world.stops()) == 1


def test_beside_one_command_idle_time_stops_nothing() -> None:
    """Its governor ends with it; and while it lives it may be loading, or uploading what it trained."""
    world = idle(exclusive=True)
    world.tell(CommandLaunched(at(0), "llama", 1000, (peer(100).process,)))
    world.begins()
    world.until(5)
    world.ends()
    world.until(5 * LIMIT)
    world.tell(CommandExited(at(world.now), "llama", 1))
    world.until(10 * LIMIT)
    assert world.stops() == []
    assert not any(name.startswith("node_") for _, name in world.alarms())


def test_whoever_was_refused_trains_all_the_same() -> None:
    world = idle()
    world.until(STOPPED - 1)
    for second in (STOPPED, STOPPED + 30, STOPPED + 60):
        world.tell(hello(0, world.now, run="no such name!"))
        world.until(second)
    assert world.stops() == []
    world.until(STOPPED + 30 + 90 + LIMIT - 1)
    assert world.stops() == []
    world.until(STOPPED + 30 + 90 + LIMIT + 3)
    assert len(world.stops()) == 1


@pytest.mark.parametrize("problem", ["GPU sampler silent for 12 s", None])
def test_not_knowing_who_computes_is_not_idle(problem: str | None) -> None:
    world = idle()
    world.until(STOPPED - 8)
    if problem is not None:
        world.problem = problem
        world.until(STOPPED + 400)
    else:  # Not even told that it is silent: ticks alone.
        for second in range(STOPPED - 7, STOPPED + 400):
            world.now = second
            world.tell(Tick(at(second), BootNs(at(second)), WallNs(at(second))))
    assert world.stops() == []
    unseen = [(second, name) for second, name in world.alarms() if name == "node_unseen"]
    assert len(unseen) == 1, "said once, after a while"
    world.problem = None
    world.until(world.now + LIMIT - 1)
    assert world.stops() == [], "what was not seen is not counted as idle"
    world.until(world.now + 4)
    assert len(world.stops()) == 1


def test_a_governor_that_slept_has_seen_nobody_come() -> None:
    world = idle()
    world.until(STOPPED - 1)
    world.now += 3600
    world.until(world.now + 2)
    assert world.stops() == []
    world.until(world.now + LIMIT)
    assert len(world.stops()) == 1


def test_a_machine_that_was_suspended_is_not_stopped_under_whoever_woke_it() -> None:
    """CLOCK_MONOTONIC stood still meanwhile: only the boot clock has seen it."""
    world = idle()
    world.until(STOPPED - 1)
    world.suspended = 3600
    world.until(world.now + LIMIT - 1)
    assert world.stops() == []
    world.until(world.now + 3)
    assert len(world.stops()) == 1


def test_a_restart_neither_shortens_the_time_nor_forgets_a_hold() -> None:
    world = idle()
    world.until(STOPPED - 2)
    world.restart()
    world.until(world.now + LIMIT - 1)
    assert world.stops() == []
    world.holds(300)
    world.until(world.now + 12)
    world.restart()
    world.until(world.now + 2 * LIMIT)
    assert world.stops() == []


def test_another_boot_begins_anew_and_stops_nothing_for_yesterday() -> None:
    world = idle()
    world.until(STOPPED + 1)
    world.replies(StopAnswer.ACCEPTED)
    world.until(STOPPED + 2)
    told = world.restart(down=3600, boot_id="boot-2")
    assert not any(isinstance(effect, StopCompute) for effect in told)
    assert "its idle time begins anew" in world.said("superseded_by_reboot")
    world.until(world.now + LIMIT - 1)
    assert world.stops() == [STOPPED]
    world.until(world.now + 4)
    assert len(world.stops()) == 2
    assert world.incident.incident_id == "@node.node-a.2", "no id is given twice"


def test_a_restart_resumes_the_open_stop_and_asks_again_only_after_the_whole_time() -> None:
    limit = 100  # Longer than a stop is given to be answered: that alone must not send the next one.
    world = Idle(facts=replace(FACTS, idle_stop_ns=seconds(limit)))
    world.until(FROM + limit)
    told = world.restart()
    assert world.incident.halt.stage is HaltState.STOPPING
    assert not any(isinstance(effect, StopCompute | Kill) for effect in told), "who came meanwhile, nobody has seen"
    world.until(world.now + limit - 1)
    assert world.stops() == [FROM + limit]
    world.until(world.now + 4)
    assert len(world.stops()) == 2
    world.reads(BillingAnswer.ENDED)
    assert world.stage() == "HALTED"


def test_neither_a_hold_nor_a_finished_runs_wish_outlives_the_boot() -> None:
    """Whoever starts the machine wants it; and whoever kept it then has no need to."""
    world = Idle(facts=IDLE_STOP, policy=Policy(name="p", run_on_finish="stop"))
    world.until(4)
    world.begins()
    world.until(8)
    world.ends()
    world.until(9)
    assert world.node.idle.finish is not None
    world.restart(boot_id="boot-2")
    assert world.node.idle.finish is None
    world.holds(7200)
    world.until(world.now + 12)
    world.restart(boot_id="boot-3")
    world.until(world.now + LIMIT + 3)
    assert len(world.stops()) == 1


@pytest.mark.parametrize(
    ("answer", "doubt"),
    [(StopAnswer.REFUSED, "given up (incident @node.node-a.1)"), (StopAnswer.UNKNOWN, "it may still go down")],
)
def test_whoever_comes_before_the_stop_is_accepted_ends_it(answer: StopAnswer, doubt: str) -> None:
    world = idle()
    world.until(STOPPED)
    world.begins()
    world.until(STOPPED + 1)
    assert world.incident.halt.stage is HaltState.STOPPING, "a stop that is on its way is answered first"
    world.replies(answer, retryable=True)
    world.until(STOPPED + 2)
    assert world.stage() == "abandoned"
    assert world.said("node_stop_abandoned").startswith("run llama is here")
    assert doubt in world.said("node_stop_abandoned")
    world.until(STOPPED + 500)
    assert world.stops() == [STOPPED]
    world.ends()
    world.until(world.now + LIMIT + 2)
    assert len(world.stops()) == 2, "the next time that nobody is here is another stop"


def test_an_answer_that_never_comes_does_not_keep_the_stop_open() -> None:
    world = idle()
    world.until(STOPPED)
    world.begins()
    world.until(STOPPED + 32)
    assert world.stage() == "abandoned"
    assert world.replies(StopAnswer.ACCEPTED), "and one that comes too late is said"
    assert "it goes down under them" in world.said("node_came_late")


def test_whoever_comes_after_it_was_accepted_is_told_and_never_forced_down() -> None:
    world = idle(stop_bound_ns=seconds(30))
    world.until(STOPPED)
    world.replies(StopAnswer.ACCEPTED)
    world.begins()
    world.until(STOPPED + 5)
    assert [name for _, name in world.alarms()].count("node_came_late") == 1
    world.until(STOPPED + 60)
    assert world.stops() == [STOPPED], "the provider did not do it: no forced stop under a run"
    assert world.stage() == "abandoned"


def test_a_stop_that_is_refused_climbs_and_calls_a_person_as_a_halt_does() -> None:
    world = idle()
    world.until(STOPPED)
    for _ in range(6):
        if world.incident.halt.stop_reply is None:
            world.replies(StopAnswer.REFUSED)
        world.until(world.now + 5)
    assert world.incident.halt.stage is HaltState.NEEDS_HUMAN
    assert not any(isinstance(effect, Kill | Term) for _, effect in world.effects)
    world.until(world.now + 3600)
    assert len(world.stops()) > 5, "and goes on trying"
    world.begins()
    before = len(world.stops())
    world.until(world.now + 400)
    assert world.stage() == "abandoned"
    assert len(world.stops()) == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cloud": "none", "can_stop": False}, "no cloud is configured"),
        ({"can_stop": False}, "I cannot stop EC2 instance i-1"),
        ({"survives_stop": False}, "what is on its disk would not outlive the stop"),
        ({"survives_stop": None}, "nobody knows whether its disk outlives a stop"),
        ({"observe": True}, "observe mode"),
    ],
)
def test_a_machine_that_may_not_be_stopped_is_said_to_stay_billed_once(changes: dict[str, Any], why: str) -> None:
    world = idle(**changes)
    world.until(STOPPED + 10 * LIMIT)
    assert world.stops() == []
    assert world.alarms() == [(STOPPED, "node_stays_billed")]
    assert why in world.said("node_stays_billed")
    assert "stays billed: " in world.said("node_stays_billed")


def test_without_an_idle_time_nothing_is_ever_stopped() -> None:
    for facts in (FACTS, replace(FACTS, idle_stop_ns=seconds(0))):
        world = Idle(facts=facts)
        world.until(2000)
        assert (world.stops(), world.alarms()) == ([], [])


# --- which idle time ------------------------------------------------------------------------------------------


def with_policies(*policies: Policy, **facts: Any) -> Idle:
    world = Idle(facts=replace(FACTS, **facts))
    world.node.policies = PolicySet(policies, "digest")
    return world


STAGE = Policy(name="stage", match={"stage": ("s1",)}, node_idle_stop_ns=seconds(40))
EVERY = Policy(name="every", node_idle_stop_ns=seconds(12))


def test_the_policy_that_takes_every_run_counts_before_the_first_and_the_last_runs_own_after_it() -> None:
    world = with_policies(STAGE, EVERY)
    world.until(14)
    assert world.stops() == [14]
    assert "idle_stop of policy every" in world.incident.text
    world = with_policies(STAGE, EVERY)
    world.until(4)
    world.tell(hello(0, world.now, stage="s1", world_size=1))
    world.until(6)
    world.ends()
    world.until(6 + 40)
    assert world.stops() == []
    world.until(6 + 43)
    assert len(world.stops()) == 1


def test_costgov_toml_comes_before_every_policy() -> None:
    for said, stops in ((0, 0), (30, 1)):
        world = with_policies(EVERY, idle_stop_ns=seconds(said))
        world.until(31)
        assert world.stops() == []
        world.until(33)
        assert len(world.stops()) == stops


def test_of_runs_that_ended_together_the_most_careful_policy_counts() -> None:
    world = with_policies(STAGE, replace(EVERY, node_idle_stop_ns=None))
    world.until(4)
    world.tell(hello(0, world.now, stage="s1", world_size=1))
    world.tell(hello(0, world.now, run="other", world_size=1, connection=ConnectionId(7)))
    world.until(6)
    world.ends()
    world.ends("other")
    world.until(500)
    assert world.stops() == []


def test_a_policy_that_only_observes_says_what_it_would_do() -> None:
    world = with_policies(replace(EVERY, mode=Mode.OBSERVE))
    world.until(60)
    assert world.stops() == []
    assert world.alarms() == [(14, "node_stays_billed")]


# --- operators ------------------------------------------------------------------------------------------------


def test_a_hold_is_audited_gives_an_open_stop_up_and_can_be_lifted() -> None:
    world = idle()
    world.until(STOPPED)
    world.replies(StopAnswer.REFUSED, retryable=True)
    world.holds(7200, "an evaluation by hand")
    audit = [effect for _, effect in world.effects if isinstance(effect, Record) and effect.kind == "operator"]
    assert audit[0].data == {"act": "hold", "uid": 0, "reason": "an evaluation by hand", "duration_ns": seconds(7200)}
    assert world.stage() == "abandoned"
    assert "an operator's hold (an evaluation by hand)" in world.said("node_stop_abandoned")
    world.until(STOPPED + 1000)
    world.holds(0)
    world.until(STOPPED + 1000 + LIMIT - 1)
    assert world.stops() == [STOPPED]
    world.until(STOPPED + 1000 + LIMIT + 2)
    assert len(world.stops()) == 2


def test_nobody_is_asked_twice_in_one_alarm() -> None:
    world = idle()
    world.until(STOPPED + 5)
    texts = [effect.text for _, effect in world.effects if isinstance(effect, Alarm)]
    assert len(texts) == len(set(texts)) == 1
