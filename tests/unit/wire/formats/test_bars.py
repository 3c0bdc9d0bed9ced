"""Lightning's bars, which are drawn more than once for a count: which drawing has the count's own loss."""

from __future__ import annotations

import math

from tests.unit.wire.formats.test_dialects import read


def bars(*drawn: tuple[int, str]) -> list[tuple[int, float]]:
    """The steps and losses of Lightning's bars, of a count and a loss each."""
    bar = "\rEpoch 0:  20%|██        | {at}/100 [00:02<00:08, 9.9it/s, v_num=0, train_loss={loss}]"
    records = read("lightning", *(bar.format(at=at, loss=loss) for at, loss in drawn))
    return [(record["step"], record["loss"]) for record in records]


def test_a_bar_that_is_drawn_twice_has_its_own_loss_the_second_time() -> None:
    twice = [(10, "9.00"), (10, "10.00"), (20, "10.00"), (20, "20.00"), (30, "20.00"), (30, "nan.0")]
    found = bars(*twice)
    assert next(one for one in found if one[0] > 10) == (20, 20.0)
    assert found[-1][0] == 30
    assert math.isnan(found[-1][1])


def test_lightnings_epochs_go_on_with_their_own_losses() -> None:
    """The last bar of an epoch is drawn three times; the first one of the next has its figures."""
    bar = "\rEpoch {epoch}:  20%|██        | {at}/100 [00:02<00:08, 9.9it/s, v_num=0, train_loss={loss}.0]"
    drawn: list[str] = []
    before = 10
    for epoch in range(3):
        for at in range(10, 101, 10):
            own = 100 * epoch + at
            losses = (before, own, own) if at == 100 else (before, own)
            drawn += [bar.format(epoch=epoch, at=at, loss=loss) for loss in losses]
            before = own
    told = [(record["epoch"], record["step"], record["loss"]) for record in read("lightning", *drawn)]
    assert [one for one in told if one[2] != 100 * one[0] + one[1]] == []
    assert len(told) >= 29


def test_a_bar_before_an_epochs_first_count_has_figures_of_before() -> None:
    """So it is drawn in a resumed epoch, and after an evaluation."""
    assert bars((0, "9.00"), (30, "9.00"), (30, "30.00"), (0, "75.00"), (60, "75.00"), (60, "60.00")) == [
        (30, 30.0), (60, 60.0),
    ]  # fmt: skip
    assert bars((0, "9.00"), (1, "1.00"), (2, "2.00")) == [(1, 1.0), (2, 2.0)]


def test_a_bar_that_was_taken_to_be_drawn_once_is_known_by_its_second_drawing() -> None:
    """A loss that stood still at first looks like a bar without a second drawing."""
    alike = [(at, "2.00") for at in range(1, 6)]
    twice = [(10, "2.00"), (10, "10.00"), (20, "10.00"), (20, "20.00"), (30, "20.00"), (30, "30.00")]
    assert [one for one in bars(*alike, *twice) if one[0] > 10] == [(20, 20.0), (30, 30.0)]


def test_a_bar_that_is_drawn_once_may_show_the_same_loss_for_ever() -> None:
    assert [at for at, _ in bars(*((at, "2.00") for at in range(1, 20)))][-16:] == [*range(4, 20)]
