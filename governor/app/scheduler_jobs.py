"""What is said of a scheduler outside of a halt: by a start, by `costgov doctor`, of an incident that left its job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from governor.app.node_facts import CannotStart, load_scheduler
from governor.core.base.identity import SchedulerJob, job_parts
from governor.core.events.inputs import BillingAnswer
from governor.remote_ports import Scheduler
from governor.settings.model import Settings
from governor.text.table import plain
from trainer_shim.launch import scheduler_job

NOT_SEEN_FROM_WITHIN: Final = "nobody inside of the job sees its end"
ASKED_MAX: Final = 4  # Of jobs without a living run, the newest. Each may take its scheduler's time-out.
OVER: Final = ("finished", "halted")
HOW_TO_ASK: Final = {
    "slurm": "put scontrol, scancel, squeue and sinfo on PATH",
    "kubernetes": "mount the token of a service account with the Role of deploy/kubernetes",
}


def checks(settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    """For `costgov doctor`: level, name, text, advice."""
    full, name = settings.node.scheduler_job or scheduler_job(os.environ), "scheduler"
    whose, job = job_parts(full)
    try:
        scheduler = load_scheduler(settings)
    except CannotStart as error:
        yield "fail", name, plain(str(error)), "see [scheduler] in costgov.toml"
        return
    if scheduler is None or (full and whose != scheduler.name):
        asked = f"only {scheduler.name} is asked" if scheduler is not None else "none"
        text = f'{asked}: stop = "job" ends the run\'s processes, as "processes" does'
        advice = HOW_TO_ASK.get(whose, "set [scheduler] use") if full else ""
        yield ("warn" if full else "ok"), name, f"{text}{f' (in {whose} job {plain(job)})' if full else ''}", advice
        return
    bound = f"gives its nodes back within {scheduler.stop_bound_s:g} s"
    if not full:
        yield "ok", name, f"{scheduler.name}: a halted run's job is ended, and {bound}", ""
        return
    problems = scheduler.problems(SchedulerJob(job, os.geteuid(), scheduler=whose))
    for problem in problems:
        yield "fail", name, plain(problem), "a halt would end processes and the allocation would stay"
    if not problems:
        text = f"{scheduler.name} job {plain(job)} can be ended from here, and {bound}; {NOT_SEEN_FROM_WITHIN}"
        yield "ok", name, text, ""


def found_or_none(settings: Settings) -> Scheduler | None:
    """Whoever reads an incident elsewhere may have no pod and no configuration of it."""
    try:
        return load_scheduler(settings)
    except CannotStart:
        return None


def held_idle(documents: Sequence[Mapping[str, Any]], load: Callable[[], Settings]) -> list[dict[str, Any]]:
    """Jobs that hold nodes while no run of theirs lives, by status documents: they are paid for. Their scheduler is
    asked, where there is such a run; `load` is called then alone.

    A job of which a run lives on another node is held too, and nobody here trains in it: it says of this node alone.
    """
    rows = [(document, row) for document in documents for row in document["runs"] if row.get("job")]
    living = {row["job"] for _, row in rows if row["state"] not in OVER}
    idle = {str(row["job"]): (document, row) for document, row in rows if row["job"] not in living}
    scheduler = found_or_none(load()) if idle else None
    found: list[dict[str, Any]] = []
    for full, (document, row) in list(idle.items())[-ASKED_MAX:] if scheduler is not None else ():
        whose, name = job_parts(full)
        if scheduler is None or scheduler.name != whose:
            continue
        reply = scheduler.state(SchedulerJob(name, int(row["uid"]), is_seen=True, scheduler=whose))
        if reply.answer is BillingAnswer.RUNNING:
            price = document["governor"].get("price_usd_per_hour")
            found.append(
                {"scheduler": whose, "job": name, "run": row["run"], "node": document["governor"]["node"],
                 "says": reply.provider_state, "usd_per_hour": price}
            )  # fmt: skip
    return found


def held_text(one: Mapping[str, Any]) -> str:
    """One of `held_idle`, for people."""
    price = one["usd_per_hour"]
    costs = f"${price:,.2f}/h for this node" if price is not None else "at a price that is unknown"
    end = {"slurm": f"; `scancel {plain(one['job'])}` gives it back"}.get(one["scheduler"], "")
    return (
        f"allocation: {one['scheduler']} job {plain(one['job'])} holds its nodes ({plain(one['says'])}), {costs}. "
        f"Nobody trains in it here: run {plain(one['run'])} is over{end}"
    )


def job_now(snapshot: Mapping[str, Any], settings: Settings) -> str | None:
    """What the scheduler says now of the job of a halt that did not see its end. None where that is no question."""
    job, plan = str(snapshot.get("job") or ""), snapshot.get("plan") or {}
    seen = [entry["what"] for entry in snapshot["timeline"]]
    if not job or plan.get("stop") != "JOB" or "verified" in seen:
        return None
    whose, name = job_parts(job)
    scheduler = found_or_none(settings)
    if scheduler is None or scheduler.name != whose:
        return f"job {plain(job)}: its scheduler cannot be asked from here"
    asked = SchedulerJob(name, int(snapshot["uid"]), is_seen="stop_accepted" in seen, scheduler=whose)
    reply = scheduler.state(asked)
    meaning = {
        BillingAnswer.ENDED: "it holds no node",
        BillingAnswer.RUNNING: "IT MAY STILL HOLD NODES",
        BillingAnswer.UNKNOWN: "whether it holds nodes is unknown",
    }[reply.answer]
    return f"{scheduler.name} says now of job {plain(name)}: {plain(reply.provider_state)}; {meaning}"
