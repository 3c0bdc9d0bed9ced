"""What the training thread's fetches of data become: the state that a beat reports."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainer_shim.any_loop import data_loader
from trainer_shim.attach import Shim
from trainer_shim.engines import hooks
from trainer_shim.listener import fetch_fields
from trainer_shim.loader import wrap_loader
from trainer_shim.meter import StepMeter
from trainer_shim.phases import CURRENT
from trainer_shim.progress import Progress
from trainer_shim.tokens import TokenCount
from trainer_shim.wire import FRAMES, faults, head


class DataSet:
    pass


class LoaderIterator:
    """The part of torch's _BaseDataLoaderIter that is used. Seven batches, each seen by `look`."""

    def __init__(self, data_set: Any, look: Callable[[], None]) -> None:
        self._dataset = data_set
        self._num_yielded = 0
        self._look = look

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> int:
        self._look()
        if self._num_yielded == 7:
            raise StopIteration
        self._num_yielded += 1
        return self._num_yielded


ORIGINAL = LoaderIterator.__next__


@pytest.fixture
def meter() -> Iterator[StepMeter]:
    made = StepMeter(Progress(threading.get_ident()), TokenCount(512, None, 1))
    before, CURRENT.meter = CURRENT.meter, made
    yield made
    CURRENT.meter = before


@pytest.fixture
def undo(meter: StepMeter, monkeypatch: pytest.MonkeyPatch) -> Iterator[hooks.Undo]:
    """torch's loader is watched, as far as it is used."""
    torch, utils, data = (types.ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.data"))
    loading = types.ModuleType("torch.utils.data.dataloader")
    for parent, name, child in ((torch, "utils", utils), (utils, "data", data), (data, "dataloader", loading)):
        setattr(parent, name, child)
    loading._BaseDataLoaderIter = LoaderIterator  # type: ignore[attr-defined]
    for module in (torch, utils, data, loading):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    made = hooks.Undo()
    data_loader.watch(meter, made)
    yield made
    made()


def state(meter: StepMeter) -> tuple[bool, int | None]:
    """Whether the thread is inside a fetch, and of a first batch the starts before."""
    return bool(meter.progress.fetch_ns), meter.progress.fetch_starts if meter.progress.fetch_ns else None


@pytest.mark.usefixtures("undo")
def test_each_batch_of_a_torch_loader_is_a_fetch(meter: StepMeter) -> None:
    seen: list[tuple[bool, int | None]] = []
    data_set = DataSet()
    for _ in range(3):
        for _ in LoaderIterator(data_set, lambda: seen.append(state(meter))):
            assert state(meter) == (False, None), "between batches nothing is fetched"
    assert state(meter) == (False, None), "the epoch's end is none, either"
    later = [(True, None)] * 7  # Six batches, and the end.
    assert seen == [(True, 0), *later, (True, 1), *later, (True, 2), *later]
    assert meter.progress.fetch_longest_ns > 0


@pytest.mark.usefixtures("undo")
def test_another_data_set_has_starts_of_its_own(meter: StepMeter) -> None:
    """An evaluation's first batch after many epochs of training; a list that may be another one tomorrow."""
    seen: list[tuple[bool, int | None]] = []
    training, evaluation, batches = DataSet(), DataSet(), [1, 2]
    for data_set in (training, training, evaluation, training, batches, batches, evaluation):
        next(LoaderIterator(data_set, lambda: seen.append(state(meter))))
    assert [starts for _, starts in seen] == [0, 1, 0, 2, 0, 0, 1]
    kept = [DataSet() for _ in range(20)]  # More than are remembered: training is forgotten.
    for data_set in (*kept, training):
        next(LoaderIterator(data_set, lambda: seen.append(state(meter))))
    assert [starts for _, starts in seen[7:]] == [0] * 21


@pytest.mark.usefixtures("undo")
def test_a_loader_that_fails_ends_its_fetch(meter: StepMeter) -> None:
    """A worker that died: the loader raises, and what the script does then is no fetch."""

    def die() -> None:
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")

    with pytest.raises(RuntimeError, match="pid 7"):
        next(LoaderIterator(DataSet(), die))
    assert state(meter) == (False, None)


@pytest.mark.usefixtures("undo")
def test_a_thread_that_prefetches_is_not_the_training_thread(meter: StepMeter) -> None:
    seen: list[tuple[bool, int | None]] = []
    iterator = LoaderIterator(DataSet(), lambda: seen.append(state(meter)))
    thread = threading.Thread(target=next, args=(iterator,))
    thread.start()
    thread.join()
    assert seen == [(False, None)]


def test_under_a_compiler_the_wrapper_does_nothing(meter: StepMeter) -> None:
    seen: list[tuple[bool, int | None]] = []
    next_batch = data_loader._make_next(meter, lambda: True)(ORIGINAL)
    assert next_batch(LoaderIterator(DataSet(), lambda: seen.append(state(meter)))) == 1
    assert seen == [(False, None)]


def test_undone_the_loader_is_as_before(undo: hooks.Undo) -> None:
    assert LoaderIterator.__next__ is not ORIGINAL
    undo()
    assert LoaderIterator.__next__ is ORIGINAL


def test_without_torch_there_is_no_such_loader(meter: StepMeter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    data_loader.watch(meter, hooks.Undo())
    assert "torch" not in sys.modules


def test_a_wrapped_loader_reports_its_fetches(meter: StepMeter) -> None:
    seen: list[tuple[bool, int | None]] = []

    def batches() -> Iterator[int]:
        for batch in range(2):
            seen.append(state(meter))
            yield batch

    class Loader:
        def __iter__(self) -> Iterator[int]:
            return batches()

    loader = wrap_loader(Loader())
    for _ in range(2):
        for _ in loader:
            assert state(meter) == (False, None)
    assert seen == [(True, 0), (True, None), (True, 1), (True, None)]


def test_batches_skipped_on_resume_are_no_measure_of_one(meter: StepMeter) -> None:
    begun: list[int] = []

    def batches() -> Iterator[int]:
        for batch in range(100):
            begun.append(meter.progress.fetch_ns)
            yield batch

    class Loader:
        def __iter__(self) -> Iterator[int]:
            return batches()

    loader = wrap_loader(Loader())
    loader.load_state_dict({"epoch": 3, "batches": 90, "epoch_rng": None})
    assert next(iter(loader)) == 90
    assert len(set(begun[:90])) == 1, "they are skipped in one fetch, which can be seen"
    assert begun[90] > begun[89], "and the batch after them is a fetch of its own"


def test_a_loop_without_a_loader_says_when_it_fetches(meter: StepMeter) -> None:
    shim = Shim(meter, None)
    with shim.data():
        assert state(meter) == (True, None)
        assert meter.progress.last_hook == "data"
    assert state(meter) == (False, None)
    with pytest.raises(OSError, match="stale"), shim.data():
        raise OSError("stale file handle")
    assert state(meter) == (False, None)


@pytest.mark.usefixtures("undo")
def test_a_fetch_within_a_fetch_is_one(meter: StepMeter) -> None:
    seen: list[tuple[bool, int | None]] = []
    with Shim(meter, None).data():
        since_ns = meter.progress.fetch_ns
        next(LoaderIterator(DataSet(), lambda: seen.append(state(meter))))
        assert meter.progress.fetch_ns == since_ns
    assert seen == [(True, None)]


def test_a_beat_says_what_is_known_of_fetches() -> None:
    progress = Progress(1)
    assert fetch_fields(progress) is None, "nothing was fetched where we could see it: unknown"
    progress.enter_fetch(1_000, 0)
    assert fetch_fields(progress) == {"longest_ns": 0, "since_ns": 1_000, "starts": 0}
    progress.leave_fetch(1_500)
    assert fetch_fields(progress) == {"longest_ns": 500}
    progress.enter_fetch(2_000, None)
    shown = fetch_fields(progress)
    assert shown == {"longest_ns": 500, "since_ns": 2_000}
    beat = {**head("beat", 0, 1), "progress_seq": 1, "phase": "train", "phase_since_ns": 1, "fetch": shown}
    assert faults(beat, FRAMES) == []
