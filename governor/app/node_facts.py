"""What start-up learns of this machine: its provider, its price, and the facts for the core."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from governor.adapters import clouds, schedulers
from governor.adapters.machine.clock import SystemClock
from governor.adapters.plugins import ConfigError
from governor.app import pricing
from governor.core.base.identity import SchedulerFacts, SchedulerJob, job_parts
from governor.core.base.units import NS_PER_DAY, NS_PER_S, DurationNs, UsdMicros, format_usd
from governor.core.engine.halt_plan import machine_of
from governor.core.engine.idle import limit
from governor.core.engine.node import Node, NodeFacts
from governor.core.money.lines import Lines
from governor.core.money.prices import Chosen, Day
from governor.planner.catalog import driver_peaks
from governor.remote_ports import Cloud, Preflight, PriceSource, Scheduler
from governor.settings.model import Settings
from trainer_shim.launch import scheduler_job

# Some 30 of its own, those that are kept for a halt, and a rank or two with their pidfds.
DESCRIPTORS_MIN: Final = 64


class CannotStart(Exception):  # noqa: N818 - the condition is the name.
    """Why the governor cannot start. The message is one line: what is wrong and what to do."""


class NoRoom(CannotStart):
    """There is no free process or thread."""


NO_ROOM: Final = "no free process or thread here: see `ulimit -u`, or pids.max of the control group"


@contextlib.contextmanager
def needs_room() -> Iterator[None]:
    """NoRoom where a thread or a process cannot be started. Python has no error of its own for the first."""
    try:
        yield
    except BlockingIOError as error:
        raise NoRoom(NO_ROOM) from error
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise NoRoom(NO_ROOM) from error


def make_directory(path: Path, problem: str | None = None) -> None:
    """Make a directory of ours. Raises CannotStart, also with the `problem` of a directory above it."""
    if problem is not None:
        raise CannotStart(problem)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise CannotStart(f"{path}: cannot be made: {error.strerror}; set [paths] in costgov.toml") from error


def raise_descriptor_limit() -> None:
    """Raise the soft limit: 256 connections, a pidfd per process and a scan of /proc exceed the usual 1,024.

    Under a hard limit below DESCRIPTORS_MIN, what fails is chance: a socket of the start, or each rank's connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_MIN:
        raise CannotStart(
            f"at most {hard} files may be open here, and a governor needs {DESCRIPTORS_MIN}: raise the hard limit "
            "(`ulimit -Hn`; LimitNOFILE= of a service)"
        )
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load_cloud(settings: Settings) -> tuple[Cloud | None, Preflight | None]:
    """Build the provider and ask it about the machine. An unreachable provider is reported; the start continues."""
    if settings.cloud.provider == "none":
        return None, clouds.load("none", {}).preflight()
    try:
        cloud = clouds.load(settings.cloud.provider, settings.cloud.config)
    except ConfigError as error:
        raise CannotStart(str(error)) from error
    return cloud, cloud.preflight()


def load_scheduler(settings: Settings) -> Scheduler | None:
    """The scheduler whose jobs a halt may end. CannotStart: [scheduler] asks for one that cannot be asked."""
    table = settings.scheduler
    try:
        return schedulers.found(table.use, table.tables, settings.node.scheduler_job or "", os.environ)
    except ConfigError as error:
        raise CannotStart(str(error)) from error


def load_price_source(settings: Settings) -> PriceSource | None:
    try:
        return pricing.load_source(settings)
    except ConfigError as error:
        raise CannotStart(str(error)) from error


def today(clock: SystemClock) -> Day:
    return Day(clock.wall() // NS_PER_DAY)


def node_facts(
    settings: Settings, cloud: Cloud | None, preflight: Preflight | None, scheduler: Scheduler | None, price: Chosen,
    boot_id: str, lines: Lines, *, exclusive: bool, has_peers: bool = False,
) -> NodeFacts:  # fmt: skip
    known = preflight is not None
    return NodeFacts(
        node=settings.node.name,
        boot_id=boot_id,
        price_usd_micros_per_hour=price.usd_micros_per_hour,
        price_source=price.quote.source if price.quote is not None else None,
        price_as_of=price.quote.as_of if price.quote is not None else "",
        price_kind=price.quote.kind.value if price.quote is not None else "",
        price_since_wall=price.quote.since if price.quote is not None else None,
        lines=lines,
        cloud=cloud.name if cloud is not None else "none",
        instance_id=preflight.instance_id if preflight is not None else None,
        region=preflight.region if preflight is not None else None,
        launched_at_wall=preflight.launched_at_wall if preflight is not None else None,
        will_stop=preflight.will if preflight is not None else "",
        stays_billed=preflight.stays_billed if preflight is not None else (),
        can_stop=cloud is not None and known and preflight.ok if preflight is not None else False,
        billing_source=cloud.billing_source if cloud is not None else "none",
        said_running=preflight.said_running if preflight is not None else False,
        survives_stop=preflight.survives_stop if preflight is not None else None,
        stop_bound_ns=DurationNs(round((cloud.stop_bound_s if cloud is not None else 0) * NS_PER_S)),
        granularity_ns=DurationNs(round((cloud.granularity_s if cloud is not None else 0) * NS_PER_S)),
        scheduler=SchedulerFacts(
            name=scheduler.name if scheduler is not None else "",
            job=settings.node.scheduler_job or (scheduler_job(os.environ) if exclusive else ""),
            bound_ns=DurationNs(round((scheduler.stop_bound_s if scheduler is not None else 0) * NS_PER_S)),
            node=scheduler.node_name(settings.node.name) if scheduler is not None else "",
            drains=settings.scheduler.drain and scheduler is not None,
        ),
        observe=settings.observe,
        idle_stop_ns=settings.node.idle_stop,
        exclusive=exclusive,
        has_peers=has_peers,
        streams=frozenset(entry.run for entry in settings.jsonl),
        gpu_peaks=driver_peaks(),
        redact_keys=settings.redact.keys,
    )


def start_report(
    node: Node, preflight: Preflight | None, scheduler: Scheduler | None, price: Chosen, *, remarks: Iterable[str],
    shared: Sequence[tuple[str, int]], problems: Iterable[str], metrics_places: str | None, selftest: Iterable[str],
) -> list[str]:  # fmt: skip
    """`shared`: scopes of the fleet, and the ceilings that costgov.toml has for them, in micro-dollars."""
    facts = node.facts
    billed = list(facts.stays_billed)
    told = [f"on halt I will {facts.will_stop}"]
    if facts.cloud != "none" and not facts.can_stop:
        told = [f'on halt I will end the processes only (stop = "auto"); I cannot yet {facts.will_stop}']
        billed.insert(0, machine_of(facts))
    told = start_lines(facts.scheduler, scheduler) + (told if not facts.scheduler.job else [])
    told += limit.promises(node)
    told.append(f"this stays billed: {'; '.join(billed) or 'nothing known'}")
    told += remarks
    told.append(f"price: {price.text}")
    told += [f"price: {remark.line}" for remark in price.remarks if not remark.is_alarm]
    told += [f"also billed: {line}" for line in facts.lines.texts]
    budgets = node.budgets.in_force()
    told += [f"budget {b.scope.text}: {format_usd(b.ceiling_usd_micros)} ({b.source})" for b in budgets]
    told += [f"budget of the fleet, {scope}: {format_usd(UsdMicros(ceiling))}" for scope, ceiling in shared]
    told += [f"problem: {problem}" for problem in (preflight.problems if preflight else ())]
    told += [f"problem: {problem}" for problem in problems]
    told += [f"metrics at {metrics_places}"] if metrics_places else []
    return [*told, *selftest]


def start_lines(facts: SchedulerFacts, scheduler: Scheduler | None) -> list[str]:
    """What `stop = "job"` and "auto" mean here. Nothing where no scheduler is."""
    if scheduler is None:
        return [f"no scheduler can be asked from job {facts.job}: a halt ends processes only"] if facts.job else []
    if not facts.job:
        return [f"a run that {scheduler.name} has started: on halt I will end its job"]
    whose, name = job_parts(facts.job)
    if whose != scheduler.name:
        return [f"job {facts.job} is not {scheduler.name}'s, which alone is asked: a halt ends processes only"]
    problems = scheduler.problems(SchedulerJob(name, os.geteuid(), scheduler=whose))
    will = f"on halt I will end {scheduler.name} job {name}, and keep it from being queued again"
    return [will, *(f"problem: {problem}" for problem in problems)]
