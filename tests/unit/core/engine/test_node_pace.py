"""How often the nodes of a large run tell of it, when one counts as silent, and that no halt waits for a beat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from governor.core.base.units import NS_PER_S, DurationNs
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, PersistIncident
from governor.core.events.peers import BEAT_NS_MAX, NODES_AT_FULL_PACE, NODES_MAX, NodeTold, PeerTold, beat_of
from tests.unit.core.engine.test_nodes import HALT, RUN, at, member, messages, told
from tests.unit.core.engine.test_step import a_step, play, tick

LARGE: Final = 4 * NODES_AT_FULL_PACE  # Each beats every 4 s.
SLOW: Final = beat_of(LARGE)


def word(when: float, node: str, beat_ns: DurationNs = SLOW) -> PeerTold:
    return PeerTold(at(when), NodeTold(node, f"boot-{node}", runs=(RUN,), beat_ns=beat_ns))


def large() -> Node:
    """At second 2 it has heard from all others, and has told of it at second 2."""
    node = member(0, 1)
    play(node, *(word(1.5, f"node-{n}") for n in range(1, LARGE)), tick(2))
    return node


def silent(node: Node, *events: object) -> list[str]:
    return [one.text for one in play(node, *events) if isinstance(one, Alarm) and one.name == "peer_silent"]


def rows(node: Node, *events: object) -> list[Any]:
    return [one.snapshot for one in play(node, *events) if isinstance(one, PersistIncident)]


def test_beyond_64_nodes_each_beats_less_often() -> None:
    assert [beat_of(nodes) for nodes in (1, 2, 64)] == [NS_PER_S] * 3
    assert beat_of(128) == 2 * NS_PER_S
    assert beat_of(NODES_MAX) == beat_of(10 * NODES_MAX) == BEAT_NS_MAX == 16 * NS_PER_S


def test_a_large_runs_message_says_when_the_next_one_follows_and_it_does() -> None:
    node = large()
    said = {second: messages(node, tick(second)) for second in range(3, 11)}
    assert [second for second, found in said.items() if found] == [6, 10]
    assert said[6][0].beat_ns == SLOW == 4 * NS_PER_S


def test_what_was_promised_before_the_run_grew_is_kept() -> None:
    node = member(0, 1)
    assert messages(node, tick(2))[0].beat_ns == NS_PER_S
    play(node, *(word(2.5, f"node-{n}") for n in range(1, LARGE)))
    assert messages(node, tick(3))[0].beat_ns == SLOW


def test_silence_is_five_of_the_beats_that_a_node_has_told() -> None:
    node = large()
    play(node, word(2, "node-1", DurationNs(NS_PER_S)), *(word(2, f"node-{n}") for n in range(2, LARGE)))
    assert not silent(node, tick(6.9))
    assert [text.split()[4] for text in silent(node, tick(7))] == ["node-1"]
    assert not silent(node, tick(21.9))
    assert len(silent(node, tick(22))) == LARGE - 2


def test_a_verdict_does_not_wait_and_is_repeated_each_second() -> None:
    node = large()
    first = messages(node, a_step(2, 0, 2.1, loss=float("nan")))
    assert first[0].runs[0].halt is not None
    assert first[0].beat_ns == NS_PER_S
    again = [messages(node, tick(second)) for second in (3.1, 4.1, 5.1)]
    assert all(found and found[0].runs[0].halt is not None for found in again)


def test_another_nodes_verdict_is_joined_and_told_at_once() -> None:
    said = messages(large(), told(2.2, "node-7", HALT))
    assert said[0].runs[0].halt is not None


def test_in_observe_mode_a_node_of_a_halted_run_beats_each_second() -> None:
    node = member(0, 1, observe=True)
    play(node, *(word(1.5, f"node-{n}") for n in range(1, LARGE)), tick(2), told(2.2, "node-7", HALT))
    assert [bool(messages(node, tick(second))) for second in (3, 4, 5)] == [True] * 3


def test_in_a_halt_a_node_that_says_nothing_is_silent_after_five_seconds() -> None:
    node = large()
    play(node, a_step(2, 0, 2.1, loss=float("nan")))
    assert not silent(node, tick(7))
    assert len(silent(node, tick(7.1))) == LARGE - 1


def test_a_thousand_parts_that_move_at_once_are_written_once_and_the_last_of_them_too() -> None:
    node = large()
    play(node, a_step(2, 0, 2.1, loss=float("nan")))
    moved = [told(2.2 + n / 1_000, f"node-{n}", replace(HALT, stage="SAVING")) for n in range(1, LARGE)]
    assert len(rows(node, *moved)) == 1
    kept = rows(node, tick(3.2))
    assert [part["stage"] for part in kept[-1]["nodes"] if part["node"] != "node-a"] == ["SAVING"] * (LARGE - 1)


def test_what_a_node_may_have_charged_since_its_last_beat_counts() -> None:
    node = large()
    members = node.runs["llama"].history.members
    spoken = members.charged_usd_micros(at(1.5))
    rate = members.rate_usd_micros_per_hour
    assert members.charged_usd_micros(at(4.5)) - spoken == (LARGE - 1) * (rate // (LARGE - 1) * 3 // 3_600)


def test_a_node_beyond_the_most_that_a_run_has_takes_nobodys_money_and_ends_no_governor() -> None:
    node = member(0, 1)
    charged = replace(RUN, spend_usd_micros=1_000_000)
    words = [PeerTold(at(2), NodeTold(f"node-{n}", f"boot-{n}", runs=(charged,))) for n in range(1, NODES_MAX + 2)]
    play(node, *words)
    members = next(iter(node.runs.values())).history.members
    assert set(members.charged) == {f"node-{n}" for n in range(1, NODES_MAX + 1)}
