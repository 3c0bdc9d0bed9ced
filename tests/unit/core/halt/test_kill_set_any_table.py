"""Whatever a process table says, torn ones included, some are never chosen."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.halt.kill_set import kill_set, strays
from governor.core.halt.neighbours import own_ties, siblings
from governor.core.halt.programs import program_key

USER = 1000
PYTHON = "/venv/bin/python"
TORCHRUN = (PYTHON, "/venv/bin/torchrun", "--nproc_per_node", "2", "train.py")
RANK = (PYTHON, "-u", "train.py")
PIDS = st.integers(0, 12)
OTHER_RANK = (*RANK, "--lr", "2")
ARGVS = st.sampled_from([(), RANK, TORCHRUN, ("bash",)])
SCOPE = "/system.slice/run-u12.scope"
MARK = 0x9ABCDEF012
MARKS = st.sampled_from([0, MARK, MARK + 1])
GOVERNING = (PYTHON, "/venv/bin/costgov", "run", "--", "python", "t.py")


@st.composite
def tables(draw: st.DrawFn) -> dict[int, ProcessFacts]:
    """Any table, torn ones included: circles, missing parents, sessions led by nobody, numbers used twice over time."""
    return {
        pid: ProcessFacts(
            ProcessId(pid, draw(st.integers(1, 5)), "boot"), draw(PIDS), draw(st.sampled_from([0, USER])),
            draw(PIDS), draw(PIDS), draw(st.sampled_from("SRZT")), draw(ARGVS), "/",
        )
        for pid in draw(st.sets(st.integers(1, 12)))
    }  # fmt: skip


def ancestors(table: dict[int, ProcessFacts], pid: int) -> set[int]:
    """By number alone, without the doubts of the code under test."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found


@given(tables(), tables(), st.lists(st.tuples(PIDS, st.integers(1, 5)), max_size=4), PIDS)
def test_whatever_the_tables_say_some_are_never_touched(
    table: dict[int, ProcessFacts], later: dict[int, ProcessFacts], announced: list[tuple[int, int]], own: int
) -> None:
    ranks = [ProcessId(pid, ticks, "boot") for pid, ticks in announced]
    killed = kill_set(table, ranks, own, launchers=ranks[:1], uid=USER)
    assert killed is not None
    for now, chosen in ((table, killed.members), (later, strays(later, killed, own))):
        for process in chosen:
            assert process.pid > 1
            assert process.pid != own
            assert now[process.pid].process == process, "identity, not number"
            assert now[process.pid].uid == USER
            assert process.pid not in ancestors(now, own)
    assert not set(strays(later, killed, own)) & set(killed.members)


@st.composite
def beside(
    draw: st.DrawFn, numbers: range, uid: int, parents: range, argvs: Collection[tuple[str, ...]]
) -> list[ProcessFacts]:
    return [
        ProcessFacts(
            ProcessId(pid, draw(st.integers(1, 5)), "boot"), draw(st.sampled_from([1, *parents])), uid,
            draw(PIDS), draw(st.sampled_from([pid, 5])), "S", draw(st.sampled_from([*argvs])),
            draw(st.sampled_from(["/", SCOPE, f"{SCOPE}/below"])), mark=draw(MARKS),
        )
        for pid in draw(st.sets(st.sampled_from(numbers)))
    ]  # fmt: skip


OWN = range(2, 9)
FOREIGN = range(20, 25)
SOME = st.sets(st.sampled_from(OWN))


@given(
    beside(OWN, USER, OWN, (RANK, OTHER_RANK, TORCHRUN, ("bash",))),
    beside(FOREIGN, USER + 1, range(2, 25), (RANK, OTHER_RANK, GOVERNING)),
    st.sets(st.sampled_from(FOREIGN)), SOME, SOME, SOME, SOME,
)  # fmt: skip
def test_no_process_of_another_user_changes_which_of_the_runs_users_processes_are_spared(
    own: list[ProcessFacts], foreign: list[ProcessFacts], announced: set[int], ranks: set[int], launchers: set[int],
    others: set[int], kept: set[int],
) -> None:  # fmt: skip
    """Whatever it announces, copies, calls itself, and wherever it stands, but for what it has below it."""
    table = {facts.process.pid: facts for facts in own}

    def of(pids: set[int]) -> list[ProcessId]:
        return [facts.process for facts in (*own, *foreign) if facts.process.pid in pids]

    def found(table: dict[int, ProcessFacts], others: list[ProcessId]) -> tuple[object, ...]:
        keys = [key] if (key := program_key(RANK)) else []
        maybe = siblings(table, of(ranks), of(launchers), [MARK], [SCOPE], keys, uids=[USER])
        ties = own_ties(
            table, of(ranks), of(launchers), [MARK], [SCOPE], others, 50, uids=[USER], guesses=maybe, kept=of(kept)
        )  # fmt: skip
        spared = {pid for pid in ties.spared if pid in table and table[pid].uid == USER}
        return maybe, spared, ties.marks, ties.cgroups, ties.shared_marks, ties.shared_cgroups

    alone = found(table, of(others))
    assert found({**table, **{facts.process.pid: facts for facts in foreign}}, of(others | announced)) == alone
