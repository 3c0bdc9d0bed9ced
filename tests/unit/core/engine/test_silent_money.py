"""What a node may have charged since its last word: counted on at its last rate, whoever begins again meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from governor.core.base.units import NS_PER_S, BootNs, DurationNs
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.engine.spent.over_nodes import whole_usd_micros
from governor.core.events.effects import Alarm, PersistRuns, StopOther
from governor.core.events.inputs import TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.events.peers import OtherStopped
from tests.unit.core.engine.test_nodes import member, told
from tests.unit.core.engine.test_step import PRICE, at, hello, make_node, play, tick

NEXT = "costgov/llama/4712.0/watch/0/0/1"
HOUR = 3_600


def others(node: Node, when: float) -> int:
    """What all nodes but this one count for."""
    managed = node.runs["llama"]
    return whole_usd_micros(managed, at(when)) - managed.run.spend_usd_micros


def restarted(node: Node, when: float, *, later: float = 1.0, boot_id: str = "boot-1") -> Node:
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(when))))
    again = make_node(boot=when + later, has_peers=True, boot_id=boot_id)
    restore_runs(again, [row], BootNs(at(when + later)), at(when + later))
    return again


def silent_since_2() -> Node:
    node = member(2, 3)
    play(node, told(2, spend_usd_micros=7_000_000), tick(2), tick(8))
    return node


def alarms(node: Node, *events: Any) -> list[str]:
    return [effect.name for effect in play(node, *events) if isinstance(effect, Alarm)]


# --- the governor begins again ---------------------------------------------------------------------------------------


def test_the_money_of_a_silent_node_goes_on_behind_a_restart() -> None:
    again = restarted(silent_since_2(), 8)
    play(again, tick(9), tick(2 + HOUR))
    assert others(again, 2 + HOUR) == 7_000_000 + PRICE
    assert again.runs["llama"].history.members.rate_usd_micros_per_hour == PRICE, "and its halt is reserved for"


def test_a_restart_counts_at_once_what_the_others_charge_meanwhile() -> None:
    node = member(2, 3)
    play(node, told(2, spend_usd_micros=7_000_000), tick(2))
    again = restarted(node, 2, later=30)
    assert others(again, 32) == 7_000_000 + PRICE * 30 // HOUR
    play(again, tick(32), told(32, spend_usd_micros=7_800_000))
    assert others(again, 32) == 7_800_000, "its own word is exact"


def test_who_may_still_speak_is_not_called_silent_by_a_governor_that_begins() -> None:
    node = member(2, 3)
    play(node, told(2), told(2, "node-c"), tick(2))
    again = restarted(node, 2, later=60)
    assert "peer_silent" not in alarms(again, tick(62), told(63, "node-c"), tick(66.75))
    assert alarms(again, tick(67)).count("peer_silent") == 1
    assert not alarms(again, tick(67.25))


def test_a_node_of_many_is_given_five_of_its_own_beats() -> None:
    node = member(2, 3)
    word = told(2)
    play(node, replace(word, told=replace(word.told, beat_ns=DurationNs(15 * NS_PER_S))), tick(2))
    again = restarted(node, 2, later=200)
    assert "peer_silent" not in alarms(again, *(tick(202 + second) for second in range(75)))
    assert "peer_silent" in alarms(again, tick(277))


def test_a_silence_that_was_told_is_not_told_again() -> None:
    node = member(2, 3)
    assert "peer_silent" in alarms(node, told(2), tick(2), tick(8))
    again = restarted(node, 8)
    assert "peer_silent" not in alarms(again, *(tick(second) for second in range(9, 20)))
    assert "peer_heard_again" in alarms(again, told(20))


def test_the_machine_of_a_node_that_was_silent_before_the_restart_is_stopped() -> None:
    node = member(2, 3)
    play(node, told(2, may_stop=True), tick(2), tick(8))
    again = restarted(node, 8)
    play(again, *(hello(rank, 9, world_size=4, job=node.runs["llama"].run.job) for rank in (2, 3)), tick(9))
    halt = OperatorHalt(at(10), "llama", "enough", 0, is_unsaved=True)
    effects = play(again, halt, *(tick(10 + n / 4) for n in range(1, 12)))
    assert [effect.node for effect in effects if isinstance(effect, StopOther)] == ["node-b"]


def test_after_a_boot_it_counts_until_the_last_commit() -> None:
    """The launch is over here, and its moments mean nothing."""
    again = restarted(silent_since_2(), 2 + HOUR, boot_id="boot-2")
    assert others(again, 2 + 9 * HOUR) == 7_000_000 + PRICE
    assert not again.runs["llama"].history.members.by_node


def test_a_node_that_speaks_for_the_first_time_is_persisted_at_the_next_tick() -> None:
    node = member(2, 3)
    play(node, told(2))
    assert [effect for effect in play(node, tick(2)) if isinstance(effect, PersistRuns)]
    play(node, told(3))
    assert not [effect for effect in play(node, tick(3)) if isinstance(effect, PersistRuns)]


# --- the launch ends -------------------------------------------------------------------------------------------------


def test_a_silent_node_counts_until_its_launch_was_over_here_and_its_own_word_replaces_that() -> None:
    node = silent_since_2()
    play(node, TrainerExited(at(2 + HOUR), "llama", 1), tick(2 + HOUR))
    play(node, *(hello(rank, 2 + 4 * HOUR, attempt="a2", world_size=4, job=NEXT) for rank in (2, 3)))
    play(node, tick(2 + 4 * HOUR))
    assert others(node, 2 + 5 * HOUR) == 7_000_000 + PRICE
    assert others(restarted(node, 2 + 5 * HOUR), 2 + 6 * HOUR) == 7_000_000 + PRICE
    play(node, told(2 + 5 * HOUR, spend_usd_micros=7_500_000, is_alive=False))
    assert others(node, 2 + 6 * HOUR) == 7_500_000, "of the launch before, and it knows better"


def test_a_node_that_comes_with_the_next_launch_counts_once() -> None:
    node = member(2, 3)
    play(node, told(2, spend_usd_micros=7_000_000), tick(2))
    play(node, *(hello(rank, 9, attempt="a2", world_size=4, job=NEXT) for rank in (2, 3)))
    play(node, told(9, spend_usd_micros=7_000_000, job=NEXT), tick(9))
    assert others(node, 9) == 7_000_000


# --- others know more, or its machine is read back -------------------------------------------------------------------


def test_what_others_have_of_it_and_what_it_may_have_charged_are_the_same_money() -> None:
    node = silent_since_2()
    hour = told(2 + HOUR, "node-c", spend_usd_micros=0, rate_usd_micros_per_hour=0, left=(("node-b", 7_500_000),))
    play(node, hour, tick(2 + HOUR))
    assert others(node, 2 + HOUR) == 7_000_000 + PRICE, "not with 500,000 beside"
    play(node, told(3 + HOUR, "node-c", left=(("node-b", 3 * PRICE),)))
    assert others(node, 3 + HOUR) == 3 * PRICE + 5_000_000


def test_what_it_may_have_charged_until_its_machine_was_read_back_stays() -> None:
    node = member(2, 3)
    play(node, told(2, spend_usd_micros=7_000_000, may_stop=True), tick(2))
    play(node, OperatorHalt(at(3), "llama", "enough", 0, is_unsaved=True), *(tick(3 + n) for n in range(9)))
    incident = node.runs["llama"].incident
    assert incident is not None
    seen = OtherStopped(at(2 + HOUR), incident.incident_id, "node-b", stopped=True, verified=True, reason="stopped")
    play(node, seen, tick(3 + HOUR))
    assert others(node, 2 + 9 * HOUR) == 7_000_000 + PRICE
    assert not node.runs["llama"].history.members.rate_usd_micros_per_hour
