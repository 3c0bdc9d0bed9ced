"""Steps that begin anew with each epoch are steps of the whole run; a run that goes back trains again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from governor.core.base.units import COUNT_MAX, MTOK, MonoNs
from governor.core.events.inputs import PhaseChange, Step
from governor.wire.formats import named
from governor.wire.jsonl import EPOCHS_MAX, Epochs
from governor.wire.records import RecordReader
from tests.unit.core.engine.test_line_times import Log
from tests.unit.core.money.test_waste import until
from tests.unit.followed_log import Watch
from tests.unit.replay.test_play import play, policy

DIVERGENCE = 'name = "divergence"\ntrigger = "loss_divergence"\nresponse = "warn"'

Told = tuple[object, int]  # Epoch and step, as the log has them.


def run_steps(*told: Told) -> list[int]:
    reader = RecordReader("run")
    found = [reader.read({"epoch": epoch, "step": step, "loss": 2.0}, MonoNs(7)) for epoch, step in told]
    return [event.step for events in found for event in events if isinstance(event, Step)]


@pytest.mark.parametrize(
    ("told", "steps"),
    [
        pytest.param([(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)], [1, 2, 3, 4, 5, 6], id="from 1"),
        pytest.param([(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)], [0, 1, 2, 3, 4, 5], id="from 0"),
        pytest.param([(0, 10), (0, 20), (1, 10), (1, 20), (2, 10)], [10, 20, 30, 40, 50], id="each tenth"),
        pytest.param([(0, 0), (0, 10), (1, 0), (1, 10)], [0, 10, 20, 30], id="each tenth, from 0"),
        pytest.param([("0", 1), ("0", 2), ("1", 1)], [1, 2, 3], id="as text"),
        pytest.param([(0, 10), (0, 20), (0, 27), (1, 10), (1, 20), (1, 27), (2, 10)], [10, 20, 27, 37, 47, 54, 64],
                     id="each tenth and the last"),
        pytest.param([(0, 60), (0, 100), (1, 60), (1, 100), (2, 60)], [60, 100, 160, 200, 260], id="two lines each"),
        pytest.param([(0, 10), (0, 20), (1, 3), (1, 13), (1, 23), (2, 6)], [10, 20, 23, 33, 43, 49],
                     id="each tenth of the run"),
        pytest.param([(0, 0), (0, 10), (0, 20), (0, 26), (1, 0), (1, 10)], [0, 10, 20, 26, 27, 37],
                     id="each tenth and the last, from 0"),
        pytest.param([(0.5, 1), (1.0, 2), (1.5, 3), (2.0, 4)], [1, 2, 3, 4], id="steps of the whole run"),
        pytest.param([(0, 5), (0, 6), (0, 1), (0, 2)], [5, 6, 1, 2], id="back within an epoch"),
        pytest.param([(0, 700), (0, 800), (0.9, 900), (1.1, 850)], [700, 800, 900, 850], id="not to the begin"),
        pytest.param([(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (1, 1), (1, 2), (2, 1)], [1, 2, 3, 4, 5, 3, 4, 5],
                     id="back to an epoch of before"),
        pytest.param([(0, 1), (0, 2), (1, 1), (1, 2), (0, 1), (0, 2), (1, 1)], [1, 2, 3, 4, 1, 2, 3], id="all anew"),
        pytest.param([(3, 7), (3, 8), (4, 1), (4, 2)], [7, 8, 9, 10], id="from the middle"),
        pytest.param([(float("nan"), 1), (None, 2), (True, 3), ([1], 1), (10**400, 2), (-1, 1)], [1, 2, 3, 1, 2, 1],
                     id="no epochs"),
    ],
)  # fmt: skip
def test_steps_of_the_run(told: list[Told], steps: list[int]) -> None:
    assert run_steps(*told) == steps


def bars(refresh: int, *lengths: int, begin: int = 0) -> list[tuple[int, float]]:
    """The steps and losses of real bars of epochs of so many batches. A loss is the batch's number in the run."""
    reader, before, drawn, figures = RecordReader("run", text=named("lightning")), 0, [], "v_num=0"
    for epoch, length in enumerate(lengths, begin):
        for at in [*range(refresh, length, refresh), length]:
            last, figures = figures, f"v_num=0, train_loss={before + at}.0"
            drawn += [f"Epoch {epoch}: 10%|# | {at}/{length} [00:05<00:45, 2.00it/s, {one}]" for one in (last, figures)]
        drawn.append(drawn[-1])
        before += length
    found = [reader.read_line(line.encode(), MonoNs(7)) for line in drawn]
    return [(event.step, event.loss or 0) for events in found for event in events if isinstance(event, Step)]


@pytest.mark.parametrize("refresh", [1, 7, 10, 30, 60, 97, 99, 100, 1000])
@pytest.mark.parametrize("lengths", [(97, 97, 97), (100, 100, 100, 100), (100, 45, 100)])
def test_epochs_of_bars_go_on_whatever_their_refresh(refresh: int, lengths: tuple[int, ...]) -> None:
    """Also where an epoch has one bar, and where the steps that a run may have at most end one."""
    for begin in (0, 3):
        told = bars(refresh, *lengths, begin=begin)
        assert [step for step, _ in told] == [loss for _, loss in told]
        assert told[-1][0] == sum(lengths)


@pytest.mark.parametrize("length", [97, 100])
def test_a_loss_that_rises_through_many_epochs_is_seen(length: int) -> None:
    rows: list[dict[str, Any]] = []
    for epoch in range(60):
        for step in [*range(10, length, 10), length]:
            above = min(9.0, max(0, epoch * length + step - 2000) * 0.05)
            rows.append({"t": 60.0 * len(rows), "epoch": epoch, "step": step, "loss": 2.5 + step % 7 / 100 + above})
    told = {one.rule: one.step or 0 for one in play(rows, policy(DIVERGENCE)).verdicts}
    assert 2000 < told["divergence"] < 3000


def test_without_an_epoch_a_step_that_goes_back_is_a_return() -> None:
    reader = RecordReader("run")
    found = [reader.read({"step": step, "loss": 2.0}, MonoNs(7)) for step in (1, 2, 1, 2)]
    assert [event.step for events in found for event in events if isinstance(event, Step)] == [1, 2, 1, 2]


def test_an_evaluation_begins_no_epoch_and_has_the_steps_of_its_own() -> None:
    reader = RecordReader("run")
    rows: list[dict[str, Any]] = [
        {"epoch": 0, "step": 1, "loss": 2.0}, {"epoch": 0, "step": 2, "loss": 2.0},
        {"epoch": 1, "step": 0, "val_loss": 1.0}, {"epoch": 1, "step": 1, "loss": 2.0},
        {"epoch": 1, "step": 1, "val_loss": 1.0}, {"step": 2, "loss": 2.0},
    ]  # fmt: skip
    found = [event for row in rows for event in reader.read(row, MonoNs(7))]
    assert [event.step for event in found if isinstance(event, Step)] == [1, 2, 3, 4]
    assert [event.step for event in found if isinstance(event, PhaseChange)][-2:] == [3, 3]


def test_what_is_kept_of_epochs_is_bounded() -> None:
    epochs = Epochs()
    for epoch in range(10 * EPOCHS_MAX):
        for step in (1, 2):
            assert epochs.step(step, epoch, trains=True) == 2 * epoch + step
    state = epochs.state()
    assert state is not None
    assert len(state) <= EPOCHS_MAX + 4
    assert epochs.step(1, 0, trains=True) == 1


def test_no_step_is_larger_than_a_step_may_be() -> None:
    most = COUNT_MAX
    assert run_steps((0, 0), (0, most), (1, 0), (1, 1), (1, most)) == [0, most, 0, 1, most]
    assert run_steps((0, 2**51), (0, 2**51 + 1), (1, 1), (1, most)) == [2**51, 2**51 + 1, 2**51 + 2, most]


@pytest.mark.parametrize("state", [None, 7, "abc", [], [1, 2, 3], [1, 2, 3, "x"], [1, 2, 3, 4, [5]], [2**63] * 4,
                                   [1, 2, 3, 4, *[[1, 1]] * 100], {"a": 1}])  # fmt: skip
def test_a_state_that_is_none_changes_nothing(state: object) -> None:
    epochs = Epochs()
    epochs.resume(state)
    assert [epochs.step(step, 0, trains=True) for step in (1, 2)] == [1, 2]


def test_tokens_of_later_epochs_are_no_waste_and_those_of_a_return_are() -> None:
    """Two epochs of three steps with a million tokens each; then the second once more, from its first step."""
    log = Log()
    told = [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (1, 1), (1, 2), (1, 3), (2, 1)]
    for place, (epoch, step) in enumerate(told, 1):
        until(log.world, 10 * place)
        record = {"epoch": epoch, "step": step, "loss": 2.0, "tokens": MTOK}
        for event in log.reader.read(record, MonoNs(log.world.mono)):
            assert not isinstance(event, str)
            log.world.play(event)
    meter = log.world.node.runs["log"].history.meter
    assert meter is not None
    assert (meter.useful_tokens, meter.wasted_tokens) == (7 * MTOK, 3 * MTOK)


def test_a_restarted_governor_goes_on_in_the_epoch(tmp_path: Path) -> None:
    watch = Watch(tmp_path)

    def write(*told: Told) -> None:
        with watch.path.open("a") as file:
            file.writelines(json.dumps({"epoch": e, "step": s, "loss": 2.0, "tokens": 1000}) + "\n" for e, s in told)

    write((0, 1), (0, 2), (1, 1))
    watch.poll(1)
    kept = watch.kept(2)
    write((1, 2), (2, 1))
    watch.restart(kept, 60)
    run = watch.node.runs["log"]
    assert (run.run.step, watch.tokens) == (5, 5_000)
    assert run.history.meter is not None
    assert run.history.meter.wasted_tokens == 0
