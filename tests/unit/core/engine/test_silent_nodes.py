"""Nodes of a run of which nothing is heard: what that means for a hang, and for their machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Ask, StopOther, Term
from governor.core.events.inputs import Beat, ProcessesSeen
from governor.core.events.operators import OperatorHalt
from governor.core.events.peers import OtherStopped, PeerTold
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
