"""Which scheduler's job a halt ends, and when it ends processes alone: never the machine, which is the scheduler's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId, SchedulerFacts, SchedulerJob
from governor.core.base.policy import HaltSettings
from governor.core.engine.halt_plan import job_of
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.node import Node, NodeFacts
from governor.core.engine.stops.replies import job_to_end
from governor.core.events.effects import StopCompute
from governor.core.events.inputs import Hello, LaunchersSeen, ProcessesSeen, StopAnswer, StopReplied
from governor.core.events.operators import OperatorHalt
from governor.core.halt.table import StopTarget
from governor.core.runs.state import Run
from tests.unit.core.engine.test_step import ack, at, hello, make_node, play, tick

SLURM = SchedulerFacts(name="slurm")
KUBERNETES = SchedulerFacts(name="kubernetes")
PLACE = "/kubepods/pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9/ab"


def node_of(scheduler: SchedulerFacts, stop: str = "auto", label: str = "", **facts: object) -> Node:
    node = make_node(scheduler=scheduler, **facts)
    labels = {"scheduler_job": label} if label else {}
    play(node, tick(0), hello(0, world_size=1, labels=labels))
    managed = node.runs["llama"]
    managed.policy = replace(managed.policy, halt=HaltSettings(stop=stop))
    return node


def beside(label: str) -> Hello:
    """Another run's only rank."""
    other = hello(0, 1, run="other", world_size=1, labels={"scheduler_job": label})
    return replace(other, connection=ConnectionId(9), peer=hello(9).peer)


def halted(node: Node) -> StopTarget:
    play(node, OperatorHalt(at(31), "llama", "enough", 0))
    incident = node.runs["llama"].incident
    assert incident is not None
    return incident.plan.stop


@pytest.mark.parametrize(
    ("scheduler", "stop", "label", "target"),
    [
        (SLURM, "auto", "4711", StopTarget.JOB),
        (SLURM, "job", "4711_2", StopTarget.JOB),
        (SLURM, "auto", "slurm:4711", StopTarget.JOB),
        (replace(SLURM, job="4711"), "auto", "", StopTarget.JOB),
        (KUBERNETES, "auto", "kubernetes:ml/llm-0", StopTarget.JOB),
        (replace(KUBERNETES, job="kubernetes:ml/llm-0"), "job", "", StopTarget.JOB),
        (SLURM, "processes", "4711", StopTarget.PROCESSES),
        (SLURM, "instance", "4711", StopTarget.INSTANCE),
        (SLURM, "job", "", StopTarget.PROCESSES),
        (SLURM, "auto", "", StopTarget.INSTANCE),
        (SLURM, "job", "kubernetes:ml/llm-0", StopTarget.PROCESSES),
        (KUBERNETES, "job", "4711", StopTarget.PROCESSES),
        (KUBERNETES, "job", "kubernetes:", StopTarget.PROCESSES),
        (SchedulerFacts(), "job", "4711", StopTarget.PROCESSES),
        # In a job of a scheduler that cannot be asked, the machine is still that scheduler's.
        (SchedulerFacts(job="4711"), "auto", "", StopTarget.PROCESSES),
        (replace(SLURM, job="kubernetes:ml/llm-0"), "auto", "", StopTarget.PROCESSES),
    ],
)
def test_what_a_halt_stops(scheduler: SchedulerFacts, stop: str, label: str, target: StopTarget) -> None:
    node = node_of(scheduler, stop, label)
    assert halted(node) is target
    incident = node.runs["llama"].incident
    assert incident is not None
    assert (incident.job != "") is (target is StopTarget.JOB)


def facts(scheduler: SchedulerFacts) -> NodeFacts:
    return make_node(scheduler=scheduler).facts


@pytest.mark.parametrize(
    ("scheduler", "label", "job"),
    [
        (SLURM, "4711", SchedulerJob("4711", 7)),
        (SLURM, "4711 ; scancel 1", None),
        (SLURM, "", None),
        (SLURM, "x" * 4096, None),
        (KUBERNETES, "kubernetes:ml/llm-0", SchedulerJob("ml/llm-0", 7, scheduler="kubernetes")),
        (KUBERNETES, "ml/llm-0", None),
        (replace(SLURM, job="12"), "4711", SchedulerJob("12", 7)),
    ],
)
def test_the_job_of_a_run_is_what_our_launch_says_and_then_what_the_run_says(
    scheduler: SchedulerFacts, label: str, job: SchedulerJob | None
) -> None:
    run = Run(run="llama", uid=7, first_seen_at=at(0), stage=None, labels={"scheduler_job": label})
    assert job_of(facts(scheduler), run) == job


@pytest.mark.parametrize(
    ("label", "target"), [("4711", StopTarget.PROCESSES), ("4712", StopTarget.JOB)], ids=["same job", "another job"]
)
def test_auto_leaves_a_job_in_which_another_watched_run_lives(label: str, target: StopTarget) -> None:
    node = node_of(SLURM, "auto", "4711")
    play(node, beside(label))
    assert halted(node) is target


def test_job_ends_it_all_the_same() -> None:
    node = node_of(SLURM, "job", "4711")
    play(node, beside("4711"))
    assert halted(node) is StopTarget.JOB


def test_a_label_says_whose_user_must_own_the_job_and_where_its_ranks_are() -> None:
    """Another user's label names the job, and no more: its scheduler is told who asks."""
    node = node_of(KUBERNETES, "job", "kubernetes:ml/llm-0")
    play(node, LaunchersSeen(at(1), "llama", (), place=PLACE))
    assert halted(node) is StopTarget.JOB
    uid = node.runs["llama"].run.uid
    wanted = SchedulerJob("ml/llm-0", uid, scheduler="kubernetes", places=(PLACE,))
    assert job_to_end(node, "llama.node-a.1") == wanted


def test_our_own_launchs_word_needs_no_proof() -> None:
    node = node_of(replace(KUBERNETES, job="kubernetes:ml/llm-0"), "job")
    play(node, LaunchersSeen(at(1), "llama", (), place=PLACE))
    halted(node)
    job = job_to_end(node, "llama.node-a.1")
    assert job is not None
    assert job.places is None


def test_the_accepted_stop_is_remembered_by_the_name_of_what_was_ended() -> None:
    node = node_of(KUBERNETES, "job", "kubernetes:ml/llm-0")
    halted(node)
    play(node, ack("failed", 32))
    effects = play(node, ProcessesSeen(at(33), "llama.node-a.1", ()))
    assert any(isinstance(effect, StopCompute) for effect in effects)
    ended_as = "kubernetes:ml/Job.batch/llm"
    play(node, StopReplied(at(34), "llama.node-a.1", StopAnswer.ACCEPTED, False, "accepted", ended_as=ended_as))
    incident = node.runs["llama"].incident
    assert incident is not None
    snapshot = incident_snapshot(node, incident)
    assert (snapshot["job"], snapshot["scheduler"]) == (ended_as, "kubernetes")
    assert incident_of(snapshot).job == ended_as
    job = job_to_end(node, "llama.node-a.1")
    assert job is not None
    assert (job.name, job.is_seen) == ("ml/Job.batch/llm", True)


@pytest.mark.parametrize("name", ["a b", "", "x" * 999])
def test_a_name_that_is_none_is_not_taken_from_a_scheduler(name: str) -> None:
    node = node_of(SLURM, "job", "4711")
    halted(node)
    play(node, ack("failed", 32), ProcessesSeen(at(33), "llama.node-a.1", ()))
    play(node, StopReplied(at(34), "llama.node-a.1", StopAnswer.ACCEPTED, False, "accepted", ended_as=name))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.job == "4711"
