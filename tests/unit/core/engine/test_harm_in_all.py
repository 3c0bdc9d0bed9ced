"""A tensor that is not finite in all checkpoints, while the loss went on finite, is a remark and takes nothing away."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.policy import Mode
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
from governor.core.events.effects import Alarm, Effect, FindLastGood
from governor.core.events.inputs import TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.runs import intake
from governor.core.runs.last_good import UNKNOWN, LastGood, after_looks
from governor.reports.incident import incident_markdown
from governor.reports.resume_text import refused, resume_command
from governor.text.moments import last_good_text, moments
from tests.unit.core.engine.test_step import a_step, ack, at, hello, make_node, only, play, rule, training

MASK = "model.safetensors: amin"
FEW = "0123456789abcdef"
STEPS = (10, 20, 28)
LAST = 31


def named(step: int, **said: bool) -> NamedCheckpoint:
    """By a shim that has looked at all trained parameters of all ranks."""
    return NamedCheckpoint(step, f"/ck/{step}", mono_ns=at(30 + step / 1000), **({"trained_finite": True} | said))


def trained(loss: float | None = 2.0) -> Node:
    """A run whose framework has saved by itself, and has gone on for a step."""
    node = make_node(rule(checkpoint="good"))
    training(node)
    for step in STEPS:
        play(node, hello(when=30 + step / 1000, last_good=named(step)))
    play(node, a_step(LAST, 0, when=30.5, loss=loss))
    return node


def harmed(step: int, few: str | None = FEW, **found: Any) -> CheckpointSeen:
    return replace(CheckpointSeen(f"/ck/{step}", True, "is there", nonfinite=MASK, few_harmed=few), **found)


def answer(asked: FindLastGood, *looks: CheckpointSeen) -> LastGoodSeen:
    return LastGoodSeen(at(33), asked.run, asked.asked, looks)


def ended(node: Node, *looks: CheckpointSeen) -> list[Effect]:
    asked = only(play(node, TrainerExited(at(31), "llama", 1)), FindLastGood)
    return play(node, answer(asked, *looks))


def halted(node: Node) -> FindLastGood:
    return only(play(node, OperatorHalt(at(31), "llama", "enough", 0)), FindLastGood)


def alarms(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


def test_the_newest_stays_the_last_good_one_with_a_remark() -> None:
    node = trained()
    assert alarms(ended(node, harmed(28), harmed(20), harmed(10))) == []
    run = node.runs["llama"].run
    assert run.last_good is not None
    assert (run.last_good.step, run.last_good.is_fit, run.last_good.passed_over) == (28, True, ())
    assert last_good_text(run.last_good.row()) == f"/ck/28 (not finite in all: {MASK})"
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(34))))
    assert intake.restored(row, at(35), same_boot=True).last_good == run.last_good


def test_one_that_is_cut_short_is_passed_over_as_ever() -> None:
    node = trained()
    assert alarms(ended(node, harmed(28, torn="cut"), harmed(20), harmed(10))) == ["checkpoint_torn"]
    run = node.runs["llama"].run
    assert run.last_good is not None
    assert (run.last_good.step, run.last_good.nonfinite_in_all) == (20, MASK)
    assert [(one.step, one.torn, one.nonfinite) for one in run.last_good.passed_over] == [(28, "cut", MASK)]


def test_where_nobody_has_looked_at_the_trained_parameters_the_remark_says_so() -> None:
    """It may be an expert that is seldom routed to, which no loss needed yet."""
    node = make_node(rule(checkpoint="good"))
    training(node)
    play(node, hello(when=30.02, last_good=named(20, trained_finite=False)), a_step(LAST, 0, when=30.5))
    ended(node, harmed(20))
    last_good = node.runs["llama"].run.last_good
    assert last_good is not None
    assert last_good.is_fit
    told = last_good_text(last_good.row())
    assert told == f"/ck/20 (not finite in all: {MASK}; nobody has said that it is no trained weight)"


def test_of_ranks_that_each_have_looked_at_their_part_all_have_to_say_so() -> None:
    node = make_node(rule(checkpoint="good"))
    training(node)
    own = named(20, trained_finite=False, own_finite=True)
    run = node.runs["llama"].run
    for rank, (step, is_known) in enumerate([(20, False), (20, True)]):
        play(node, hello(rank, when=30.1 + rank, last_good=replace(own, step=step, mono_ns=at(30.1 + rank))))
        assert run.last_good is not None
        assert run.last_good.trained_finite is is_known
    play(node, hello(0, when=32, last_good=replace(own, step=30, mono_ns=at(32))))
    assert run.last_good is not None
    assert (run.last_good.step, run.last_good.trained_finite) == (30, False), "the other rank speaks of step 20"


@pytest.mark.parametrize(
    ("path", "step", "is_withdrawn"), [("/ck/20", 20, True), ("/ck/20", 10, False), ("/ck/10", 20, False)]
)
def test_what_a_rank_has_seen_to_be_harmed_in_its_part_is_not_needless(
    path: str, step: int, is_withdrawn: bool
) -> None:
    """Another rank's part was finite, and it has named the checkpoint as good."""
    node = make_node(rule(checkpoint="good"))
    training(node)
    harmed_save = NamedCheckpoint(step, path)
    play(node, hello(1, when=30.01, harmed_save=harmed_save))
    play(node, hello(0, when=30.02, last_good=named(20, trained_finite=False)), a_step(LAST, 0, when=30.5))
    assert alarms(ended(node, harmed(20))) == ["checkpoint_nonfinite"] * is_withdrawn
    last_good = node.runs["llama"].run.last_good
    assert last_good is not None
    assert last_good.nonfinite == ("a trained parameter, says rank 1" if is_withdrawn else None)


OTHERS = "fedcba9876543210"


@pytest.mark.parametrize(
    ("looks", "step", "remark"),
    [
        ((harmed(28), harmed(20), harmed(10, nonfinite=None, few_harmed=None)), 10, None),
        ((harmed(28, OTHERS), harmed(20), harmed(10)), 20, MASK),
        ((harmed(28, None), harmed(20), harmed(10)), 20, MASK),
        ((harmed(28, OTHERS), harmed(20, OTHERS), harmed(10)), 10, MASK),
        ((harmed(28, None), harmed(20, None), harmed(10, None)), 28, None),
        ((harmed(28), harmed(20), harmed(10, None)), 28, None),
    ],
    ids=[
        "an older one is finite", "others are harmed than before", "most are harmed", "of the oldest too",
        "most in all", "fewer than in the oldest",
    ],
)  # fmt: skip
def test_those_in_which_more_is_harmed_than_in_the_oldest_are_withdrawn(
    looks: tuple[CheckpointSeen, ...], step: int, remark: str | None
) -> None:
    node = trained()
    withdrawn = [one for one in STEPS if one > step or step == 28]
    assert alarms(ended(node, *looks)) == ["checkpoint_nonfinite"] * len(withdrawn)
    run = node.runs["llama"].run
    assert run.last_good is not None
    assert (run.last_good.step, run.last_good.is_fit, run.last_good.nonfinite_in_all) == (step, step != 28, remark)


def test_a_loss_that_nobody_knows_proves_nothing() -> None:
    assert alarms(ended(trained(loss=None), harmed(28), harmed(20), harmed(10))) == ["checkpoint_nonfinite"] * 3


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_verdict_on_the_loss_is_believed_whatever_the_loss_is_after_it(loss: float, rank: int) -> None:
    node = make_node(rule(checkpoint="good"))
    training(node)
    for step in (30, LAST):
        play(node, hello(when=30 + step / 1000, last_good=named(step, trained_finite=False)))
    asked = only(play(node, a_step(LAST, rank, when=30.7, loss=loss)), FindLastGood)
    play(node, a_step(LAST + 1, 0, when=30.8), a_step(LAST + 1, 1, when=30.8))
    assert alarms(play(node, answer(asked, harmed(LAST), harmed(30)))) == ["checkpoint_nonfinite"] * 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_the_finite_losses_before_a_verdict_on_the_loss_vouch_for_what_was_saved_before_them(
    loss: float, rank: int
) -> None:
    """The buffer that nobody needs was NaN in each of them, and the loss was finite for twenty steps more."""
    node = trained()
    asked = only(play(node, a_step(LAST, rank, when=30.7, loss=loss)), FindLastGood)
    assert alarms(play(node, answer(asked, harmed(28), harmed(20), harmed(10)))) == []
    run, incident = node.runs["llama"].run, node.runs["llama"].incident
    assert run.last_good is not None
    assert incident is not None
    assert (run.last_good.step, run.last_good.nonfinite_in_all) == (28, MASK)
    assert incident.last_good == run.last_good


def test_where_the_harm_is_more_than_that_the_verdict_withdraws_all() -> None:
    node = trained()
    asked = only(play(node, a_step(LAST, 0, when=30.7, loss=float("nan"))), FindLastGood)
    effects = play(node, answer(asked, harmed(28, None), harmed(20, None), harmed(10, None)))
    assert alarms(effects) == ["checkpoint_nonfinite"] * 3


def test_the_losses_of_an_attempt_before_this_one_vouch_for_nothing() -> None:
    node = trained()
    run = node.runs["llama"].run
    assert run.finite_step == LAST
    intake.begin_attempt(run, "anew", at(32))
    assert run.finite_step is None


def test_the_loss_of_each_rank_counts_where_no_rule_halts() -> None:
    node = make_node(rule(mode=Mode.OBSERVE))
    training(node)
    play(
        node,
        hello(when=30.1, last_good=named(30, trained_finite=False)),
        a_step(LAST, 1, loss=float("nan")),
        a_step(LAST, 0),
    )
    assert node.runs["llama"].incident is None
    assert alarms(ended(node, harmed(30))) == ["checkpoint_nonfinite"]


def test_what_was_refused_is_not_pardoned_by_the_loss_of_a_later_attempt() -> None:
    node = make_node(rule())
    training(node)
    play(node, hello(when=30.2, last_good=named(30, trained_finite=False)))
    asked = only(play(node, a_step(31, 0, when=30.5, loss=float("nan"))), FindLastGood)
    assert alarms(play(node, answer(asked, harmed(30)))) == ["checkpoint_nonfinite"]
    run = node.runs["llama"].run
    refused_before = run.last_good
    assert refused_before is not None
    assert not refused_before.is_fit
    seen = answer(asked, harmed(30))
    assert after_looks(refused_before, (), seen, vouched_before=99).nonfinite == MASK
    assert after_looks(LastGood.named(named(30)), (), seen, vouched_before=99).nonfinite_in_all == MASK


@pytest.mark.parametrize("steps_after", [0, 1])
@pytest.mark.parametrize(("few", "is_withdrawn"), [(FEW, False), (None, True)])
def test_the_only_one_is_offered_where_no_loss_speaks_against_it(
    steps_after: int, few: str | None, is_withdrawn: bool
) -> None:
    """Without it training begins from nothing. Of its own step there may be no later loss."""
    node = make_node(rule())
    training(node)
    play(node, hello(when=30.2, last_good=named(31)), a_step(31 + steps_after, 0, when=30.1))
    assert alarms(ended(node, harmed(31, few))) == ["checkpoint_nonfinite"] * is_withdrawn
    last_good = node.runs["llama"].run.last_good
    assert last_good is not None
    remark = f"(NOT FINITE: {MASK})" if is_withdrawn else f"(not finite in all: {MASK})"
    assert last_good_text(last_good.row()).endswith(remark)


@pytest.mark.parametrize(
    ("steps_after", "trained_finite", "few", "is_withdrawn"),
    [(0, False, FEW, True), (1, False, FEW, False), (0, True, FEW, False), (0, True, None, True)],
)
def test_of_the_only_one_the_loss_after_it_decides_unless_the_trainer_saw_what_it_trains(
    steps_after: int, trained_finite: bool, few: str | None, is_withdrawn: bool
) -> None:
    """A loss that is not finite was computed from those weights, or from the next ones, or from bad data."""
    node = make_node(rule())
    training(node)
    said = replace(named(31), trained_finite=trained_finite)
    play(node, hello(when=30.2, last_good=said), a_step(31 + steps_after, 0, when=30.1))
    asked = only(play(node, a_step(32 + steps_after, 0, when=30.5, loss=float("nan"))), FindLastGood)
    assert alarms(play(node, answer(asked, harmed(31, few)))) == ["checkpoint_nonfinite"] * is_withdrawn


@pytest.mark.parametrize(("few", "is_withdrawn"), [(FEW, False), ("fedcba9876543210", True), (None, True)])
def test_what_the_loss_was_once_seen_not_to_need_is_remembered_for_the_only_one_of_the_last_step(
    few: str | None, is_withdrawn: bool
) -> None:
    node = trained()
    ended(node, harmed(28), harmed(20), harmed(10))
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(34))))
    run = intake.restored(row, at(35), same_boot=True)
    for step in range(40, 50):
        run.name_last_good(named(step, trained_finite=False), at(36))
    assert run.last_good is not None
    gone = [CheckpointSeen(one.path or "", False, "is gone") for one in run.named_before]
    asked = LookedFor(at(37), (run.last_good.as_named, *(one.as_named for one in run.named_before)))
    seen = LastGoodSeen(at(38), "llama", asked, (harmed(49, few), *gone))
    found = after_looks(run.last_good, run.named_before, seen, vouched_before=49)
    assert (found.step, found.is_fit) == (49, not is_withdrawn)
    assert found.nonfinite_in_all == (None if is_withdrawn else f"{MASK}; {UNKNOWN}")


# --- the checkpoint that a halt saves --------------------------------------------------------------------------------

OWN = "/ck/cg_33"


def saved(node: Node, few: str | None = FEW) -> list[Effect]:
    """A halt has saved as good, and that was read before the looks at the others have ended."""
    play(node, ack("received", 31.1))
    record = {"path": OWN, "manifest": f"{OWN}/manifest.json", "files": 4, "kind": "good", "trained_finite": True}
    play(node, ack("saved", 33.5, step=33, checkpoint=record))
    incident = node.runs["llama"].incident
    assert incident is not None
    incident.resume = "costgov run -- python t.py"
    look = CheckpointLook(True, 4, 4, "as found", "it holds enough", nonfinite=MASK, few_harmed=few)
    return play(node, CheckpointRead(at(34), incident.incident_id, look))


def own(few: str | None = FEW) -> CheckpointSeen:
    return replace(harmed(33, few), path=OWN)


def test_that_of_a_halt_is_judged_with_those_before_it_and_stays_good() -> None:
    node = trained()
    halted(node)
    effects = saved(node)
    assert alarms(effects) == []
    asked = only(effects, FindLastGood)
    assert asked.paths == (OWN, "/ck/28", "/ck/20", "/ck/10")
    incident, run = node.runs["llama"].incident, node.runs["llama"].run
    assert incident is not None
    assert last_good_text(incident_snapshot(node, incident)["last_good"]) == (f"{OWN} (it is still being looked at)")
    assert alarms(play(node, answer(asked, own(), harmed(28), harmed(20), harmed(10)))) == []
    assert run.last_good is not None
    assert (run.last_good.step, run.last_good.nonfinite_in_all) == (33, MASK)
    assert incident.last_good == run.last_good
    shown = incident_snapshot(node, incident)
    assert (shown["checkpoint"]["kind"], resume_command(shown), refused(shown)) == ("good", incident.resume, None)
    (read,) = (moment.text for moment in moments(shown) if moment.what == "checkpoint_read")
    assert read.endswith(f"; a few tensors are not finite: {MASK}")
    assert f"(not finite in all: {MASK})" in incident_markdown(shown)


@pytest.mark.parametrize("harm", [None, MASK])
def test_that_of_a_halt_is_withdrawn_where_those_before_it_are_not_so(harm: str | None) -> None:
    node = trained()
    halted(node)
    asked = only(saved(node), FindLastGood)
    before = harmed(28, nonfinite=harm, few_harmed=OTHERS if harm else None)
    assert alarms(play(node, answer(asked, own(), before))) == ["checkpoint_nonfinite"]
    incident, run = node.runs["llama"].incident, node.runs["llama"].run
    assert incident is not None
    assert run.last_good is not None
    assert (run.last_good.step, run.last_good.nonfinite_in_all) == (28, harm)
    shown = incident_snapshot(node, incident)
    assert (shown["checkpoint"]["kind"], shown["checkpoint"]["nonfinite"]) == ("suspect", MASK)
    harmed_own = refused(shown)
    assert harmed_own is not None
    assert harmed_own.path == OWN


def test_most_of_it_is_a_verdict_at_once_and_so_is_any_after_a_verdict_on_the_loss() -> None:
    node = trained()
    halted(node)
    assert alarms(saved(node, None)) == ["checkpoint_nonfinite"]
    node = trained()
    play(node, a_step(LAST, 0, when=30.7, loss=float("nan")))
    assert alarms(saved(node)) == ["checkpoint_nonfinite"]
