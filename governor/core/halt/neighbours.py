"""What of a run's surroundings is another run's, so that no halt of the run ends it.

A unit, a Slurm step, a launcher, or a tmux server with all that is opened in it may hold several runs. What identifies
the run alone then shrinks to its ranks, their launchers and trees, and the marks of its ranks. Whoever shares more than
that with it is named, and lives. Only runs of the same user share so: another user's process saves itself and its tree.

Other runs are those that have announced themselves to this governor, and the commands of other governors: a
`costgov run` that has left the run's tree (in a terminal server, by `setsid`). One inside the tree is the run's own
launcher, and ends with it. Before anybody says hello, the mark in an environment may be another launch's, and what
only a control group ties to the run may be another run of its sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from governor.core.base.identity import Clue, ProcessFacts, ProcessId, carries
from governor.core.halt.kill_set import ancestors, is_below
from governor.core.halt.known_names import is_governor, is_switch
from governor.core.halt.programs import is_sibling, program_key

Table = Mapping[int, ProcessFacts]


@dataclass(frozen=True, slots=True)
class Ties:
    """What belongs to the run besides its trees, and what it only shares."""

    marks: tuple[int, ...]
    cgroups: tuple[str, ...]
    spared: frozenset[int] = frozenset()  # Other runs' trees, and launchers that the run has in common with them.
    shared_marks: tuple[int, ...] = ()
    shared_cgroups: tuple[str, ...] = ()

    def shared(self, table: Table, uids: Iterable[int]) -> tuple[ProcessId, ...]:
        """Return what may be the run's or another's, and lives: to be named."""
        wanted = frozenset(uids)
        return tuple(
            facts.process
            for facts in table.values()
            if facts.uid in wanted
            and facts.state not in "ZX"
            and facts.process.pid not in self.spared
            and (_carries_one(facts.mark, self.shared_marks) or is_below(facts.cgroup, self.shared_cgroups))
        )


def own_ties(
    table: Table, ranks: Iterable[ProcessId], launchers: Iterable[ProcessId], marks: Iterable[int],
    cgroups: Iterable[str], others: Iterable[ProcessId], own_pid: int, *, uids: Iterable[int],
    guesses: Iterable[ProcessId] = (), made: str | None = None, strangers: Iterable[ProcessId] = (),
    kept: Iterable[ProcessId] = (),
) -> Ties:  # fmt: skip
    """`others`: announced processes of other runs that live. A process that this run has announced too is its own.

    `guesses`: what may be another run's, as nobody has announced it. `made`: the control group made for the run's
    command. What is in it is the run's, whatever it calls itself: neither a guess nor a name gives it up.
    `uids`: the run's. Another user's process saves itself and its own tree, and nothing else of these uids: its mark
    may be a copy, and it may be in the run's unit or tree.
    `strangers`: those of the others that such users announced: as a setuid program one has root's uid, and its marks.
    `kept`: what the halt has known as the run's. No guess or name takes it back, only what these uids have announced.
    """
    uids, own, known = frozenset(uids), _pids(table, ranks), _pids(table, kept)
    marks, cgroups = tuple(dict.fromkeys(marks)), tuple(dict.fromkeys(cgroups))
    made = made if made in cgroups else None  # Else it is another run's.

    # The heads of other runs: who was announced or guessed, and `costgov run`s that the run did not launch.
    rooted = own | _pids(table, launchers) | known
    announced = _pids(table, others) - own
    maybe = _out_of(table, _pids(table, guesses), made) - own
    guessed = frozenset(pid for pid in maybe if not _in_tree(table, table[pid], known))
    governors = _out_of(table, _governors(table, rooted, own_pid, marks, cgroups, uids), made)
    heads = announced | guessed | governors
    if not heads:
        return Ties(marks, cgroups)

    # A mark or a control group of the run is shared if a head of its users has it that did not copy it.
    credible = frozenset(head for head in heads if table[head].uid in uids) - _pids(table, strangers)
    shared_marks = tuple(mark for mark in marks if _any_carries(table, credible, mark))
    shared_cgroups = tuple(c for c in cgroups if any(is_below(table[h].cgroup, (c,)) for h in credible))

    # The others' trees live, what has their marks, and what is above them: a launcher in common too.
    inside = frozenset(head for head in heads - credible if _in_tree(table, table[head], rooted))
    commands = _commands(table, governors, credible, marks, uids)
    certain = own | (governors & credible)
    spared = _saved(table, heads, credible, inside, commands | ((announced | guessed) & credible), certain, own, uids)
    if known & spared:
        again = _saved(table, announced, credible, announced - credible, announced & credible, certain, own, uids)
        spared -= known - again
    alone = (*(m for m in marks if m not in shared_marks), *_of_ranks_alone(table, own, shared_marks, credible))
    return Ties(
        marks=tuple(dict.fromkeys(alone)),
        cgroups=tuple(cgroup for cgroup in cgroups if cgroup not in shared_cgroups),
        spared=spared,
        shared_marks=shared_marks,
        shared_cgroups=shared_cgroups,
    )


def _marks_of(table: Table, pids: Iterable[int], *, but: Iterable[int]) -> frozenset[int]:
    """The marks of these processes that the others do not have too: those came from further above."""
    found = {table[pid].mark for pid in pids} - {0}
    return frozenset(mark for mark in found if not _any_carries(table, but, mark))


def _commands(
    table: Table, governors: frozenset[int], credible: frozenset[int], marks: Iterable[int], uids: frozenset[int]
) -> frozenset[int]:
    """What the `costgov run`s have started. Another user's proves by no mark of this run that it has started one."""
    marks = tuple(marks)
    return frozenset(
        facts.process.pid
        for facts in table.values()
        if facts.uid in uids
        and facts.ppid in governors
        and (facts.ppid in credible or not _carries_one(facts.mark, marks))
    )


def _of_ranks_alone(
    table: Table, own: frozenset[int], shared_marks: Iterable[int], credible: frozenset[int]
) -> tuple[int, ...]:  # fmt: skip
    """What a rank has itself added to a shared mark, and no head has: the run's alone."""
    of_ranks = dict.fromkeys(table[pid].mark for pid in sorted(own) if _carries_one(table[pid].mark, shared_marks))
    return tuple(mark for mark in of_ranks if not _any_carries(table, credible, mark))


def launched_apart(
    table: Table, clues: Mapping[ProcessId, Clue], own: Iterable[ProcessId], marks: Iterable[int], own_pid: int
) -> tuple[ProcessId, ...]:
    """Return what the environments show of other launches: their `costgov run`s, and what has another launch's mark.

    `clues`: of processes that are not known as the run's. `own`: those that are; what is below one is no other's. A
    `costgov run` in a terminal server that the run has opened has the run's mark in its environment. What has inherited
    the run's mark (as a limit) is the run's, whatever its environment says.
    """
    rooted, marks, found = _pids(table, own), tuple(marks), []
    for process, clue in clues.items():
        facts = table.get(process.pid)
        if facts is None or facts.process != process or process.pid == own_pid or _in_tree(table, facts, rooted):
            continue
        is_other = clue.mark > 0 and not _carries_one(clue.mark, marks) and not _carries_one(facts.mark, marks)
        if is_other or (is_governor(facts.argv) and _carries_one(clue.mark, marks)):
            found.append(process)
    return tuple(found)


def siblings(
    table: Table, ranks: Iterable[ProcessId], launchers: Iterable[ProcessId], marks: Iterable[int],
    cgroups: Iterable[str], programs: Iterable[str] = (), *, uids: Iterable[int],
) -> tuple[ProcessId, ...]:  # fmt: skip
    """Return what only a control group ties to the run, and what may be another run of a sweep before its hello.

    It has the program of a rank with other arguments, and one of the run's uids. `programs`: keys of those of the
    run's ranks that have said hello, dead or alive (programs.py).
    """
    ranks, marks, cgroups, uids = tuple(ranks), tuple(marks), tuple(cgroups), frozenset(uids)
    own = _pids(table, ranks)
    rooted = own | _pids(table, launchers)
    above = {ancestor.process.pid for pid in own for ancestor in ancestors(table, table[pid])}
    living = (program_key(table[pid].argv) for pid in own)
    known = tuple(dict.fromkeys((*programs, *(key for key in living if key is not None))))
    return tuple(
        facts.process
        for facts in table.values()
        if facts.uid in uids
        and is_below(facts.cgroup, cgroups)
        and is_sibling(facts.argv, known)
        and not _carries_one(facts.mark, marks)
        and facts.process.pid not in above
        and not _in_tree(table, facts, rooted)
    )


def _governors(
    table: Table, rooted: frozenset[int], own_pid: int, marks: tuple[int, ...], cgroups: tuple[str, ...],
    uids: frozenset[int],
) -> frozenset[int]:  # fmt: skip
    """The `costgov run`s that only a mark or a control group ties to the run, and that have a command."""
    leading = {facts.ppid for facts in table.values() if facts.sid == facts.process.pid}
    return frozenset(
        facts.process.pid
        for facts in table.values()
        if facts.process.pid in leading
        and ((facts.uid in uids and _carries_one(facts.mark, marks)) or is_below(facts.cgroup, cgroups))
        and is_governor(facts.argv)
        and facts.process.pid != own_pid
        and not _in_tree(table, facts, rooted)
    )


def _out_of(table: Table, heads: frozenset[int], made: str | None) -> frozenset[int]:
    """Those of them that are outside the group, or that have one of their own in it, or whose command has.

    `costgov run` makes one for its command. Whoever may make a group there may leave the run's own too.
    """
    if made is None:
        return heads
    with_own = {pid for f in table.values() if f.cgroup.startswith(f"{made}/") for pid in (f.process.pid, f.ppid)}
    return frozenset(pid for pid in heads if pid in with_own or not is_below(table[pid].cgroup, (made,)))


def _pids(table: Table, processes: Iterable[ProcessId]) -> frozenset[int]:
    return frozenset(p.pid for p in processes if p.pid in table and table[p.pid].process == p)


def _saved(
    table: Table, heads: frozenset[int], credible: frozenset[int], inside: frozenset[int], marking: frozenset[int],
    certain: frozenset[int], own: frozenset[int], uids: frozenset[int],
) -> frozenset[int]:  # fmt: skip
    """What these heads save: their trees, what has left the trees with a mark of theirs, and what is above them.

    `inside`: other users' heads below which what is of the run's uids is the run's.
    `marking`: those whose marks are theirs, but for marks that a process of `certain` has.
    """
    theirs = _marks_of(table, marking, but=certain)
    above = {pid for head in heads for pid in _up_to(table, head, own, frozenset() if head in credible else uids)}
    outside = heads - inside
    below = {
        facts.process.pid
        for facts in table.values()
        if _nearest(table, facts, own, outside if facts.uid in uids else heads)
        or (_carries_one(facts.mark, theirs) and not _in_tree(table, facts, own))
    }
    return (heads | above | below) - own


def _up_to(table: Table, head: int, own: frozenset[int], uids: frozenset[int]) -> list[int]:
    """What is above a head, up to a rank of the run: from there on it is the run's.

    `uids`: the run's, above another user's head. What is of these is no way to the head, but for what became that user
    (su): it would pass a signal on.
    """
    found = []
    for ancestor in ancestors(table, table[head]):
        if ancestor.process.pid in own or (ancestor.uid in uids and not is_switch(ancestor.argv)):
            break
        found.append(ancestor.process.pid)
    return found


def _in_tree(table: Table, facts: ProcessFacts, roots: frozenset[int]) -> bool:
    """Whether it is one of these processes or below one."""
    return facts.process.pid in roots or any(a.process.pid in roots for a in ancestors(table, facts))


def _nearest(table: Table, facts: ProcessFacts, own: frozenset[int], heads: frozenset[int]) -> bool:
    """Whether a head is the first of all ranks on the way up from this process."""
    for one in (facts, *ancestors(table, facts)):
        if one.process.pid in own:
            return False
        if one.process.pid in heads:
            return True
    return False


def _any_carries(table: Table, pids: Iterable[int], mark: int) -> bool:
    return any(carries(table[pid].mark, mark) for pid in pids)


def _carries_one(its: int, marks: Iterable[int]) -> bool:
    return any(carries(its, mark) for mark in marks)
