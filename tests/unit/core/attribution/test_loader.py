"""The kind of a loader that starves a run: from the figures that were measured of each, and from samples."""

from __future__ import annotations

import pytest

from governor.core.attribution.loader import LOOKS_MIN, Loader, LoaderUse, loader_of, restored_use
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.machine import HostSample, NodeUse, ProcessUse

RANK = ProcessId(10, 1, "b")


def looks(
    cpu: float = 0.0, states: str = "S", *, workers: int = 4, read: int = 0, pressure: float = 0.0, busy: float = 0.5,
    name: str = "pt_data_worker", seconds: int = 12, cut: int = 0,
) -> LoaderUse:  # fmt: skip
    """A look a second: each worker uses so much of a core, and is in these states in turn. `cut`: so many are."""
    use = LoaderUse()
    for second in range(seconds + 1):
        node = NodeUse(cores=8, cpu_busy_s=8 * busy * second, io_pressure_s=pressure * second)
        below = [
            ProcessUse(
                ProcessId(20 + number, 1, "b"), RANK, name, states[second % len(states)],
                round(cpu * second * NS_PER_S), None, read * second,
            )
            for number in range(workers)
        ]  # fmt: skip
        rank = ProcessUse(RANK, RANK, "python", "R", second * NS_PER_S)
        unseen = frozenset({RANK} if second < cut else ())
        use.look(HostSample(MonoNs((100 + second) * NS_PER_S), node, (rank, *below), cut=unseen))
    use.close(starved=True)
    return use


def told(use: LoaderUse) -> Loader:
    found = loader_of(use.kept)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (looks(0.97, "R"), "cpu"),
        (looks(0.5, "R", busy=1.0), "cpu"),  # Others have half of each core: it could run all the time.
        (looks(0.42, "DR", read=85_000_000, pressure=0.29), "disk"),
        (looks(0.42, "S", read=85_000_000, pressure=0.29), "disk"),
        (looks(0.01, "S"), "outside"),
        (looks(0.01, "S", pressure=0.5), "outside"),  # Somebody else waits for the disk: these have read nothing.
        (looks(workers=0), "no_workers"),
        (looks(0.9, "R", name="python"), "cpu"),  # An older torch's.
        (looks(0.001, "S", name="python"), "no_workers"),  # A resource tracker.
        (looks(0.4, "S"), None),
    ],
)
def test_each_kind_by_its_figures(use: LoaderUse, kind: str | None) -> None:
    assert told(use).kind == kind


def test_workers_that_may_have_been_below_a_cut_look_are_not_said_to_be_missing() -> None:
    found = told(looks(workers=0, cut=12))
    assert (found.kind, found.next_step) == (None, None)
    assert found.evidence
    assert told(looks(workers=0, cut=1)).kind == "no_workers", "a single look"
    assert told(looks(0.97, "R", cut=12)).kind == "cpu", "those that were seen are told"
    assert told(looks(0.97, "R", cut=12)).evidence != told(looks(0.97, "R")).evidence, "they are some of them"


def test_more_workers_are_no_advice_where_every_core_is_busy() -> None:
    assert told(looks(0.97, "R")).next_step != told(looks(0.97, "R", busy=0.95)).next_step


def test_a_few_looks_say_nothing_and_no_ranks_look_counts() -> None:
    assert loader_of(looks(0.9, "R", seconds=LOOKS_MIN - 1).kept) is None
    assert loader_of(looks(0.9, "R", seconds=LOOKS_MIN).kept) is not None
    use = LoaderUse()
    for second in range(9):
        use.look(HostSample(MonoNs(second * NS_PER_S), NodeUse(), ()))
    assert use.pending == {}


def test_a_window_that_data_did_not_starve_is_no_evidence() -> None:
    use = looks(0.01, "S")
    before = dict(use.kept)
    use.pending = dict(looks(0.97, "R").kept)
    use.close(starved=False)
    assert (use.kept, use.pending) == (before, {})


def test_counters_that_go_back_and_far_looks_add_nothing() -> None:
    use, worker = LoaderUse(), ProcessId(20, 1, "b")
    for at_s, cpu_ns in ((1, 500), (2, 100), (60, 10**9)):
        below = ProcessUse(worker, RANK, "pt_data_worker", "S", cpu_ns)
        rank = ProcessUse(RANK, RANK, "python", "S", 0)
        use.look(HostSample(MonoNs(at_s * NS_PER_S), NodeUse(), (rank, below)))
    assert (use.pending["cpu_ns"], use.pending["looks"]) == (0, 1)


@pytest.mark.parametrize("row", [3, [], {"evil": 1}, {"looks": -1}, {"looks": True}, {"ns": 2**64}, {"ns": "1"}])
def test_a_journals_row_that_is_not_ours_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="figures"):
        restored_use(row)
    kept = looks(0.9, "R").kept
    assert restored_use(kept).kept == kept
