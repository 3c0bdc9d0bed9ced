"""What the governor found in a checkpoint decides what the run's last good one is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.engine.node import Node
from governor.core.events.checkpoints import CheckpointRead, LastGood, LastGoodSeen
from governor.core.events.effects import Alarm, Effect, FindLastGood, ReadCheckpoint
from governor.core.events.inputs import TrainerExited
from governor.core.halt.incident import Incident
from tests.unit.core.engine.test_step import a_step, ack, at, hello, make_node, only, play, rule, training

BEFORE = LastGood(20, "/ck/cg_20")
PATH = "/ck/cg_33"


def saved(kind: str = "good", before: bool = True) -> tuple[Node, Incident, list[Effect]]:
    """A run that is being halted and has just saved."""
    node = make_node(rule(checkpoint="good"))
    training(node)
    if before:
        node.runs["llama"].run.set_last_good(20, "/ck/cg_20", at(20))
    play(node, a_step(31, 1, loss=float("inf")), ack("received", 31.1))
    record = {"path": PATH, "manifest": f"{PATH}/manifest.json", "files": 4, "kind": kind}
    effects = play(node, ack("saved", 31.5, step=33, checkpoint=record))
    incident = node.runs["llama"].incident
    assert incident is not None
    return node, incident, effects


def read(node: Node, whole: bool | None = True, **found: Any) -> list[Effect]:
    return play(node, CheckpointRead(at(32), "llama.node-a.1", whole, 4, 4, "as found", **found))


def test_it_is_read_as_the_user_of_the_run_and_the_group_of_the_rank_that_saved() -> None:
    node = make_node()
    training(node)
    for rank in node.runs["llama"].run.ranks.values():
        rank.peer = replace(rank.peer, gid=4_000 + rank.rank)
    play(node, a_step(31, 1, loss=float("inf")))
    record = {"path": PATH, "manifest": f"{PATH}/manifest.json", "kind": "suspect"}
    effect = only(play(node, ack("saved", 31.5, rank=1, step=33, checkpoint=record)), ReadCheckpoint)
    assert effect == ReadCheckpoint("llama.node-a.1", "llama", PATH, f"{PATH}/manifest.json", 1000, 4_001)


def test_a_good_checkpoint_that_is_whole_is_the_last_good_one() -> None:
    node, incident, _ = saved()
    read(node, counted="its files hold 1.0 GB")
    assert node.runs["llama"].run.last_good == LastGood(33, PATH) == incident.last_good
    assert incident.timeline[-1]["detail"]["counted"] == "its files hold 1.0 GB"


@pytest.mark.parametrize(("before", "last"), [(True, BEFORE), (False, None)])
@pytest.mark.parametrize("found", [{"whole": False}, {"nonfinite": "model.safetensors: lm_head"}])
def test_one_that_is_torn_or_not_finite_gives_the_place_back(
    found: dict[str, Any], before: bool, last: LastGood | None
) -> None:
    node, incident, _ = saved(before=before)
    effects = read(node, **found)
    run = node.runs["llama"].run
    assert run.last_good == last == incident.last_good
    assert run.last_good_at is None, "unknown, so that no work counts as saved that is not"
    alarms = [effect.name for effect in effects if isinstance(effect, Alarm)]
    assert alarms == (["checkpoint_torn"] if "whole" in found else ["checkpoint_nonfinite"])


def test_a_good_one_with_weights_that_are_not_finite_is_suspect_and_a_suspect_one_stays_so() -> None:
    node, incident, _ = saved()
    read(node, nonfinite="model.safetensors: lm_head")
    assert incident.checkpoint is not None
    assert (incident.checkpoint["kind"], incident.checkpoint["verified_by"]) == ("suspect", "governor")
    assert incident.checkpoint["nonfinite"] == "model.safetensors: lm_head"

    node, incident, _ = saved("suspect")
    assert not [effect for effect in read(node, nonfinite="x") if isinstance(effect, Alarm)], "nobody said otherwise"
    assert node.runs["llama"].run.last_good == BEFORE


def test_a_save_of_before_the_verdict_that_ends_after_it_is_the_last_good_one() -> None:
    """Its files become durable beside the steps that follow. One of a step after the verdict has the broken weights."""
    node = make_node(rule())
    training(node)
    node.runs["llama"].run.set_last_good(20, "/ck/cg_20", at(20))
    play(node, a_step(31, 1, loss=float("inf")))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.last_good == BEFORE
    assert incident.step is not None
    finished = LastGood(incident.step, "/ck/cg_30")
    play(node, hello(when=31.2, last_good=finished))
    assert incident.last_good == finished
    play(node, hello(when=31.3, last_good=LastGood(incident.step + 1, "/ck/cg_31")))
    assert incident.last_good == finished


def test_not_read_is_no_verdict() -> None:
    node, incident, _ = saved()
    read(node, whole=None)
    assert incident.checkpoint is not None
    assert incident.checkpoint["verified_by"] == "trainer"
    assert node.runs["llama"].run.last_good == LastGood(33, PATH)


# --- the last good one, before it is told -----------------------------------------------------------------------


def finds(effects: list[Effect]) -> list[str]:
    return [effect.path for effect in effects if isinstance(effect, FindLastGood)]


def seen(there: bool | None, reason: str = "is no longer there") -> LastGoodSeen:
    return LastGoodSeen(at(33), "llama", "/ck/cg_20", there, reason)


def test_it_is_looked_for_at_the_verdict_after_a_save_beside_it_and_at_the_end_of_the_run() -> None:
    node, _, effects = saved("suspect")
    assert finds(effects) == ["/ck/cg_20"]
    assert finds(saved()[2]) == [], "the one that was just saved is read anyway"
    assert finds(read(saved()[0], whole=False)) == ["/ck/cg_20"], "it is told again"

    node = make_node()
    training(node)
    node.runs["llama"].run.set_last_good(20, "/ck/cg_20", at(20))
    assert finds(play(node, a_step(31, 1, loss=float("inf")))) == ["/ck/cg_20"]
    node = make_node()
    training(node)
    node.runs["llama"].run.set_last_good(20, "/ck/cg_20", at(20))
    assert finds(play(node, TrainerExited(at(31), "llama", 0))) == ["/ck/cg_20"]


def test_one_that_is_gone_is_said_once_and_counts_no_work_as_saved() -> None:
    node, incident, _ = saved("suspect")
    run = node.runs["llama"].run
    alarms = [effect for effect in play(node, seen(False), seen(False)) if isinstance(effect, Alarm)]
    assert [alarm.name for alarm in alarms] == ["last_good_gone"]
    assert run.last_good == replace(BEFORE, gone="is no longer there") == incident.last_good
    assert run.last_good_at is None
    play(node, seen(True, "is there"))
    assert run.last_good == BEFORE == incident.last_good


def test_one_that_cannot_be_seen_is_not_gone_and_an_older_answer_changes_nothing() -> None:
    node, incident, _ = saved("suspect")
    assert not [effect for effect in play(node, seen(None, "not visible here")) if isinstance(effect, Alarm)]
    assert incident.last_good == replace(BEFORE, unseen="not visible here")
    run = node.runs["llama"].run
    run.set_last_good(40, "/ck/cg_40", at(40))
    assert play(node, seen(False)) == []
    assert run.last_good == LastGood(40, "/ck/cg_40")
