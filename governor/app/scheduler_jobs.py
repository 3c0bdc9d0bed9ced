"""What is said of a scheduler outside of a halt: by a start, by `costgov doctor`, of an incident that left its job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from governor.adapters import schedulers
from governor.core.base.identity import SchedulerFacts, SchedulerJob
from governor.core.events.inputs import BillingAnswer
from governor.remote_ports import Scheduler
from governor.settings.model import Settings
from governor.text.table import plain
from trainer_shim.launch import slurm_job

NOT_SEEN_FROM_WITHIN: Final = "nobody inside of the job sees its end"


def start_lines(facts: SchedulerFacts, scheduler: Scheduler | None) -> list[str]:
    """What `stop = "job"` and "auto" mean here. Nothing where no scheduler is."""
    if scheduler is None:
        return [f"no scheduler can be asked from job {facts.job}: a halt ends processes only"] if facts.job else []
    if not facts.job:
        return [f"a run that {scheduler.name} has started: on halt I will end its job"]
    problems = scheduler.problems(SchedulerJob(facts.job.removeprefix(f"{scheduler.name}:"), os.geteuid()))
    will = f"on halt I will end {scheduler.name} job {facts.job}, and keep it from being queued again"
    return [will, *(f"problem: {problem}" for problem in problems)]


def checks(settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    """For `costgov doctor`: level, name, text, advice."""
    scheduler, job = schedulers.found(settings.slurm.use, os.environ), slurm_job(os.environ)
    name = "scheduler"
    if scheduler is None:
        text = 'none: stop = "job" ends the run\'s processes, as "processes" does'
        advice = "put scontrol, scancel, squeue and sinfo on PATH" if job else ""
        yield ("warn" if job else "ok"), name, f"{text}{f' (in Slurm job {job})' if job else ''}", advice
        return
    bound = f"gives its nodes back within {scheduler.stop_bound_s:g} s"
    if not job:
        yield "ok", name, f"{scheduler.name}: a halted run's job is ended, and {bound}", ""
        return
    problems = scheduler.problems(SchedulerJob(job, os.geteuid()))
    for problem in problems:
        yield "fail", name, plain(problem), "a halt would end processes and the allocation would stay"
    if not problems:
        yield "ok", name, f"{scheduler.name} job {job} can be ended from here, and {bound}; {NOT_SEEN_FROM_WITHIN}", ""


def job_now(snapshot: Mapping[str, Any], settings: Settings) -> str | None:
    """What the scheduler says now of the job of a halt that did not see its end. None where that is no question."""
    job, plan = str(snapshot.get("job") or ""), snapshot.get("plan") or {}
    seen = [entry["what"] for entry in snapshot["timeline"]]
    if not job or plan.get("stop") != "JOB" or "verified" in seen:
        return None
    scheduler = schedulers.found(settings.slurm.use, os.environ)
    if scheduler is None:
        return f"job {plain(job)}: no scheduler can be asked from here"
    reply = scheduler.state(SchedulerJob(job, int(snapshot["uid"]), is_seen="stop_accepted" in seen))
    meaning = {
        BillingAnswer.ENDED: "it holds no node",
        BillingAnswer.RUNNING: "IT MAY STILL HOLD NODES",
        BillingAnswer.UNKNOWN: "whether it holds nodes is unknown",
    }[reply.answer]
    return f"{scheduler.name} says now of job {plain(job)}: {plain(reply.provider_state)}; {meaning}"
