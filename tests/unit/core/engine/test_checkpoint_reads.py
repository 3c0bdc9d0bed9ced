"""What the governor found in a checkpoint decides what the run's last good one is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.units import NS_PER_S
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.checkpoints import (
    CheckpointLook,
    CheckpointRead,
    CheckpointSeen,
    LastGoodSeen,
    LookedFor,
    NamedCheckpoint,
)
from governor.core.events.effects import Alarm, Effect, FindLastGood, ReadCheckpoint
from governor.core.events.inputs import TrainerExited
from governor.core.halt.incident import Incident
from governor.core.runs import intake
from governor.core.runs.last_good import NAMED_BEFORE_MAX, LastGood
from governor.reports.incident import incident_markdown, timeline_lines
from governor.reports.resume_text import resume_command
from tests.unit.core.engine.test_step import a_step, ack, at, hello, make_node, only, play, rule, training

BEFORE = LastGood(20, "/ck/cg_20")
PATH = "/ck/cg_33"


def saved(kind: str = "good", before: bool = True) -> tuple[Node, Incident, list[Effect]]:
    """A run that is being halted and has just saved."""
    node = make_node(rule(checkpoint="good"))
    training(node)
    if before:
        node.runs["llama"].run.name_last_good(NamedCheckpoint(20, "/ck/cg_20"), at(20))
    play(node, a_step(31, 1, loss=float("inf")), ack("received", 31.1))
    record = {"path": PATH, "manifest": f"{PATH}/manifest.json", "files": 4, "kind": kind}
    effects = play(node, ack("saved", 31.5, step=33, checkpoint=record))
    incident = node.runs["llama"].incident
    assert incident is not None
    return node, incident, effects


def read(node: Node, whole: bool | None = True, **found: Any) -> list[Effect]:
    look = CheckpointLook(whole, 4, 4, "as found", **found)
    return play(node, CheckpointRead(at(32), "llama.node-a.1", look))


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


def test_a_trainer_names_none_that_was_before_and_no_reason() -> None:
    node = make_node(rule(checkpoint="good"))
    training(node)
    play(node, a_step(31, 1, loss=float("inf")), ack("received", 31.1))
    found = {"nonfinite": "n", "hashes_equal": 9, "last_good_before": {"step": 7, "path": "/never/named"}}
    play(node, ack("saved", 31.5, step=33, checkpoint={"path": PATH, "manifest": "m", "kind": "good", **found}))
    read(node, whole=False)
    assert node.runs["llama"].run.last_good == LastGood(33, PATH, torn="as found", refused_mono_ns=at(32))


def test_what_was_trained_while_a_checkpoint_was_written_is_unsaved() -> None:
    node = make_node(rule(checkpoint="good"))
    training(node)
    play(node, a_step(31, 1, loss=float("inf")), ack("received", 31.1))
    record = {"path": PATH, "manifest": "m", "kind": "good", "mono_ns": at(24)}
    play(node, ack("saved", 31.5, step=24, checkpoint=record))
    run = node.runs["llama"].run
    assert (run.last_good_at, run.unsaved_ns(at(32))) == (at(24), 8 * NS_PER_S)


def test_what_of_its_weights_was_not_looked_into_is_said_of_it() -> None:
    node, incident, _ = saved()
    read(node, unsampled="model.npz")
    run = node.runs["llama"].run
    assert run.last_good == LastGood(33, PATH, unsampled="model.npz") == incident.last_good
    assert run.last_good_at == at(31.5)
    assert "its weights were not looked into: model.npz" in incident_markdown(incident_snapshot(node, incident))


def test_one_that_is_torn_and_not_finite_is_both_and_passed_over_once() -> None:
    node, incident, _ = saved()
    read(node, whole=False, nonfinite="model.safetensors: lm_head")
    both = LastGood(33, PATH, torn="as found", nonfinite="model.safetensors: lm_head", refused_mono_ns=at(32))
    assert incident.last_good == replace(BEFORE.pending(), passed_over=(both,))


UNFIT: list[dict[str, Any]] = [{"whole": False}, {"nonfinite": "model.safetensors: lm_head"}]


def refused_for(found: dict[str, Any]) -> LastGood:
    marks = {"torn": "as found"} if "whole" in found else found
    return LastGood(33, PATH, **marks, refused_mono_ns=at(32))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("found", UNFIT)
def test_one_that_is_torn_or_not_finite_gives_the_place_back(found: dict[str, Any], before: bool) -> None:
    """Where none was before it stays in its place, and is called what it is."""
    node, incident, _ = saved(before=before)
    effects = read(node, **found)
    run = node.runs["llama"].run
    refused = refused_for(found)
    last = replace(BEFORE.pending(), passed_over=(refused,)) if before else refused
    assert run.last_good == last == incident.last_good
    assert run.last_good_at is None, "unknown, so that no work counts as saved that is not"
    alarms = [effect.name for effect in effects if isinstance(effect, Alarm)]
    assert alarms == (["checkpoint_torn"] if "whole" in found else ["checkpoint_nonfinite"])


@pytest.mark.parametrize("found", UNFIT)
def test_one_that_was_refused_with_none_before_it_is_not_offered_again(found: dict[str, Any]) -> None:
    node, incident, _ = saved(before=False)
    incident.resume = "cd /w && costgov run --name llama -- python t.py"
    assert finds(read(node, **found)) == [], "a look compares no hashes, and would find it whole"
    shown = incident_snapshot(node, incident)
    assert resume_command(shown) is None, "a good save moves `latest`, which names it"
    assert f"resume        not shown: no known checkpoint is {'whole' if 'whole' in found else 'finite'}" in (
        "\n".join(timeline_lines(shown))
    )
    play(node, hello(when=34, last_good=NamedCheckpoint(33, PATH, mono_ns=at(31.5))))
    assert node.runs["llama"].run.last_good == refused_for(found), "a rank that repeats itself"


def test_a_good_one_with_weights_that_are_not_finite_is_suspect_and_a_suspect_one_stays_so() -> None:
    node, incident, _ = saved()
    read(node, nonfinite="model.safetensors: lm_head")
    assert incident.checkpoint is not None
    assert (incident.checkpoint["kind"], incident.checkpoint["verified_by"]) == ("suspect", "governor")
    assert incident.checkpoint["nonfinite"] == "model.safetensors: lm_head"

    node, incident, _ = saved("suspect")
    assert not [effect for effect in read(node, nonfinite="x") if isinstance(effect, Alarm)], "nobody said otherwise"
    assert node.runs["llama"].run.last_good == BEFORE.pending()


def test_a_save_of_before_the_verdict_that_ends_after_it_is_the_last_good_one() -> None:
    """Its files become durable beside the steps that follow. One of a step after the verdict has the broken weights."""
    node = make_node(rule())
    training(node)
    node.runs["llama"].run.name_last_good(NamedCheckpoint(20, "/ck/cg_20"), at(20))
    play(node, a_step(31, 1, loss=float("inf")))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.last_good == BEFORE.pending(), "what nobody has looked at is not called good yet"
    assert incident.step is not None
    named = NamedCheckpoint(incident.step, "/ck/cg_30")
    finished = LastGood.named(named)
    play(node, hello(when=31.2, last_good=named))
    assert incident.last_good == finished.pending()
    play(node, hello(when=31.3, last_good=NamedCheckpoint(incident.step + 1, "/ck/cg_31")))
    assert incident.last_good == finished.pending()


def test_not_read_is_no_verdict() -> None:
    node, incident, _ = saved()
    read(node, whole=None)
    assert incident.checkpoint is not None
    assert incident.checkpoint["verified_by"] == "trainer"
    assert node.runs["llama"].run.last_good == LastGood(33, PATH)


# --- the last good one, before it is told -----------------------------------------------------------------------


def finds(effects: list[Effect]) -> list[str]:
    return [path for effect in effects if isinstance(effect, FindLastGood) for path in effect.paths]


def seen(there: bool | None, reason: str = "is no longer there") -> LastGoodSeen:
    asked = LookedFor(at(33), (BEFORE.as_named,))
    return LastGoodSeen(at(33.5), "llama", asked, (CheckpointSeen("/ck/cg_20", there, reason),))


def test_it_is_looked_for_at_the_verdict_after_a_save_beside_it_and_at_the_end_of_the_run() -> None:
    node, _, effects = saved("suspect")
    assert finds(effects) == ["/ck/cg_20"]
    assert finds(saved()[2]) == [], "the one that was just saved is read anyway"
    assert finds(read(saved()[0], whole=False)) == ["/ck/cg_20"], "it is told again"

    node = make_node()
    training(node)
    node.runs["llama"].run.name_last_good(NamedCheckpoint(20, "/ck/cg_20"), at(20))
    assert finds(play(node, a_step(31, 1, loss=float("inf")))) == ["/ck/cg_20"]
    node = make_node()
    training(node)
    node.runs["llama"].run.name_last_good(NamedCheckpoint(20, "/ck/cg_20"), at(20))
    assert finds(play(node, TrainerExited(at(31), "llama", 0))) == ["/ck/cg_20"]


def test_one_that_is_gone_is_said_once_and_counts_no_work_as_saved() -> None:
    node, incident, _ = saved("suspect")
    run = node.runs["llama"].run
    alarms = [effect for effect in play(node, seen(False), seen(False)) if isinstance(effect, Alarm)]
    assert [alarm.name for alarm in alarms] == ["last_good_gone"]
    assert run.last_good == replace(BEFORE, gone="is no longer there", refused_mono_ns=at(33)) == incident.last_good
    assert run.last_good_at is None
    play(node, seen(True, "is there"))
    assert run.last_good == BEFORE == incident.last_good


def test_one_that_cannot_be_seen_is_not_gone_and_an_older_answer_changes_nothing_newer() -> None:
    node, incident, _ = saved("suspect")
    assert not [effect for effect in play(node, seen(None, "not visible here")) if isinstance(effect, Alarm)]
    assert incident.last_good == replace(BEFORE, unseen="not visible here")
    run = node.runs["llama"].run
    run.name_last_good(NamedCheckpoint(40, "/ck/cg_40"), at(40))
    alarms = [effect.name for effect in play(node, seen(False)) if isinstance(effect, Alarm)]
    assert run.last_good == LastGood(40, "/ck/cg_40")
    assert incident.last_good == replace(BEFORE, gone="is no longer there", refused_mono_ns=at(33)), "it names that one"
    assert alarms == ["last_good_gone"]


# --- one that is not finite, and those that were named before it ------------------------------------------------------


HARM = "model.safetensors: lm_head"


def named(*steps: int) -> tuple[Node, list[Effect]]:
    """A run whose framework saves by itself, and the effects of a verdict."""
    node = make_node(rule())
    training(node)
    for step in steps:
        play(node, hello(when=30 + step / 1000, last_good=said(step)))
    return node, play(node, a_step(31, 1, loss=float("inf")))


def said(step: int, after: float = 0.0) -> NamedCheckpoint:
    return NamedCheckpoint(step, f"/ck/checkpoint-{step}", mono_ns=at(30 + step / 1000 + after))


def saved_by_itself(step: int, after: float = 0.0) -> LastGood:
    return LastGood.named(said(step, after))


def looks(**harms: str | None) -> LastGoodSeen:
    """By step: what is not finite in it. None: nothing was seen."""
    found = [CheckpointSeen(f"/ck/checkpoint-{name[1:]}", True, "is there", harm) for name, harm in harms.items()]
    return answer(*found)


def answer(*found: CheckpointSeen) -> LastGoodSeen:
    asked = LookedFor(at(33), tuple(said(int(one.path.rpartition("-")[2])) for one in found))
    return LastGoodSeen(at(33.5), "llama", asked, found)


def test_where_the_newest_is_not_finite_the_one_before_is_the_last_good_and_says_what_was_passed_over() -> None:
    node, effects = named(10, 20, 30)
    assert finds(effects) == ["/ck/checkpoint-30", "/ck/checkpoint-20", "/ck/checkpoint-10"]
    effects = play(node, looks(s30=HARM, s20=HARM, s10=None))
    run, incident = node.runs["llama"].run, node.runs["llama"].incident
    assert incident is not None
    refused = [replace(saved_by_itself(step), nonfinite=HARM, refused_mono_ns=at(33)) for step in (30, 20)]
    assert run.last_good == replace(saved_by_itself(10), passed_over=tuple(refused)) == incident.last_good
    assert run.last_good_at is None, "more work is unsaved than was thought"
    alarms = [effect for effect in effects if isinstance(effect, Alarm)]
    assert [(alarm.name, alarm.text.partition(", is")[0]) for alarm in alarms] == [
        ("checkpoint_nonfinite", "the last good checkpoint, of step 30"),
        ("checkpoint_nonfinite", "a checkpoint that was named as good, of step 20"),
    ]
    assert incident_snapshot(node, incident)["last_good"] == incident.last_good.row()
    play(node, hello(when=34, last_good=said(30)))
    assert run.last_good == incident.last_good, "a rank that repeats itself"
    play(node, hello(when=35, last_good=said(30, after=4)))
    assert run.last_good == saved_by_itself(30, after=4).pending(), "saved again since then"


def test_one_that_was_renamed_since_the_verdict_is_found_by_the_name_that_the_trainer_says() -> None:
    """A trainer keeps the newest good one from what it writes after a NaN: `last.ckpt` is then not what it was."""
    node, _ = named(20, 30)
    moved = NamedCheckpoint(30, "/ck/last-kept-30", mono_ns=said(30).mono_ns)
    play(node, hello(when=31.2, last_good=moved))
    run, incident = node.runs["llama"].run, node.runs["llama"].incident
    assert incident is not None
    asked = LookedFor(at(33), (said(30), moved, said(20)))
    found = [CheckpointSeen(one.path or "", True, "is there", HARM if one == said(30) else None) for one in asked.named]
    play(node, LastGoodSeen(at(33.5), "llama", asked, tuple(found)))
    assert incident.last_good is not None
    assert (incident.last_good.path, [one.path for one in incident.last_good.passed_over]) == (
        "/ck/last-kept-30",
        ["/ck/checkpoint-30"],
    )
    assert run.last_good == LastGood.named(moved)


def test_a_look_alarms_of_what_was_not_known_before_it_alone() -> None:
    node, _ = named(10, 20, 30)
    play(node, looks(s30=HARM, s20=None))
    alarms = [effect for effect in play(node, looks(s20=HARM, s10=None)) if isinstance(effect, Alarm)]
    run = node.runs["llama"].run
    assert run.last_good is not None
    assert [one.step for one in run.last_good.passed_over] == [30, 20]
    assert ["of step 20" in alarm.text for alarm in alarms] == [True]


def test_where_none_is_finite_the_newest_is_named_as_what_it_is() -> None:
    node, _ = named(10, 20)
    effects = play(node, looks(s20=HARM, s10=HARM))
    run = node.runs["llama"].run
    assert run.last_good is not None
    assert not run.last_good.is_fit
    assert (run.last_good.step, [one.step for one in run.last_good.passed_over]) == (20, [10])
    assert len([effect for effect in effects if isinstance(effect, Alarm)]) == 2
    assert play(node, looks(s20=HARM, s10=HARM)) == [], "said already"
    play(node, hello(when=34, last_good=NamedCheckpoint(5, "/ck/checkpoint-5", mono_ns=at(34))))
    assert run.last_good.step == 5, "the run went on from there"
    assert [one.step for one in run.last_good.passed_over] == [20, 10]


def test_what_was_not_looked_at_or_not_looked_into_is_said_so_and_not_passed_over() -> None:
    node, _ = named(10, 20)
    play(node, answer(CheckpointSeen("/ck/checkpoint-20", True, "is there", None, "model.npz")))
    run = node.runs["llama"].run
    assert run.last_good == replace(saved_by_itself(20), unsampled="model.npz")
    play(node, hello(when=34, last_good=said(20)))
    assert run.last_good == replace(saved_by_itself(20), unsampled="model.npz"), "a rank that connects again"
    play(node, looks(s20=HARM))
    assert run.last_good is not None
    assert (run.last_good.step, run.last_good.unseen) == (10, "not looked at")


def test_a_restarted_governor_knows_what_was_named_before_and_what_was_passed_over() -> None:
    node, _ = named(10, 20, 30)
    play(node, looks(s30=HARM, s20=None))
    run = node.runs["llama"].run
    assert run.last_good is not None
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(34))))
    again = intake.restored(row, at(35), same_boot=True)
    assert (again.last_good, again.named_before) == (run.last_good, run.named_before)
    assert again.last_good is not None
    assert again.last_good.refuses(said(30))
    other_boot = intake.restored(row, at(35), same_boot=False)
    assert other_boot.last_good is not None
    assert not other_boot.last_good.refuses(said(30)), "its clock began anew"


def test_no_more_are_remembered_than_are_looked_at() -> None:
    _, effects = named(*range(1, 30))
    assert len(finds(effects)) == NAMED_BEFORE_MAX + 1


def test_what_names_no_file_is_not_remembered() -> None:
    node = make_node(rule())
    training(node)
    for step, path in enumerate(("/ck/1", "/" + "n" * 4096, "/ck/\ud800", None, "/ck/5"), 1):
        play(node, hello(when=30 + step / 1000, last_good=NamedCheckpoint(step, path)))
    assert finds(play(node, a_step(31, 1, loss=float("inf")))) == ["/ck/5", "/ck/\ud800", "/ck/1"]


def test_one_that_is_torn_is_passed_over_and_said() -> None:
    node, _ = named(10, 20)
    run, incident = node.runs["llama"].run, node.runs["llama"].incident
    assert incident is not None
    torn = CheckpointSeen("/ck/checkpoint-20", True, "is there", torn="model.safetensors is empty")
    seen = answer(torn, CheckpointSeen("/ck/checkpoint-10", True, "is there"))
    alarms = [effect for effect in play(node, seen) if isinstance(effect, Alarm)]
    assert run.last_good is not None
    assert (run.last_good.step, [one.torn for one in run.last_good.passed_over]) == (10, ["model.safetensors is empty"])
    assert [alarm.name for alarm in alarms] == ["checkpoint_torn"]
    assert "is not whole: model.safetensors is empty; do not resume from it" in alarms[0].text
    assert incident.last_good == run.last_good
    play(node, hello(when=34, last_good=said(20)))
    assert run.last_good == incident.last_good, "a rank that repeats itself"
