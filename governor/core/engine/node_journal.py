"""The node in the journal: what is persisted of its runs and meters, when, and how its meters are restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from governor.core.base.units import NS_PER_S, BootNs, MonoNs, WallNs
from governor.core.engine.launched_command import launch_of, launched_row, previous_command
from governor.core.engine.managed_run import Launch, ManagedRun, RunHistory
from governor.core.engine.node import PROTECTED, Node, claim_of
from governor.core.engine.run_forecast import plan_of, token_prices
from governor.core.events.effects import PersistRuns, Record
from governor.core.fleet.member_rows import members_row
from governor.core.fleet.shared import restore_shared
from governor.core.halt.left_launch import process_row
from governor.core.money.charges import UNALLOCATED, Line
from governor.core.money.expected import WindowRow, plan_row, window_row
from governor.core.money.lines import price_of
from governor.core.money.token_windows import TokenMeter, Window
from governor.core.runs.state import Run

# After a crash of the governor, at most this period's spend is reconstructed.
PERSIST_PERIOD_NS: Final = 10 * NS_PER_S
# From a process's start to its meters. Python's imports and a provider's answer take less.
START_MAX_NS: Final = 60 * NS_PER_S
# What Python needs before our first line, on a processor of its own: tens of milliseconds.
INTERPRETER_MAX_NS: Final = NS_PER_S
# So many closed windows do not wait for the period: a log that is read in one go closes thousands.
WINDOWS_UNCOMMITTED_MAX: Final = 64


def node_snapshot(node: Node) -> Mapping[str, Any]:
    """What a restarted governor must know of the node's meters. Plain JSON."""
    return {
        "run": UNALLOCATED,
        "boot_id": node.facts.boot_id,
        "boot_ns": node.ledger.charged_to,
        "wall_ns": node.metered_wall,
        "incidents_floor": node.numbers_floor,
        "names_dropped": node.has_dropped_names,
        **node.ledger.snapshot(),
        "budgets": node.budgets.snapshot(),
        "idle": node.idle.snapshot(),
        "launched": launched_row(node),
        **({"left": node.left.row()} if node.left is not None else {}),  # Nobody is waited for.
        "ended_lock": node.ended_lock,
        "running_source": node.running_source,
        **({"shared": node.shared.row()} if node.shared is not None else {}),
    }


def _turn(history: RunHistory) -> dict[str, Any]:
    """What it has taken over, and given back. Most runs have neither."""
    turn = {"command_turn": history.turn} if history.turn else {}
    return {**turn, **({"given_back": True} if history.is_given_back else {})}


def _belief(run: Run) -> dict[str, Any]:
    """By what its next total is believed."""
    count = run.trained_count.row()
    return {
        **({"trains_again": True} if run.trains_again else {}),
        **({"trained_count": count} if count is not None else {}),
        **({"largest_step": run.belief.largest} if run.belief.largest else {}),
        **({"tokens_beyond": True} if run.belief.is_beyond else {}),
    }


def _launch_row(launch: Launch) -> dict[str, Any]:
    """By what its processes are known, beside their numbers."""
    return {
        "marks": list(launch.marks),
        "cgroups": list(launch.cgroups),
        "unsure": [process_row(process) for process in launch.unsure],
        "programs": list(launch.programs),
        "places": list(launch.places),
    }


def run_snapshot(node: Node, managed: ManagedRun, at: MonoNs) -> Mapping[str, Any]:
    """What a restarted governor must know of a run. Plain JSON."""
    run = managed.run
    return {
        "run": run.run,
        "uid": run.uid,
        "attempt": run.attempt,
        "stage": run.stage,
        "labels": dict(run.labels),
        "boot_id": node.facts.boot_id,
        "boot_ns": node.ledger.charged_to,
        "wall_ns": node.wall(at),
        "alive": run.alive and not managed.is_unattached,  # A restart makes a new stand-in.
        # The journal keeps the rows of most worth: see adapters/journal/retention.py.
        "worth": PROTECTED if run.alive else claim_of(node, managed).worth,
        **({"strangers": True} if managed.is_strangers else {}),
        "ranks": sorted(run.known_ranks()),
        "processes": [process_row(process) for process in managed.processes()],
        **_launch_row(managed.launch),
        "spend_usd_micros": node.ledger.spend(run.run),
        "paid_from": managed.history.paid_from,
        "paid_before_usd_micros": managed.history.paid_before,
        "command": managed.history.command,
        **({"counts_to": list(part)} if (part := node.ledger.book.runs.part_of(run.run)) is not None else {}),
        **_turn(managed.history),
        "tokens_total": run.tokens_total,
        "counted_step": run.counted_step,
        **_belief(run),
        "nonpad": [run.nonpad_tokens, run.nonpad_of_tokens] if run.nonpad_tokens is not None else None,
        "furthest": list(run.furthest) if run.furthest is not None else None,
        **({"log_totals": [list(one) for one in run.log_totals]} if run.log_totals else {}),
        "step": run.step,
        "completed": run.ended_well,
        "end": {"exit_code": run.end.exit_code, "cause": run.end.cause} if run.end is not None else None,
        "last_good": run.last_good.row() if run.last_good is not None else None,
        **({"named_before": [one.row() for one in run.named_before]} if run.named_before else {}),
        "save_longest_ns": run.save_longest_ns,
        "first_step_at": run.first_step_at,
        "first_step_ended_at": run.first_step_ended_at,
        "working_since": run.working_since,
        "last_good_at": run.last_good_at,
        "incidents_total": managed.history.incidents_total,
        "last_incident": node.numbers.get(run.run, 0),
        "hold_until": managed.history.hold_until,
        "hold_reason": managed.history.hold_reason,
        "halts_wall": list(managed.history.halts_wall),
        **_one_offs_row(managed),
        **_nodes_row(managed, at),
        "ceilings_told": {scope: told.row() for scope, told in managed.reported.ceilings.items()},
        "plan": plan_row(plan_of(managed)),  # Windows have it too, but the first may be hours away.
        **_prices_row(managed),
        "tokens": managed.history.meter.snapshot() if managed.history.meter is not None else None,
        **_bought_row(managed.history),
        "rules": managed.rules.snapshot(),
        # Persisted together with the rules' state after these lines: a restarted governor counts no line twice.
        "stream_position": dict(managed.stream_position) if managed.stream_position is not None else None,
    }


def _nodes_row(managed: ManagedRun, at: MonoNs) -> Mapping[str, Any]:
    """Of a launch with several nodes, and of a run that had one."""
    run = managed.run
    launch = {"job": run.job, "world_size": run.world_size} if run.job else {}
    return launch | members_row(managed.history.members, at)


def _bought_row(history: RunHistory) -> Mapping[str, Any]:
    # None: nobody has reported for the run yet. An older version's journal has neither of these rows.
    split = history.split.snapshot() if history.split.has_begun else None
    return {"spend_split": split, "time": history.time.snapshot()}


def _prices_row(managed: ManagedRun) -> Mapping[str, Any]:
    """For whoever looks at the run after its end: the windows that these are of are not kept."""
    prices = token_prices(managed)
    unpriced = {"unpriced_ns": prices.unpriced_ns} if prices.unpriced_ns else {}
    return {"usd_micros_per_mtok_steady": prices.steady, **unpriced}


def _one_offs_row(managed: ManagedRun) -> Mapping[str, Any]:
    own, unweighed = managed.history.one_offs, managed.money.unweighed
    row: dict[str, Any] = {
        "checkpoint_bytes_max": managed.money.checkpoint_bytes_max,
        "checkpoints_charged": list(managed.money.checkpoints_reported),
    }
    if own.usd_micros:
        row["one_offs"] = [own.usd_micros, own.checkpoints_usd_micros, own.unseen_usd_micros]
    return row | ({"unweighed": {name: one.row() for name, one in unweighed.items()}} if unweighed else {})


def metered_row(node: Node) -> Mapping[str, Any] | None:
    """Up to when the node's time is metered, and from which commit that goes on; None: nobody holds the node.

    Noted at every tick. Who holds the node, and for which price, is in the commit: when it changes, the next tick
    persists it.
    """
    if node.persisted_to is None or not (node.launched is not None or node.holders()):
        return None
    return {"boot_id": node.facts.boot_id, "boot_ns": node.ledger.charged_to, "since_boot_ns": node.persisted_to}


def metered_until(row: Mapping[str, Any] | None, boot_id: str, committed: BootNs) -> BootNs:
    """Up to when the previous governor had metered the node. `committed`: up to when the journal has charged it.

    A row that goes on from a later commit is not this journal's: an old copy was put in its place, say.
    """
    if row is None or row.get("boot_id") != boot_id:
        return committed
    since, until = row.get("since_boot_ns"), row.get("boot_ns")
    if type(since) is not int or type(until) is not int or since > committed:
        return committed
    return BootNs(max(until, committed))


def own_start(process: BootNs, entered: BootNs, cpu_ns: int) -> BootNs:
    """When costgov began in this `process`, whose first line of costgov's own was reached at `entered`.

    The process may be older: `exec` keeps its number and its start, and `bash -c "a; b"` runs b so. What the processors
    had done for it by then is the interpreter's start, or at most a second of what was before. It may also be younger:
    a fork of the one that entered.
    """
    first = BootNs(entered - min(cpu_ns, INTERPRETER_MAX_NS))
    return first if process > entered else max(process, first)


def begins_at(
    now: BootNs, started: BootNs, boot_id: str, snapshots: Iterable[Mapping[str, Any]],
    metered: Mapping[str, Any] | None,
) -> BootNs:  # fmt: skip
    """When the node's time becomes that of a governor which `started` then: from there on.

    An odd clock costs no more than START_MAX_NS. What a governor before has metered is not charged twice.
    """
    own = (row.get("boot_ns") for row in snapshots if row.get("boot_id") == boot_id)
    newest = max((BootNs(moment) for moment in own if type(moment) is int), default=None)
    left = metered_until(metered, boot_id, newest) if newest is not None else BootNs(0)
    return BootNs(min(now, max(started, now - START_MAX_NS, left)))


def restore_node(node: Node, snapshot: Mapping[str, Any]) -> None:
    """Restore the node's own money. KeyError, TypeError or ValueError when the snapshot is not one of ours.

    The caller charges the time since: see Ledger.resume_from() and charge_absence().
    """
    same_boot = snapshot["boot_id"] == node.facts.boot_id
    launched = snapshot.get("launched")
    previous = previous_command(launched) if launched is not None else None
    node.ledger.restore(snapshot, same_boot=same_boot, in_force_from=_in_force_from(node))
    node.previous_command, node.left = previous, launch_of(snapshot.get("left") or {})
    node.ended_lock = ended_lock_of(snapshot)
    restore_shared(node.shared, snapshot)
    source = snapshot.get("running_source")  # An older journal does not say.
    if node.running_source is None and isinstance(source, str):
        node.running_source = source
    # An older journal has neither.
    node.numbers_floor = int(snapshot.get("incidents_floor", 0))
    node.names_dropped = bool(snapshot.get("names_dropped"))
    node.unreadable_runs = set()


def ended_lock_of(snapshot: Mapping[str, Any]) -> int | None:
    """None: of no launch it is known that it was seen to its end. An older journal does not say."""
    lock = snapshot.get("ended_lock")
    return lock if type(lock) is int else None


def price_left(snapshot: Mapping[str, Any], boot_id: str) -> Line | None:
    """The machine's price when this journal was last written. None: it is of another boot, or unknown.

    KeyError, TypeError or ValueError when the snapshot is not one of ours.
    """
    metered = price_of(snapshot.get("price")) if snapshot["boot_id"] == boot_id else None
    return metered.line if metered is not None else None


def _in_force_from(node: Node) -> BootNs:
    """When the price known at start came into force, by this boot's clock. If this is unknown, our start."""
    since = node.facts.price_since_wall
    return node.began if since is None else boot_of(since, node.began, node.began_wall)


def boot_of(wall: WallNs, boot: BootNs, at_wall: WallNs) -> BootNs:
    """Convert `wall` to the boot clock by a moment that both clocks read. The result is not after that moment."""
    return BootNs(min(boot, boot - (at_wall - wall)))


def persist_due(node: Node, at: MonoNs) -> list[PersistRuns]:
    """Persist at the first tick, every ten seconds, and when a charge or many windows were closed."""
    many = node.ledger.uncommitted or len(node.windows_uncommitted) >= WINDOWS_UNCOMMITTED_MAX
    due = node.persisted_at is None or many or at - node.persisted_at >= PERSIST_PERIOD_NS
    return [persist(node, at)] if due else []


def persist(node: Node, at: MonoNs, *ended: ManagedRun, durable: bool = False) -> PersistRuns:
    """Persist everything as of now. `ended`: runs that are no longer alive and changed since they were persisted.

    Runs that a charge or window of this commit names are included: one commit has all that concerns a run's money.
    """
    node.note_persisted(at)
    charges, records = node.ledger.take_charges(), tuple(node.windows_uncommitted)
    node.windows_uncommitted.clear()
    told = {charge.payer.run for charge in charges} | {record.run for record in records}
    runs = {
        name: run_snapshot(node, managed, at)
        for name, managed in node.runs.items()
        if managed.run.alive or name in told
    }
    runs |= {managed.run.run: run_snapshot(node, managed, at) for managed in ended}
    return PersistRuns({**runs, UNALLOCATED: node_snapshot(node)}, charges, records, durable)


def keep_window(node: Node, managed: ManagedRun, window: Window, meter: TokenMeter) -> None:
    """Have a window that has closed persisted with the runs."""
    run = managed.run
    row = window_row(WindowRow(run.stage, run.attempt, window, plan_of(managed), meter.wasted_tokens))
    node.windows_uncommitted.append(Record("window", run.run, None, row))
