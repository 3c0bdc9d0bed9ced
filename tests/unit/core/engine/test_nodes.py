"""One run on several nodes: what the other governors tell, and what this node makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, UsdMicros
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Alarm, Ask, MeetPeer, PersistIncident, StopCompute, TellPeers, Term
from governor.core.events.inputs import Ack, Bye, ProcessesSeen, TrainerExited
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.events.peers import NodeTold, PeerTold, ToldHalt, ToldRun
from governor.core.halt.table import HaltState
from governor.core.views.machines import OverNodes
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.wire.control_client import matching
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, peer, play, rule, tick

JOB = "costgov/llama/4711.0/watch/0/0/1"
HALT = ToldHalt(
    "llama.node-b.1", "node-b", "nan", "nonfinite", "loss_nan", "the loss of rank 2 is NaN", "suspect", "ASKED"
)
RUN = ToldRun(
    "llama", JOB, 1000, is_alive=True, ranks=2, step=7, spend_usd_micros=5_000_000, rate_usd_micros_per_hour=PRICE
)


def member(*ranks: int, **facts: Any) -> Node:
    """A node of a run of four ranks that has trained since second 0."""
    node = make_node(has_peers=True, **facts)
    play(node, tick(0), *(hello(rank, 0, world_size=4, job=JOB) for rank in ranks))
    play(node, *(a_step(1, rank, 1) for rank in ranks), tick(1))
    return node


def told(when: float, node: str = "node-b", halt: ToldHalt | None = None, **changes: Any) -> PeerTold:
    return PeerTold(
        at(when), NodeTold(node, f"boot-{node}", "aws", f"i-{node}", runs=(replace(RUN, halt=halt, **changes),))
    )


def messages(node: Node, *events: Any) -> list[NodeTold]:
    return [effect.told for effect in play(node, *events) if isinstance(effect, TellPeers)]


def stage_of(node: Node) -> HaltState:
    incident = node.runs["llama"].incident
    assert incident is not None
    return incident.halt.stage


# --- telling ---------------------------------------------------------------------------------------------------


def test_a_node_tells_once_a_second_and_only_where_there_are_others() -> None:
    node = member(0, 1)
    assert len(messages(node, *(tick(1 + n / 4) for n in range(1, 9)))) == 2
    alone = make_node(has_peers=True)
    play(alone, tick(0), hello(0, 0, job=JOB), hello(1, 0, job=JOB))
    assert not messages(alone, tick(1), tick(2)), "all of its ranks are here"
    unnamed = make_node(has_peers=True)
    play(unnamed, tick(0), hello(0, 0, world_size=4))
    assert not messages(unnamed, tick(1), tick(2)), "nobody could know of which launch it speaks"
    deaf = make_node()
    play(deaf, tick(0), hello(0, 0, world_size=4, job=JOB))
    assert not messages(deaf, tick(1), tick(2))


def test_a_halt_is_told_at_once_and_each_time_that_it_moves() -> None:
    node = member(0, 1)
    said = messages(node, a_step(2, 0, 1.1, loss=float("nan")))
    assert [one.runs[0].halt.stage for one in said if one.runs[0].halt is not None] == ["ASKED"]
    assert said[0].runs[0].has_first
    halt = said[0].runs[0].halt
    assert halt is not None
    assert (halt.incident_id, halt.node, halt.checkpoint, halt.trigger) == (
        "llama.node-a.1", "node-a", "suspect", "nonfinite",
    )  # fmt: skip
    assert messages(node, Ack(at(2), hello(0).connection, "llama", 0, 1, halt.incident_id, "saving"))


def met(node: Node, *seconds: float) -> list[tuple[float, str]]:
    return [(second, e.host) for second in seconds for e in play(node, tick(second)) if isinstance(e, MeetPeer)]


def test_the_host_of_rank_0_is_asked_for_each_minute_until_a_node_has_spoken() -> None:
    """Its governor may start later than the launch."""
    node = make_node(has_peers=True)
    play(node, tick(0), *(hello(rank, 0, world_size=4, job=JOB, master="10.0.0.1") for rank in (2, 3)))
    assert met(node, 1, 2, 30, 60.75, 61, 70) == [(1, "10.0.0.1"), (61, "10.0.0.1")]
    play(node, told(71))
    assert not met(node, 72, 140)


def test_one_users_launches_take_no_place_from_anothers() -> None:
    node = make_node(has_peers=True)
    play(node, tick(0), hello(2, 0, world_size=4, job=JOB, master="10.0.0.1"))
    for number in range(9):
        who = {"peer": peer(500 + number, uid=666), "connection": ConnectionId(50 + number)}
        play(node, hello(1, 0, run=f"mal{number}", world_size=4, master=f"10.6.6.{number}", **who))
    asked = met(node, *(n / 4 for n in range(4, 20)))
    assert [host for _, host in asked if host == "10.0.0.1"] == ["10.0.0.1"]
    assert len(asked) == 3, "one each two seconds"


# --- one verdict -----------------------------------------------------------------------------------------------


def test_another_nodes_verdict_is_put_to_our_own_table_and_called_as_there() -> None:
    node = member(2, 3)
    effects = play(node, told(2, halt=HALT))
    asked = [effect for effect in effects if isinstance(effect, Ask)]
    assert [(ask.incident_id, ask.checkpoint) for ask in asked] == [("llama.node-a.1", "suspect")]
    kept = [effect.snapshot for effect in effects if isinstance(effect, PersistIncident)][-1]
    assert (kept["called"], kept["decided_by"]) == ("llama.node-b.1", "node-b")
    assert (kept["trigger"], kept["reason"]) == ("nonfinite", "loss_nan")
    assert [(part["node"], part["stage"]) for part in kept["nodes"]] == [("node-a", "ASKED"), ("node-b", "ASKED")]
    assert not [effect for effect in play(node, told(2.1, halt=HALT)) if isinstance(effect, Ask)], "told again"


def test_neither_hold_nor_breaker_keep_a_node_in_a_run_that_ends_elsewhere() -> None:
    node = member(2, 3)
    play(node, OperatorHold(at(1), "llama", NS_PER_HOUR, "looking", 0))
    assert [effect for effect in play(node, told(2, halt=HALT)) if isinstance(effect, Ask)]


def test_in_observe_mode_it_is_reported_once() -> None:
    node = member(2, 3, observe=True)
    effects = play(node, told(2, halt=HALT), told(3, halt=HALT))
    assert [effect.name for effect in effects if isinstance(effect, Alarm)] == ["joined"]
    assert node.runs["llama"].incident is None


def test_a_verdict_on_another_launch_or_another_users_run_is_not_ours() -> None:
    node = member(2, 3)
    play(node, told(2, halt=HALT, job=JOB + "0"), told(2, halt=HALT, uid=1001))
    assert node.runs["llama"].incident is None
    play(node, tick(20), hello(2, 30, attempt="a2", world_size=4))
    play(node, told(31, halt=HALT))
    assert node.runs["llama"].incident is None, "the next launch has not named itself yet"


def test_two_nodes_that_decide_at_once_call_the_halt_alike() -> None:
    node = member(0, 1)
    play(node, OperatorHalt(at(2), "llama", "enough", 0))
    earlier = replace(HALT, incident_id="llama.node-0.1", node="node-0")
    kept = [
        e.snapshot for e in play(node, told(2, halt=earlier), told(3, "node-c", HALT)) if isinstance(e, PersistIncident)
    ]
    assert (kept[-1]["incident_id"], kept[-1]["called"]) == ("llama.node-a.1", "llama.node-0.1")
    later = member(0, 1)
    play(later, OperatorHalt(at(2), "llama", "enough", 0), told(2, halt=HALT))
    incident = later.runs["llama"].incident
    assert incident is not None
    assert incident.called == "llama.node-a.1"


def test_no_rank_and_no_peer_gives_a_halt_here_its_id() -> None:
    """Else a stranger could take the place of somebody's halt: ids are easily guessed."""
    node = member(2, 3)
    play(node, told(2, halt=HALT))
    stranger = hello(0, 2, run="mal", attempt="m1", world_size=1, peer=peer(900, uid=1001), connection=ConnectionId(9))
    ack = Ack(at(2), ConnectionId(9), "mal", 0, 1, "llama.node-a.1", "received", exit_after=True)
    play(node, stranger, ack)
    assert node.incidents == {"llama.node-a.1": "llama", "mal.node-a.1": "mal"}


# --- the node of rank 0 goes last --------------------------------------------------------------------------------


def halting(*ranks: int) -> Node:
    node = member(*ranks)
    play(node, told(8), OperatorHalt(at(8), "llama", "enough", 0, is_unsaved=True))
    return node


def test_the_node_of_rank_0_ends_its_processes_when_the_others_have_ended_theirs() -> None:
    node = halting(0, 1)
    assert stage_of(node) is HaltState.WAITING
    assert not [e for e in play(node, told(9, halt=HALT), tick(9)) if isinstance(e, Term)]
    assert [e for e in play(node, told(10, halt=replace(HALT, gone=True))) if isinstance(e, Term)]


def test_any_other_node_does_not_wait() -> None:
    assert stage_of(halting(2, 3)) is HaltState.TERMED


def test_a_silent_node_is_waited_for_no_longer_than_five_seconds() -> None:
    node = halting(0, 1)
    assert not [e for e in play(node, tick(12.75)) if isinstance(e, Term)]
    effects = play(node, tick(13))
    assert [e for e in effects if isinstance(e, Term)]
    assert [e.name for e in effects if isinstance(e, Alarm)] == ["peer_silent"]
    kept = [e.snapshot for e in effects if isinstance(e, PersistIncident)][-1]
    assert [part["silent"] for part in kept["nodes"]] == [False, True]


def test_nodes_that_go_on_for_ever_are_not_waited_for_for_ever() -> None:
    node = halting(0, 1)
    incident = node.runs["llama"].incident
    assert incident is not None
    plan = incident.plan
    limit = 8 + (plan.term_grace_ns + plan.kill_grace_ns) / NS_PER_S + 5
    for second in range(9, round(limit)):
        assert not [e for e in play(node, told(second, halt=HALT), tick(second)) if isinstance(e, Term)]
    assert [e for e in play(node, told(limit, halt=HALT), tick(limit + 0.25)) if isinstance(e, Term)]


def test_a_part_that_was_seen_stays_seen() -> None:
    node = halting(0, 1)
    play(node, told(9, halt=replace(HALT, gone=True, stopped=True)), told(10, halt=replace(HALT, stage="TERMED")))
    incident = node.runs["llama"].incident
    assert incident is not None
    part = incident.nodes["node-b"]
    assert (part.stage, part.gone, part.stopped) == ("TERMED", True, True)
    play(node, ProcessesSeen(at(11), incident.incident_id, ()))
    own = incident.own_part("node-a", "aws", "i-1")
    assert (own.gone, own.stopped, own.verified) == (True, False, False)


# --- silence, names ----------------------------------------------------------------------------------------------


def test_silence_alone_halts_nothing_and_is_told_once_and_so_is_its_end() -> None:
    node = member(2, 3)
    effects = play(node, told(2), *(tick(2 + n / 4) for n in range(1, 80)), told(23), tick(24))
    assert [e.name for e in effects if isinstance(e, Alarm) and e.name.startswith("peer")] == [
        "peer_silent", "peer_heard_again",
    ]  # fmt: skip
    assert node.runs["llama"].incident is None


def test_a_node_whose_part_was_over_may_be_silent() -> None:
    node = member(2, 3)
    effects = play(node, told(2, is_alive=False), tick(30))
    assert not [e for e in effects if isinstance(e, Alarm) and e.name == "peer_silent"]


def test_a_machine_with_our_name_is_not_heard() -> None:
    node = member(2, 3)
    effects = play(node, told(2, "node-a", HALT), told(3, "node-a", HALT))
    assert [e.name for e in effects if isinstance(e, Alarm)] == ["peer_same_name"]
    assert node.runs["llama"].incident is None


# --- money -------------------------------------------------------------------------------------------------------


def over_nodes(node: Node, when: float) -> dict[str, Any]:
    status = run_status(node.runs["llama"], at(when))["over_nodes"]
    assert isinstance(status, dict)
    return status


def test_what_all_nodes_have_charged_is_their_sum_whatever_comes_twice_or_late() -> None:
    node = member(2, 3)
    for when, spend in ((2, 5_000_000), (3, 6_000_000), (3, 6_000_000), (4, 5_000_000)):
        play(node, told(when, spend_usd_micros=spend))
    play(node, told(4, "node-c", spend_usd_micros=1, left=(("node-d", 7_000_000), ("node-a", 99_000_000))), tick(4))
    status = over_nodes(node, 4)
    own = node.ledger.spend("llama")
    assert round(status["spend_usd"] * 1e6) == own + 6_000_000 + 1 + 7_000_000, "what others say of us is not ours"
    assert status["left"] == [{"node": "node-d", "spend_usd": 7.0}]
    [reading] = take_snapshot(node, at(4), GovernorHealth(), LagReading(), "").runs
    assert reading.over_nodes == OverNodes(3, UsdMicros(own + 6_000_000 + 1 + 7_000_000))
    assert reading.spend_usd_micros == own, "of a metric of one node, others' money is no part"


def test_the_money_of_a_silent_node_goes_on() -> None:
    node = member(2, 3)
    play(node, told(2, spend_usd_micros=0), tick(2), tick(3602))
    assert round(over_nodes(node, 3602)["spend_usd"] * 1e6) == node.ledger.spend("llama") + PRICE


def test_any_node_halts_at_the_ceiling_of_all() -> None:
    node = make_node(rule("budget"), budget=Budget(ceiling_usd_micros=UsdMicros(300_000_000)), has_peers=True)
    play(node, tick(0), hello(2, 0, world_size=4, job=JOB), a_step(1, 2, 1), tick(1))
    assert not [e for e in play(node, told(2, spend_usd_micros=200_000_000), tick(2)) if isinstance(e, Ask | Term)]
    effects = play(node, told(3, spend_usd_micros=299_000_000), tick(3))
    assert [e for e in effects if isinstance(e, Ask | Term)]


def test_what_other_nodes_have_charged_outlives_a_restart_of_the_governor() -> None:
    node = member(2, 3)
    play(node, told(2, spend_usd_micros=5_000_000), tick(2))
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(2))))
    again = make_node(boot=3, has_peers=True)
    restore_runs(again, [row], BootNs(at(3)), at(3))
    assert again.runs["llama"].history.members.charged == {"node-b": 5_000_000}


# --- a rank that heard first -------------------------------------------------------------------------------------


def test_a_joiner_counts_what_its_ranks_say_of_the_halt_that_they_obey() -> None:
    """A rank learns of it from the job's store, before any governor says so, and speaks of it by that name."""
    node = member(2, 3)
    obeyed = Ack(at(2), hello(2).connection, "llama", 2, 1, "llama.node-x.4", "received", exit_after=True)
    play(node, obeyed, replace(obeyed, at=at(2.1), what="agreed", step=9), replace(obeyed, at=at(2.2), what="saving"))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert (incident.incident_id, incident.agreed_step, incident.halt.stage) == ("llama.node-a.1", 9, HaltState.SAVING)
    again = incident_of(json.loads(json.dumps(incident_snapshot(node, incident))))
    assert again.is_of("llama.node-x.4")


def test_no_checkpoint_is_waited_for_that_a_silent_nodes_ranks_would_have_to_vote_for() -> None:
    node = member(2, 3)
    play(node, told(2), *(tick(2 + n / 4) for n in range(1, 30)))
    effects = play(node, OperatorHalt(at(10), "llama", "enough", 0))
    assert not [effect for effect in effects if isinstance(effect, Ask)]
    assert [effect for effect in effects if isinstance(effect, Term)]


def test_an_incident_is_found_by_the_name_that_all_nodes_have_for_it() -> None:
    ours, other = {"incident_id": "a.x.1", "called": "a.b.1"}, {"incident_id": "a.b.10"}
    assert matching([ours, other], "a.b.1") == [ours]
    assert matching([ours, other], "a.x.1") == [ours]


def test_a_node_whose_ranks_ended_before_it_heard_of_the_halt_does_the_rest_of_its_part() -> None:
    """A frozen node goes on, its ranks fail at once, and the governors' handshake takes a second longer."""
    node = member(2, 3)
    play(node, TrainerExited(at(2), "llama", 1))
    assert not node.runs["llama"].run.alive
    effects = play(node, told(3, halt=HALT))
    assert [type(effect) for effect in effects if isinstance(effect, Ask | Term)] == [Term]
    incident = node.runs["llama"].incident
    assert incident is not None
    assert [e for e in play(node, ProcessesSeen(at(4), incident.incident_id, ())) if isinstance(e, StopCompute)]
    done = member(2, 3)
    play(done, *(Bye(at(2), hello(rank).connection, "llama", rank, 1, completed=True) for rank in (2, 3)))
    play(done, TrainerExited(at(2), "llama", 0), told(3, halt=HALT))
    assert done.runs["llama"].incident is None, "it trained to its end"


def test_a_governor_that_begins_again_and_hears_of_the_halt_before_its_ranks_speak_knows_whom_to_end() -> None:
    node = member(2, 3)
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(2))))
    again = make_node(boot=3, has_peers=True)
    restore_runs(again, [row], BootNs(at(3)), at(3))
    play(again, tick(3), told(3.1, halt=HALT))
    incident = again.runs["llama"].incident
    assert incident is not None
    assert [process.pid for process in incident.rank_processes] == [102, 103]


def test_a_halt_that_ranks_told_of_first_is_called_as_the_known_node_calls_it() -> None:
    """Else this node's own id, which comes first by the alphabet, would become the name of all."""
    node = member(2, 3)
    play(node, told(1.5))
    ack = Ack(at(2), hello(2).connection, "llama", 2, 1, "llama.node-b.4", "received", exit_after=True)
    play(node, ack)
    incident = node.runs["llama"].incident
    assert incident is not None
    assert (incident.incident_id, incident.called, incident.decided_by) == (
        "llama.node-a.1",
        "llama.node-b.4",
        "node-b",
    )
    invented = member(2, 3)
    play(invented, told(1.5), replace(ack, incident_id="prod.node-b.4"))
    other = invented.runs["llama"].incident
    assert other is not None
    assert other.called == "llama.node-a.1", "of another run it names nothing"


def test_the_reserve_of_every_node_has_the_halts_of_all_and_the_wait_of_rank_0s_node() -> None:
    """By hand: both rates for the whole halt, and for rank 0's node 5 s and both signals' times beside."""
    budget = Budget(ceiling_usd_micros=UsdMicros(300_000_000))
    with_first = make_node(rule("budget"), budget=budget, has_peers=True)
    play(with_first, tick(0), hello(2, 0, world_size=4, job=JOB), a_step(1, 2, 1), tick(1), told(2), tick(2))
    without = make_node(rule("budget"), budget=budget, has_peers=True)
    play(without, tick(0), hello(2, 0, world_size=4, job=JOB), a_step(1, 2, 1), tick(1), told(2), tick(2))
    play(with_first, told(2, has_first=True), tick(2.25))
    play(without, tick(2.25))
    held = [node.runs["llama"].run.caps[0].reserve_usd_micros for node in (with_first, without)]
    halt = make_node().policies.policies[0].halt
    wait_ns = 5 * NS_PER_S + halt.term_grace_ns + halt.kill_grace_ns
    assert held[0] - held[1] in range(PRICE * wait_ns // NS_PER_HOUR, PRICE * wait_ns // NS_PER_HOUR + 2)
