"""Nodes of a run of which nothing is heard: what that means for a hang, and for their machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, BootNs, WallNs
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Alarm, Ask, StopOther, TellPeers, Term
from governor.core.events.inputs import Beat, Bye, Disconnected, PhaseChange, ProcessesSeen
from governor.core.events.operators import OperatorHalt
from governor.core.events.peers import NODES_MAX, OtherStopped, PeerTold, ToldRun
from governor.core.halt.table import HaltState
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from tests.unit.core.engine.test_nodes import JOB, member, told
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, rule, tick

# --- nobody moves ------------------------------------------------------------------------------------------------


def standing() -> Node:
    """Two ranks of four have done 30 steps in 30 s, and stand in a step since."""
    node = make_node(rule("hang", params=defaults(load()["hang"].KEYS)), has_peers=True, cloud="none")
    play(node, tick(0), *(hello(rank, 0, world_size=4, job=JOB) for rank in (2, 3)))
    for second in range(1, 31):
        play(node, *(a_step(second, rank, second) for rank in (2, 3)), told(second, still_ns=0), tick(second))
    return node


def halted_after(node: Node, news: Callable[[int], PeerTold | None], until_s: int = 400) -> int | None:
    """The second of the halt, while node-b tells each second what `news` has for it."""
    for second in range(31, until_s):
        beats = [
            Beat(at(second), ConnectionId(rank + 1), "llama", rank, 30, "train", at(30), in_step=True)
            for rank in (2, 3)
        ]
        heard = news(second)
        effects = play(node, *beats, *([heard] if heard is not None else []), tick(second))
        if any(isinstance(effect, Ask | Term) for effect in effects):
            return second
    return None


def test_ranks_of_all_nodes_that_stand_still_are_judged_as_those_of_one() -> None:
    alone = standing()
    alone_at = halted_after(alone, lambda second: told(second, still_ns=(second - 30) * NS_PER_S))
    assert alone_at is not None
    assert 60 <= alone_at <= 62, "30 s behind the last progress of any rank"
    finding = alone.runs["llama"].rules.findings["r-hang"]
    assert finding.evidence["covers_world"]


def test_a_rank_that_moves_or_may_take_long_elsewhere_excuses_all() -> None:
    assert halted_after(standing(), lambda second: told(second, still_ns=0)) is None
    excused = lambda second: told(second, still_ns=(second - 30) * NS_PER_S, is_excused=True)  # noqa: E731
    assert halted_after(standing(), excused) is None


def test_a_node_that_died_is_named_after_two_minutes_and_its_run_is_halted_without_asking() -> None:
    node = standing()
    assert halted_after(node, lambda _second: None) in range(150, 153)
    incident = node.runs["llama"].incident
    assert incident is not None
    assert (incident.reason, incident.evidence["silent_nodes"]) == ("node_silent", ["node-b"])
    assert incident.halt.stage is HaltState.TERMED
    assert [(part.node, part.is_silent) for part in incident.nodes.values()] == [("node-b", True)]


def test_a_governor_that_is_away_for_a_minute_while_its_ranks_evaluate_ends_no_run() -> None:
    """All have stood still for three minutes by then. What it has told counts until it was silent for two."""
    excused = lambda second: told(second, still_ns=(second - 30) * NS_PER_S, is_excused=True)  # noqa: E731
    assert halted_after(standing(), lambda second: excused(second) if not 200 < second < 260 else None) is None
    assert halted_after(standing(), lambda second: excused(second) if second <= 200 else None) in range(320, 323)


def test_a_rank_without_beats_excuses_the_other_nodes_for_as_long_as_its_own() -> None:
    """A native call may hold the interpreter's lock. Two minutes, as the rule has it for a rank on this node."""
    node = standing()
    for second in (31, 32):
        beats = [
            Beat(at(second), ConnectionId(rank + 1), "llama", rank, 30, "train", at(30), in_step=True)
            for rank in (2, 3)
        ]
        play(node, *beats, tick(second))
    assert not says(node, 36.5).is_excused
    assert says(node, 38).is_excused, "it has sent no beat for five seconds"
    assert says(node, 149).is_excused
    assert not says(node, 151).is_excused, "two minutes behind its last progress"


def test_ranks_of_which_no_governor_has_told_keep_the_loose_limit() -> None:
    node = make_node(rule("hang", params=defaults(load()["hang"].KEYS)), cloud="none")
    play(node, tick(0), *(hello(rank, 0, world_size=4, job=JOB) for rank in (2, 3)))
    for second in range(1, 31):
        play(node, *(a_step(second, rank, second) for rank in (2, 3)), tick(second))
    assert halted_after(node, lambda _second: None) is None


# --- the machine of a silent node --------------------------------------------------------------------------------


def ended(*ranks: int, may_stop: bool = True, until_s: float = 4, **facts: Any) -> Node:
    """This node's ranks are ended; node-b and node-c spoke at second 2 for the last time."""
    node = member(*ranks, **facts)
    play(node, told(2, may_stop=may_stop), told(2, "node-c", may_stop=may_stop))
    play(node, OperatorHalt(at(2), "llama", "enough", 0, is_unsaved=True))
    play(node, *(tick(2 + n / 4) for n in range(1, round(until_s * 4))))
    incident = node.runs["llama"].incident
    assert incident is not None
    play(node, ProcessesSeen(at(until_s), incident.incident_id, ()))
    return node


def stops_at(node: Node, *seconds: float) -> list[tuple[float, str]]:
    asked = []
    for second in seconds:
        asked += [(second, e.node) for e in play(node, tick(second)) if isinstance(e, StopOther)]
    return asked


def test_the_machine_of_a_silent_node_is_stopped_and_read_back() -> None:
    node = ended(2, 3)
    assert stops_at(node, 6.75, 7, 7.25) == [(7, "node-b"), (7, "node-c")]
    incident = node.runs["llama"].incident
    assert incident is not None
    play(node, OtherStopped(at(8), incident.incident_id, "node-b", stopped=True, verified=False, reason="accepted"))
    play(node, OtherStopped(at(8), incident.incident_id, "node-c", stopped=True, verified=True, reason="stopped"))
    assert stops_at(node, 21.75, 22.25, 23) == [(22.25, "node-b")], "read again, until it has ended"
    parts = {part.node: (part.gone, part.stopped, part.verified) for part in incident.nodes.values()}
    assert parts == {"node-b": (False, True, False), "node-c": (True, True, True)}


def test_nodes_that_speak_take_turns_and_a_machine_that_others_may_use_is_left_alone() -> None:
    node = ended(2, 3)
    for second in range(5, 12):
        play(node, told(second, "node-0"))
        assert not stops_at(node, second), "node-0 has its turn first"
    assert stops_at(node, 12) == [(12, "node-b"), (12, "node-c")]
    assert not stops_at(ended(2, 3, may_stop=False), 7, 30)
    assert not stops_at(ended(2, 3, cloud="none"), 7, 30)


def test_a_machine_is_not_stopped_on_a_word_of_long_ago() -> None:
    node = member(2, 3)
    play(node, told(2, may_stop=True), tick(903))
    play(node, OperatorHalt(at(904), "llama", "enough", 0, is_unsaved=True))
    assert not stops_at(node, 905, 910, 920)


def test_who_may_not_stop_it_says_so_once() -> None:
    node = ended(2, 3)
    stops_at(node, 7)
    incident = node.runs["llama"].incident
    assert incident is not None
    refused = OtherStopped(at(8), incident.incident_id, "node-b", stopped=False, verified=False, reason="not_allowed")
    assert [e.name for e in play(node, refused) if isinstance(e, Alarm)] == ["peer_stays_billed"]
    assert [name for _, name in stops_at(node, 30, 60)] == ["node-c", "node-c"]


def test_the_last_word_on_a_machine_counts_and_a_node_that_speaks_of_another_launch_is_not_silent() -> None:
    """Somebody else has come to node-b since; node-c trains something else."""
    node = ended(2, 3, until_s=3)
    play(node, told(3, may_stop=False), told(3, "node-c", may_stop=True))
    for second in range(4, 30):
        play(node, told(second, "node-c", job="the next launch", may_stop=True))
        assert not stops_at(node, second)


def test_no_machine_is_stopped_that_is_ours_or_that_speaks() -> None:
    """A node that was taken over says that it runs on somebody else's instance."""
    node = member(2, 3)
    machines = {"node-b": "i-1", "node-c": "i-node-d"}  # Ours, and node-d's.
    for name, instance in machines.items():
        lied = told(2, name, may_stop=True)
        play(node, replace(lied, told=replace(lied.told, instance_id=instance)))
    play(node, OperatorHalt(at(2), "llama", "enough", 0, is_unsaved=True))
    for second in range(3, 40):
        play(node, told(second, "node-d"))
        assert not stops_at(node, second)


def test_a_machine_that_was_read_back_costs_nothing_more() -> None:
    node = ended(2, 3)
    stops_at(node, 7)
    incident = node.runs["llama"].incident
    assert incident is not None
    play(node, OtherStopped(at(8), incident.incident_id, "node-b", stopped=True, verified=True, reason="stopped"))
    play(node, OtherStopped(at(8), incident.incident_id, "node-c", stopped=True, verified=True, reason="stopped"))
    members = node.runs["llama"].history.members
    assert members.charged_usd_micros(at(9)) == members.charged_usd_micros(at(3609))


# --- what this node tells of its own ranks -----------------------------------------------------------------------


def says(node: Node, when: float) -> ToldRun:
    messages = [effect.told for effect in play(node, tick(when)) if isinstance(effect, TellPeers)]
    return messages[-1].runs[0]


def test_it_tells_for_how_long_its_ranks_stand_and_whether_they_may_take_long() -> None:
    node = standing()
    for rank in (2, 3):
        play(node, Beat(at(33), ConnectionId(rank + 1), "llama", rank, 30, "train", at(29), in_step=True))
    told_run = says(node, 35)
    assert (told_run.ranks, told_run.still_ns, told_run.is_excused) == (2, 2 * NS_PER_S, False)
    play(node, PhaseChange(at(36), ConnectionId(3), "llama", 2, "eval"))
    assert says(node, 37).is_excused
    play(node, PhaseChange(at(38), ConnectionId(3), "llama", 2, "train"))
    play(node, Beat(at(39), ConnectionId(3), "llama", 2, 32, "train", at(38), in_step=True))
    assert says(node, 40).is_excused, "the first step behind an evaluation compiles again"


def test_a_rank_that_is_lost_or_has_said_bye_is_not_spoken_for() -> None:
    node = standing()
    play(node, Disconnected(at(31), ConnectionId(3)))
    assert says(node, 35).ranks == 1
    play(node, Bye(at(36), ConnectionId(4), "llama", 3, 1))
    assert says(node, 37).ranks == 0


def test_in_observe_mode_no_machine_is_anybodys_to_stop() -> None:
    assert says(member(2, 3), 5).may_stop
    assert not says(member(2, 3, observe=True), 5).may_stop


def test_a_governor_that_begins_again_while_it_waits_for_the_others_waits_on() -> None:
    node = member(0, 1)
    play(node, tick(7), told(8), OperatorHalt(at(8), "llama", "enough", 0, is_unsaved=True))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.halt.stage is HaltState.WAITING
    kept = json.loads(json.dumps(incident_snapshot(node, incident)))
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(8))))
    again = make_node(boot=10, has_peers=True)
    restore_runs(again, [row], BootNs(at(10)), at(10))
    restore_incidents(again, [kept], at(10), WallNs(at(10)))
    assert not [e for e in play(again, tick(10), tick(14)) if isinstance(e, Term)]
    assert [e for e in play(again, tick(15)) if isinstance(e, Term)], "nobody has spoken in five seconds"


def test_a_node_that_speaks_has_a_place_for_its_money_whatever_others_say() -> None:
    node = member(2, 3)
    invented = tuple((f"nobody-{number}", 0) for number in range(NODES_MAX))
    play(node, told(2, left=invented), told(3, "node-c", spend_usd_micros=5_000_000_000))
    assert node.runs["llama"].history.members.charged["node-c"] == 5_000_000_000
