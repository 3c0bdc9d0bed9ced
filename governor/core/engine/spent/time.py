"""What a run's time went to: events and ticks of the engine, as its TimeAccount takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from governor.core.attribution.causes import Amount
from governor.core.attribution.log_line import OF_LOG
from governor.core.attribution.open_end import STILL_MIN_NS, UNSEEN_NS, Sight
from governor.core.base.findings import Response
from governor.core.base.policy import Mode, PersistenceKind, Rule
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.inputs import PhaseChange, Step
from governor.core.events.machine import GpuSample, HostSample
from governor.core.rules import stillness
from governor.core.runs import own_time
from governor.core.runs.state import Rank, Run

# Their halts end a silence: what came before the verdict was no training.
OF_SILENCE: Final = frozenset({"hang", "log_stalled"})
# A rank whose last beat is older is silent, as the rule `hang` has it by default.
BEAT_FRESH_NS: Final = 5 * NS_PER_S
OF_FAULT: Final = "gpu_fault"


def count_time(
    node: Node, managed: ManagedRun, holders: Mapping[str, int] | None = None, *, is_back: bool = False
) -> None:
    """Count what the run was charged since the last count. The ledger has charged all time until now.

    `is_back`: its log goes on, and no attempt of that is begun yet.
    """
    boot, account = node.ledger.charged_to, managed.history.time
    if node.boot_offset_ns is None:
        return
    at = MonoNs(boot - node.boot_offset_ns)
    holds = managed.run.run in (node.holders() if holders is None else holders)
    since = min(managed.history.paid_from, boot)
    _see(managed, at)
    is_alone = not (managed.run.ranks or is_back)
    account.tick(at, boot, BootNs(since), node.ledger.spend(managed.run.run), holds=holds, is_alone=is_alone)
    if not managed.run.alive:
        account.over(at, ended_well=managed.run.ended_well, has_left=_has_left(managed.run))
    _show_untold(node, managed)


def _has_left(run: Run) -> bool:
    """Whether its ranks have all said bye, and none ended by an exception: a bye comes behind that too."""
    has_failed = any(failure.thread is None for failure in run.failures.values())
    return bool(run.ranks) and all(rank.said_bye for rank in run.ranks.values()) and not has_failed


def _see(managed: ManagedRun, at: MonoNs) -> None:
    """Tell the account which ranks move. Without beats nobody knows: what does not step may be in a hook."""
    suspects = _suspects(managed, at)
    for rank in managed.run.ranks.values():
        if rank.connected and rank.beat_at is not None:
            is_still = at - rank.progress_at >= STILL_MIN_NS
            sight = _still_sight(managed, rank, at, suspects) if is_still else Sight(rank.progress_at)
            managed.history.time.sees(rank.rank, sight)


def _suspects(managed: ManagedRun, at: MonoNs) -> Collection[int]:
    """For whom the others wait, as a rule `hang` tells it once all of them stand still."""
    ranks = stillness.judged(managed.run)
    if len(ranks) < 2 or at - stillness.moved_at(ranks) < STILL_MIN_NS:
        return ()
    if (sleep := stillness.data_sleep(ranks)) is not None:
        return [rank.rank for rank in sleep.asleep]
    rules = [rule for rule in managed.policy.rules if rule.trigger == "hang"]
    fresh_ns = min((rule.params.get("beat_fresh", BEAT_FRESH_NS) for rule in rules), default=BEAT_FRESH_NS)
    return stillness.suspects(ranks, at, fresh_ns)


def _still_sight(managed: ManagedRun, rank: Rank, at: MonoNs, suspects: Collection[int]) -> Sight:
    rules = [rule for rule in managed.policy.rules if rule.trigger == "hang"]
    due = (managed.rules.fires_at(rule, at) for rule in rules)
    is_overdue = any(moment is not None and moment <= at for moment in due)
    fetch_ns = rank.fetch.longest_ns if rank.fetch is not None and stillness.sleeps_in_data(rank) else None
    may_fetch_ns = min((rule.params.get("data_min", UNSEEN_NS) for rule in rules), default=UNSEEN_NS)
    return Sight(rank.progress_at, fetch_ns, may_fetch_ns, is_overdue, rank.rank in suspects)


def count_silence(node: Node, managed: ManagedRun, holders: Mapping[str, int] | None = None) -> None:
    """Count time of a run for which nobody has spoken. While it stands in for its command, that is not its own yet."""
    if not managed.history.time.is_fresh or (managed.run.alive and not managed.is_unattached):
        count_time(node, managed, holders)
    _show_untold(node, managed)


def _show_untold(node: Node, managed: ManagedRun) -> None:
    """What a stand-in waits for: its views show it, and its account has it once somebody speaks, or it is over."""
    untold = Amount()
    if managed.is_unattached:
        lasted_ns = max(0, node.ledger.charged_to - node.account.since)
        untold = Amount(lasted_ns, node.ledger.book.unclaimed_usd_micros())
    managed.history.show_untold(untold)


def count_untold(node: Node, managed: ManagedRun) -> None:
    """Count a launch that is over, and of which no rank and no log has spoken. It pays for all of that."""
    boot, account = node.ledger.charged_to, managed.history.time
    if node.boot_offset_ns is None:
        return
    at, since = MonoNs(boot - node.boot_offset_ns), BootNs(min(managed.history.paid_from, boot))
    account.tick(at, boot, since, node.ledger.spend(managed.run.run), holds=False, is_untold=True)


def on_hello(managed: ManagedRun, rank: Rank, at: MonoNs, *, is_new: bool, had_ended_well: bool) -> None:
    """`is_new`: it begins an attempt. `had_ended_well`: the one before it."""
    account = managed.history.time
    if is_new:
        account.attempt_begins(at, ended_well=had_ended_well)
    # Others of an attempt come after the first one. Before anybody has stepped in it, none goes on.
    goes_on = not is_new and managed.run.first_step_at is not None
    account.rank_begins(rank.rank, at, goes_on=goes_on)


def on_log_line(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """Before a log's line is taken. A log says no hello: the first step of the run's attempt begins that.

    A restarted governor has the attempt's steps from its journal.
    """
    account, is_first = managed.history.time, managed.run.step is None
    if is_first:
        count_time(node, managed, is_back=True)
        if account.has_trained:
            account.attempt_begins(at, is_log=True)
    account.log_begins(OF_LOG, at, goes_on=not is_first)


def on_step(managed: ManagedRun, rank: Rank | None, step: Step, dated: MonoNs | None) -> None:
    """`dated`: when a log's line was written, where it says so."""
    account = managed.history.time
    if rank is None:
        account.step(OF_LOG, step, step.at if dated is None else dated)
    else:
        account.step(rank.rank, step, own_time.of_frame(rank, step, managed.run.began_at))


def on_phase(managed: ManagedRun, rank: Rank | None, phase: PhaseChange) -> None:
    managed.history.time.phase(OF_LOG if rank is None else rank.rank, phase.began, phase.phase, phase.step)


def on_gpus(managed: ManagedRun, sample: GpuSample, places: Sequence[int]) -> None:
    """`sample`: the GPUs that are surely the run's. `places`: theirs on the node, by which people know them.

    A rank computes on those where the driver shows its process, else on the only one that it has announced.
    """
    names = [f"GPU {place}" for place in places]
    of_rank = dict[int, tuple[str, ...]]()
    for rank in managed.run.ranks.values():
        pid = rank.peer.process.pid
        mine = [name for name, pids in zip(names, sample.pids, strict=False) if pids and pid in pids]
        if not mine and len(rank.gpu_uuids) == 1:
            mine = [name for name, uuid in zip(names, sample.uuids, strict=False) if uuid == rank.gpu_uuids[0]]
        if mine:
            of_rank[rank.rank] = tuple(mine)
    told = dict(zip(names, sample.figures, strict=False))
    managed.history.time.hardware.see_gpus(sample.at, told, of_rank)


def on_host(managed: ManagedRun, sample: HostSample) -> None:
    ranks = {rank.peer.process: rank.rank for rank in managed.run.ranks.values() if rank.connected}
    managed.history.time.look(sample, ranks)


def on_verdict(managed: ManagedRun, trigger: str, at: MonoNs) -> None:
    """The run was charged up to its verdict. What comes after it is the halt's."""
    if trigger == OF_FAULT:
        managed.history.time.hardware.fault_halts(at)
    since = stillness.still_since(managed.run) if trigger in OF_SILENCE else None
    managed.history.time.halt_begins(at, is_hang=trigger in OF_SILENCE, since=since)


def halts_in_s(managed: ManagedRun, at: MonoNs) -> float | None:
    """When a run that stands still is halted, if it goes on so.

    None: no rule is armed that halts it, a person holds it, or it is halted already.
    """
    is_held = managed.history.held(at) is not None
    if managed.incident is not None or is_held or managed.policy.mode is not Mode.ENFORCE:
        return None
    due = (_due_at(managed, rule, at) for rule in managed.policy.rules if _halts(managed, rule))
    first = min((moment for moment in due if moment is not None), default=None)
    return max(0, first - at) / NS_PER_S if first is not None else None


def _halts(managed: ManagedRun, rule: Rule) -> bool:
    is_armed = rule.mode is Mode.ENFORCE and rule.response is Response.HALT
    return is_armed and rule.applies_to(managed.run.labels, managed.run.stage)


def _due_at(managed: ManagedRun, rule: Rule, at: MonoNs) -> MonoNs | None:
    fires_at = managed.rules.fires_at(rule, at)
    if fires_at is None or rule.persistence.kind is not PersistenceKind.DURATION:
        return fires_at
    return MonoNs(fires_at + rule.persistence.need)
