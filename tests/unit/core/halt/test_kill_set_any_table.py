"""Whatever a process table says, torn ones included, some are never chosen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.halt.kill_set import kill_set, strays

USER = 1000
PYTHON = "/venv/bin/python"
TORCHRUN = (PYTHON, "/venv/bin/torchrun", "--nproc_per_node", "2", "train.py")
RANK = (PYTHON, "-u", "train.py")
PIDS = st.integers(0, 12)
ARGVS = st.sampled_from([(), RANK, TORCHRUN, ("bash",)])


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
