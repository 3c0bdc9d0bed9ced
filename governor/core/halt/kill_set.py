"""Which processes a halt may end: the run's launchers, its announced ranks and their trees, and no other process.

Pure: a process table in, identities out. The table is out of date once it is read. So the sender of a signal compares
identity again (`ports.Processes.send`), and a waiting halt scans again (`strays`) until no process is left.

These belong to a run, besides the trees below its launchers and ranks:
- every process that carries a mark of the run's launch: it has inherited it, and nothing that it does drops it;
- every process in a control group that began with the run: a systemd unit or Slurm step for it alone;
- every process of a session that the run itself began (its leader is one of ours);
- every orphan of a process group that the run itself began;
- in a session that it shares with others (a login shell), an orphan that appeared after the kill set was taken and has
  exactly a rank's or launcher's command line: a member forked it at the last moment.
None of these if it is another run's: neighbours.py. Sharing a parent, a session, a user or a command line with the run
is not enough: sibling runs of one sweep share all of these. A restart loop around the launcher shows itself by the
hello of its new ranks, which has the run's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from governor.core.base.identity import ProcessFacts, ProcessId, carries
from governor.core.halt.known_names import is_for_one_command, is_launcher, is_manager

Table = Mapping[int, ProcessFacts]

# Real chains are below 20. A table that changed while it was read may even have a circle.
ANCESTORS_MAX = 64

_SPAWNED = "--multiprocessing-fork"  # On every process that multiprocessing's spawn method starts.


@dataclass(frozen=True, slots=True)
class KillSet:
    """Members in the order in which to signal them, and what identifies later processes of the run."""

    uids: frozenset[int]  # The run's; more than one only if root's configuration names processes of several.
    # Launchers, outermost first (they restart the others), then ranks, then their trees.
    members: tuple[ProcessId, ...]
    launchers: frozenset[ProcessId]
    sessions: frozenset[int]  # Sessions begun by the run: all their processes are its own.
    groups: frozenset[int]  # Process groups begun by the run.
    shared_sessions: frozenset[int]
    argvs: frozenset[tuple[str, ...]]  # Exact command lines of ranks and launchers.
    alike: frozenset[ProcessId]  # Others that had such a command line already: sibling runs.
    as_of_ticks: int  # The newest start time in the table that this was made from.
    marks: frozenset[int] = frozenset()  # What the run's processes have inherited.
    cgroups: frozenset[str] = frozenset()  # Control groups that began with the run.

    def widened(self, strays: Iterable[ProcessId]) -> KillSet:
        """Add the strays, so that the next scan finds their children too."""
        return replace(self, members=tuple(dict.fromkeys((*self.members, *strays))))

    def without(self, gone: Iterable[ProcessId], table: Table) -> KillSet:
        """Leave out members that are gone and absent from the table: no process descends from them any more.

        A zombie stays, because it still leads its session and group. Their numbers stay here in any case.
        """
        left = frozenset(process for process in gone if _same(table, process) is None)
        alike = frozenset(process for process in self.alike if _same(table, process) is not None)
        return replace(self, members=tuple(p for p in self.members if p not in left), alike=alike)

    def joined(self, earlier: KillSet) -> KillSet:
        """Add what an earlier scan of the same halt knew: its launchers may be gone by now, and their orphans not."""
        members = dict.fromkeys((*self.members, *earlier.members))
        return KillSet(
            uids=self.uids | earlier.uids,
            members=tuple(members),
            launchers=self.launchers | earlier.launchers,
            sessions=self.sessions | earlier.sessions,
            groups=self.groups | earlier.groups,
            shared_sessions=self.shared_sessions | earlier.shared_sessions,
            argvs=self.argvs | earlier.argvs,
            alike=(self.alike | earlier.alike) - members.keys(),
            as_of_ticks=min(self.as_of_ticks, earlier.as_of_ticks),
            marks=self.marks | earlier.marks,
            cgroups=self.cgroups | earlier.cgroups,
        )


def find_launchers(table: Table, rank: ProcessId, own_pid: int | None = None) -> tuple[ProcessId, ...]:
    """Return the same-uid ancestors of the rank that launch training, outermost first; empty when there is none.

    Never `own_pid` or anything above it, and never anything above another uid's process (sudo, a login).
    """
    facts = _same(table, rank)
    if facts is None:
        return ()
    found = []
    child = facts
    for ancestor in ancestors(table, facts):
        if ancestor.uid != facts.uid or ancestor.process.pid == own_pid:
            break
        if is_launcher(ancestor.argv) or _spawned(facts, child, parent=ancestor):
            found.append(ancestor.process)
        child = ancestor
    return tuple(reversed(found))


def descends(table: Table, process: ProcessId, roots: Iterable[ProcessId]) -> bool:
    """Whether the process is one of the roots, stands below one, or is in a session that one began."""
    facts = _same(table, process)
    if facts is None:
        return False
    wanted = frozenset(roots)
    line = {facts.process, *(ancestor.process for ancestor in ancestors(table, facts))}
    return bool(wanted & line) or facts.sid in {root.pid for root in wanted if _same(table, root) is not None}


def kill_set(
    table: Table, ranks: Iterable[ProcessId], own_pid: int, *, launchers: Iterable[ProcessId] = (),
    uid: int | None = None, other_uids: Iterable[int] = (), marks: Iterable[int] = (), cgroups: Iterable[str] = (),
    spared: frozenset[int] = frozenset(), of_command: frozenset[int] = frozenset(),
) -> KillSet | None:  # fmt: skip
    """Return which processes to end for these announced ranks, or None if the run's uid cannot be found any more.

    `launchers` are those found at the hello of the ranks (under `costgov run` also the command itself). They count even
    if they are no longer above a rank. `uid` is the run's; by default, that of a rank or launcher still alive.
    `other_uids`: of processes that root's configuration names for the run. `marks`: what its processes have inherited.
    `cgroups`: as `own_cgroups` returned them while its tree stood. `spared`: what is other runs' (neighbours.py).
    `of_command`: what may be ended whatever its uid is (adopted.py).
    """
    ranks = tuple(dict.fromkeys(ranks))
    recorded = tuple(launchers)
    if uid is None:
        uid = next((facts.uid for facts in _alive(table, (*ranks, *recorded))), None)
        if uid is None:
            return None
    uids = frozenset((uid, *other_uids))
    protected = _protected(table, own_pid) | spared
    found = (launcher for rank in ranks for launcher in find_launchers(table, rank, own_pid))
    all_launchers = [f for f in _alive(table, (*recorded, *found)) if _may_end(f, uids, protected, of_command)]
    all_launchers.sort(key=lambda facts: sum(1 for _ in ancestors(table, facts)))
    rank_facts = [f for f in _alive(table, ranks) if _may_end(f, uids, protected, of_command)]
    roots = {f.process: f for f in (*all_launchers, *rank_facts)}
    members = dict(roots)
    for facts in _trees(table, roots.values(), uids, protected, of_command):
        members.setdefault(facts.process, facts)
    member_pids = {process.pid for process in members} | {rank.pid for rank in ranks}
    argvs = frozenset(f.argv for f in roots.values() if f.argv)
    killed = KillSet(
        uids=uids,
        members=tuple(members),
        launchers=frozenset(f.process for f in all_launchers),
        # A rank that is gone may have led its session (torchrun). The number stays its own while members live.
        sessions=frozenset(s for s in _sids(members.values(), ranks) if s in member_pids),
        groups=frozenset(f.pgid for f in members.values() if f.pgid in member_pids),
        shared_sessions=frozenset(s for s in _sids(members.values(), ()) if s not in member_pids),
        argvs=argvs,
        alike=frozenset(f.process for f in table.values() if f.argv in argvs and f.process not in members),
        as_of_ticks=max((f.process.start_ticks for f in table.values()), default=0),
        marks=frozenset(marks),
        cgroups=frozenset(cgroups),
    )
    return killed.widened(strays(table, killed, own_pid, spared, of_command))


def strays(
    table: Table, killed: KillSet, own_pid: int, spared: frozenset[int] = frozenset(),
    of_command: frozenset[int] = frozenset(),
) -> tuple[ProcessId, ...]:  # fmt: skip
    """Return living processes of the run that are not members: late children, orphans, restarts. No zombies."""
    protected = _protected(table, own_pid) | spared
    members = frozenset(killed.members)
    found: dict[ProcessId, ProcessFacts] = {}
    for facts in table.values():
        if facts.process in members or facts.state in "ZX" or not _may_end(facts, killed.uids, protected, of_command):
            continue
        if _belongs(table, facts, killed, members):
            found[facts.process] = facts
    for facts in _trees(table, tuple(found.values()), killed.uids, protected, of_command):
        if facts.process not in members and facts.state not in "ZX":
            found.setdefault(facts.process, facts)
    return tuple(found)


def own_cgroups(table: Table, roots: Iterable[ProcessId]) -> tuple[str, ...]:
    """Return the control groups that began with one of these ranks and launchers, so that all in them is the run's.

    In those of logins, containers and users others begin processes too (sshd, `docker exec`).
    """
    alive = {facts.process: facts for facts in _alive(table, roots)}
    found = []
    for cgroup in dict.fromkeys(facts.cgroup for facts in alive.values() if is_for_one_command(facts.cgroup)):
        own = [facts for facts in alive.values() if facts.cgroup == cgroup]
        began, uids = min(facts.process.start_ticks for facts in own), {facts.uid for facts in own}
        others = (f for f in table.values() if f.uid in uids and f.process not in alive)
        # A shell of the same tick is above it, not below: it may start other runs.
        if all(f.process.start_ticks > began for f in others if is_below(f.cgroup, (cgroup,))):
            found.append(cgroup)
    return tuple(found)


def is_below(cgroup: str, above: Iterable[str]) -> bool:
    """Whether a control group is one of these or below one."""
    return any(cgroup == one or cgroup.startswith(f"{one}/") for one in above)


def unsure(
    table: Table, roots: Iterable[ProcessId], own_pid: int, marks: Iterable[int], cgroups: Iterable[str]
) -> tuple[ProcessId, ...]:
    """Return orphans that may be the run's: of the uid and cgroup of a root, begun after it, not known by the rest.

    The roots are its ranks and launchers. To be asked at a rank's hello: what a rank starts later has its mark.
    """
    known = {facts.process: facts for facts in _alive(table, roots)}
    if not known:
        return ()
    began = min(facts.process.start_ticks for facts in known.values())
    places = {(facts.uid, facts.cgroup) for facts in known.values()}
    protected, marks, cgroups = _protected(table, own_pid), tuple(marks), tuple(cgroups)
    return tuple(
        facts.process
        for facts in table.values()
        if _is_adopted(table, facts)
        and facts.process.start_ticks >= began
        and (facts.uid, facts.cgroup) in places
        and facts.state not in "ZX"
        and facts.process not in known
        and _may_end(facts, frozenset((facts.uid,)), protected)
        and not any(carries(facts.mark, mark) for mark in marks)
        and not is_below(facts.cgroup, cgroups)
    )


def begun_beside(table: Table, killed: KillSet, own_pid: int, since_ticks: int) -> tuple[ProcessFacts, ...]:
    """Return what the run's user has begun since then outside the run: a server from before may have, for the run."""
    protected, members = _protected(table, own_pid), frozenset(killed.members)
    return tuple(
        facts
        for facts in table.values()
        if facts.process.start_ticks >= since_ticks
        and facts.process not in members
        and facts.state not in "ZX"
        and _may_end(facts, killed.uids, protected)
    )


def marked_of_others(table: Table, killed: KillSet) -> tuple[ProcessId, ...]:
    """Return living processes that the run started and that became another user's (sudo), whom no halt has ended."""
    return tuple(
        facts.process
        for facts in table.values()
        if facts.uid not in killed.uids
        and facts.state not in "ZX"
        and any(carries(facts.mark, m) for m in killed.marks)
    )


def remaining(table: Table, killed: KillSet) -> tuple[ProcessId, ...]:
    """Return the members that the table shows alive. A zombie main thread may hide living threads: ask `is_gone`."""
    return tuple(facts.process for facts in _alive(table, killed.members) if facts.state not in "ZX")


def in_group(table: Table, cgroup: str) -> tuple[ProcessFacts, ...]:
    """Return what lives in a control group or below it, whosever it is."""
    return tuple(f for f in table.values() if f.state not in "ZX" and is_below(f.cgroup, (cgroup,)))


def managers(table: Table, named: Iterable[ProcessFacts], run_uid: int | None) -> frozenset[ProcessId]:
    """Which of a control group's processes manage the others, and are not the run: they began them as another user.

    Only root can do that; the run does it itself if it is root's. `run_uid`: whose the run is; None: unknown. A manager
    of root's own run has its name alone to tell.
    """
    by_pid = {facts.process.pid: facts for facts in named}
    found = {facts.process for facts in by_pid.values() if facts.uid == 0 and is_manager(facts.argv)}
    if run_uid == 0:
        return frozenset(found)
    for facts in by_pid.values():
        above = (ancestor for ancestor in ancestors(table, facts) if ancestor.process.pid in by_pid)
        found.update(ancestor.process for ancestor in above if ancestor.uid == 0 != facts.uid)
    return frozenset(found)


def _spawned(rank: ProcessFacts, child: ProcessFacts, *, parent: ProcessFacts) -> bool:
    """Whether the training script itself launches ranks, by fork or by spawn (torch.multiprocessing).

    A fork keeps the command line, down to the rank. A forking shell has another command line than the rank:
    `( python train.py ) &` in the script of a sweep, whose other runs are below the same shell.
    """
    return bool(child.argv) and (_SPAWNED in child.argv or parent.argv == child.argv == rank.argv)


def _belongs(table: Table, facts: ProcessFacts, killed: KillSet, members: frozenset[ProcessId]) -> bool:
    if any(carries(facts.mark, mark) for mark in killed.marks) or is_below(facts.cgroup, killed.cgroups):
        return True
    for ancestor in ancestors(table, facts):
        if ancestor.process in members:
            return True
    if _led_by_us(table, facts.sid, killed.sessions, members):
        return True
    if not _is_orphan(table, facts):
        return False
    if _led_by_us(table, facts.pgid, killed.groups, members):
        return True
    appeared = facts.process.start_ticks >= killed.as_of_ticks and facts.process not in killed.alike
    return appeared and facts.sid in killed.shared_sessions and facts.argv in killed.argvs


def _led_by_us(table: Table, leader_pid: int, ours: frozenset[int], members: frozenset[ProcessId]) -> bool:
    """Whether the run began this session or group. Another leader began a new one.

    The kernel does not reuse a number while a session or group has it.
    """
    leader = table.get(leader_pid)
    return leader_pid in ours and (leader is None or leader.process in members)


def _is_orphan(table: Table, facts: ProcessFacts) -> bool:
    """Whether its parent is gone: pid 1 or a subreaper outside the session has adopted it."""
    parent = table.get(facts.ppid)
    if facts.ppid <= 1 or parent is None:
        return True
    return parent.sid != facts.sid and facts.process.pid != facts.sid


def _is_adopted(table: Table, facts: ProcessFacts) -> bool:
    """Whether init, or a user's systemd in its place, has it."""
    parent = table.get(facts.ppid)
    return facts.ppid == 1 or (parent is not None and parent.argv[:1] != () and parent.argv[0].endswith("/systemd"))


def _sids(members: Iterable[ProcessFacts], ranks: Iterable[ProcessId]) -> frozenset[int]:
    # 0 is a session of another pid namespace and identifies nothing.
    return frozenset({f.sid for f in members} | {rank.pid for rank in ranks}) - {0}


def _protected(table: Table, own_pid: int) -> frozenset[int]:
    """This process and everything above it, by pid alone: in doubt a process is protected."""
    found: set[int] = set()
    pid = own_pid
    while pid not in found:
        found.add(pid)
        pid = table[pid].ppid if pid in table else 0
    return frozenset(found)


def _may_end(
    facts: ProcessFacts, uids: frozenset[int], protected: frozenset[int], of_command: frozenset[int] = frozenset()
) -> bool:  # fmt: skip
    is_kernel_thread = facts.ppid in (0, 2) and not facts.argv and facts.sid == 0
    pid = facts.process.pid
    return pid > 1 and (facts.uid in uids or pid in of_command) and pid not in protected and not is_kernel_thread


def _trees(
    table: Table, roots: Iterable[ProcessFacts], uids: frozenset[int], protected: frozenset[int],
    of_command: frozenset[int],
) -> Iterator[ProcessFacts]:  # fmt: skip
    """Yield everything below the roots, breadth first. Another uid's process is left out, but not its children."""
    children: dict[int, list[ProcessFacts]] = {}
    for facts in table.values():
        children.setdefault(facts.ppid, []).append(facts)
    level = [facts.process.pid for facts in roots]
    seen = set(level) | protected
    while level:
        below = [child for pid in level for child in children.get(pid, ()) if child.process.pid not in seen]
        seen.update(child.process.pid for child in below)
        yield from (child for child in below if _may_end(child, uids, protected, of_command))
        level = [child.process.pid for child in below]


def ancestors(table: Table, facts: ProcessFacts) -> Iterator[ProcessFacts]:
    """Yield parent, grandparent, …. A parent younger than its child is a reused pid and ends the chain."""
    for _ in range(ANCESTORS_MAX):
        parent = table.get(facts.ppid)
        if facts.ppid <= 1 or parent is None or parent.process.start_ticks > facts.process.start_ticks:
            return
        yield parent
        facts = parent


def stands_below(table: Table, facts: ProcessFacts, pid: int | None) -> bool:
    """Whether the process of this number is above it, pid 1 too."""
    return pid in (facts.ppid, *(ancestor.ppid for ancestor in ancestors(table, facts)))


def _same(table: Table, process: ProcessId) -> ProcessFacts | None:
    facts = table.get(process.pid)
    return facts if facts is not None and facts.process == process else None


def _alive(table: Table, processes: Iterable[ProcessId]) -> Iterator[ProcessFacts]:
    for process in dict.fromkeys(processes):
        facts = _same(table, process)
        if facts is not None:
            yield facts
