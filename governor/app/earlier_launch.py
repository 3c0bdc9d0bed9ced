"""What an earlier launch has left in the journal, as it is seen from here, and what decides where nothing is seen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from governor.adapters.command import launch_lock
from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.engine.names import know_incidents
from governor.core.engine.node import Node
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Effect
from governor.core.halt.elsewhere import Elsewhere, as_seen, left_elsewhere, unseen_runs
from governor.core.halt.inherited import inherited
from governor.core.halt.kill_set import ancestors
from governor.core.halt.left_launch import LeftLaunch
from governor.daemon.process_killer import ProcessKiller
from governor.ports import Clock, Journal, Processes


class TakenUp(NamedTuple):
    effects: list[Effect]
    elsewhere: Elsewhere


def take_up(node: Node, journal: Journal, processes: Processes, clock: Clock, reports: Path) -> TakenUp:
    """Go on from the journal. Processes of a PID namespace within ours are known by our own numbers from here on."""
    at, boot, wall = clock.mono(), clock.boot(), clock.wall()
    runs = [as_seen(snapshot, processes.locate) for snapshot in journal.runs().values()]
    halts = [as_seen(snapshot, processes.locate) for snapshot in journal.open_incidents()]
    effects = restore_runs(node, runs, boot, at, journal.metered())
    # Also what the journal has lost: a report is not replaced by another halt's.
    know_incidents(node, [*journal.incident_ids(), *(path.stem for path in reports.glob("*.json"))])
    effects += restore_incidents(node, halts, at, wall)
    effects += unseen_runs(runs) if not node.facts.exclusive else []
    return TakenUp(effects, left_elsewhere(runs, halts, clock.boot_id))


def lives_here(
    launch: LeftLaunch, killer: ProcessKiller, uids: Iterable[int], others: Iterable[ProcessId],
    *, perhaps: bool = False,
) -> tuple[ProcessFacts, ...]:  # fmt: skip
    """Whoever is of this launch and lives: the command, its user's processes with its mark, and its control group.

    And what stands below these. Not root's managers, nor `others`. Empty where the table cannot be read. `uids`: also
    the run's. `perhaps`: also other users' with its mark, which everybody can copy.
    """
    known = inherited(launch, killer.own_pid, killer.own_processes, may_end_all=False)
    try:
        table = killer.processes.table()
    except OSError:  # No free descriptors.
        return ()
    us = table.get(killer.own_pid)
    if us is None or any(process.boot_id != us.process.boot_id for process in launch.processes):
        return ()
    looks = known.living if perhaps else known.living_its
    living = looks(table, (launch.uid, *uids), launch.processes, others)
    return tuple(facts for facts in living if not killer.processes.is_gone(facts.process))


class Holds(NamedTuple):
    """Of the lock of an earlier launch."""

    is_held: bool  # By somebody who counts.
    seen: tuple[ProcessFacts, ...] = ()  # Those of these whom we see.
    spared: tuple[ProcessFacts, ...] = ()  # Who holds it too, and does not count.


def holds_here(
    state_dir: Path, killer: ProcessKiller, others: Iterable[ProcessId], launch: LeftLaunch | None = None
) -> Holds:
    """Whether somebody of an earlier launch lives who holds its lock, and whom of these we see.

    Not we, whom a terminal may have begun that the launch had opened, nor what is above us or was started by us. Nor
    `others`, and what stands below them. No holder who is one of these hides one whom we cannot look into,
    unless that one is older than the `launch`: pid 1 is, and has inherited nothing of it.
    """
    if not launch_lock.is_held(state_dir):
        return Holds(is_held=False)
    try:
        table = killer.processes.table()
    except OSError:  # No free descriptors.
        return Holds(is_held=True)
    us = table.get(killer.own_pid)
    above = {one.process.pid for one in ancestors(table, us)} if us is not None else set[int]()
    apart, own = {killer.own_pid, *above}, killer.own_processes()
    below = {killer.own_pid, *(process.pid for process in others)}

    def is_apart(facts: ProcessFacts) -> bool:
        return (
            facts.process.pid in apart
            or (facts.process.pid, facts.process.start_ticks) in own
            or not below.isdisjoint((facts.process.pid, *(one.process.pid for one in ancestors(table, facts))))
        )

    seen = launch_lock.holders(state_dir, table)
    left = [table[pid] for pid in sorted(seen) if not is_apart(table[pid])]
    is_explained = bool(seen)
    if seen and not left:
        since = _began(launch, us)
        programs = [
            pid
            for pid, facts in table.items()
            if facts.argv and facts.process.start_ticks >= since and not is_apart(facts)  # No kernel's threads.
        ]
        is_explained = not launch_lock.unreadable(programs)
    # Who asks holds it for a moment: `costgov status`, say.
    is_held = bool(left) or (not is_explained and bool(launch_lock.is_held(state_dir)))
    return Holds(is_held, tuple(left), tuple(table[pid] for pid in sorted(seen) if is_apart(table[pid])))


def _began(launch: LeftLaunch | None, us: ProcessFacts | None) -> int:
    """When the launch began, by the kernel's clock of this boot. 0: that is not known."""
    if launch is None or us is None or any(one.boot_id != us.process.boot_id for one in launch.processes):
        return 0
    return min((one.start_ticks for one in launch.processes), default=0)


def held_elsewhere(elsewhere: Elsewhere, state_dir: Path) -> str | None:
    """Where somebody of an earlier launch lives who is not seen from here, and holds its lock. None: nobody does."""
    if not (elsewhere.is_unseen or elsewhere.is_of_other_boot) or not launch_lock.is_held(state_dir):
        return None
    if elsewhere.is_unseen:
        return "in another PID namespace (a container, or the host around this one)"
    return "on another machine that has the same directory"


def lives_elsewhere(name: str, elsewhere: Elsewhere, state_dir: Path) -> str | None:
    """Why the command is not started: somebody of an earlier launch lives where nothing is seen from here."""
    where = held_elsewhere(elsewhere, state_dir)
    if where is None:
        return None
    halts = f" (nor can its open halt {', '.join(elsewhere.halts)} be ended)" if elsewhere.halts else ""
    return (
        f"not launched: an earlier launch of {name} still runs {where}, and is not seen from here{halts}: its "
        f"processes hold {launch_lock.path_of(state_dir)}, and two trainers would write the same checkpoints; end it "
        "there, or launch under another --name; if you know that none of them trains, remove that file and launch again"
    )


def taken_for_over(name: str, elsewhere: Elsewhere, state_dir: Path) -> str | None:
    """What is told where the command is started although the end of an earlier launch was not seen."""
    if not elsewhere.is_unseen:
        return None
    path = launch_lock.path_of(state_dir)
    known = launch_lock.is_held(state_dir) is not None
    why = f"nobody holds {path}: it is taken for over" if known else "nothing tells whether it still runs: look there"
    return f"an earlier launch of {name} was in another PID namespace (a container), which is not seen from here; {why}"
