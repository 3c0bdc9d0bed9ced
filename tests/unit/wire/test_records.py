"""Records of foreign logs, in their order: what one alone cannot tell."""

from __future__ import annotations

import math
from typing import Any

import pytest

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Event, PhaseChange, Step
from governor.core.events.machine import GpuSample
from governor.core.events.streams import StreamOpened
from governor.wire.jsonl import field_map, parse_line
from governor.wire.records import RecordReader
from tests.unit.core.engine.test_step import at, make_node, play, tick

AT = MonoNs(7)


def read(reader: RecordReader, **record: Any) -> tuple[Event, ...]:
    events = reader.read(record, AT)
    assert isinstance(events, tuple)
    return events


def steps(*records: dict[str, Any], reader: RecordReader | None = None) -> list[Step]:
    reader = reader or RecordReader("run")
    return [event for record in records for event in read(reader, **record) if isinstance(event, Step)]


def phases(**record: Any) -> list[str]:
    return [event.phase for event in read(RecordReader("run"), **record) if isinstance(event, PhaseChange)]


def test_an_evaluation_that_only_its_end_speaks_of_has_been_one() -> None:
    assert phases(phase="eval_stop", step=4, val_loss=1.0) == ["eval", "train"]
    assert phases(phase="eval_value", eval_value=0.3) == ["eval", "train"]
    assert phases(step=4, val_loss=1.0) == ["eval", "train"]


def test_a_row_of_training_whose_loss_has_vanished_is_no_evaluation_whatever_stands_beside_it() -> None:
    (step,) = steps({"step": 4, "loss": None, "grad_norm": 1.0, "value_loss": 0.3})
    assert (step.loss, step.loss_expected) == (None, True)
    assert phases(step=4, loss=None, grad_norm=None, val_loss=0.3) == ["eval", "train"]


def test_a_step_that_names_its_phase_is_a_step() -> None:
    assert [type(event) for event in read(RecordReader("run"), phase="train", step=4, loss=1.0)] == [PhaseChange, Step]
    assert phases(phase="eval", step=4, loss=1.0) == ["eval"]


def test_a_text_with_an_underscore_is_no_number() -> None:
    (step,) = steps({"step": 4, "loss": "1_0", "tokens": "51_2", "lr": "0.1"})
    assert (step.loss, step.tokens, step.lr) == (None, None, 0.1)
    assert steps({"step": "1_0", "loss": 1.0}) == []


def test_tokens_that_stay_are_each_steps() -> None:
    assert [s.tokens for s in steps(*({"step": n, "tokens": 512} for n in range(3)))] == [512] * 3


def test_tokens_that_only_rise_are_a_total() -> None:
    read_steps = steps(*({"step": n, "tokens": 512 * n} for n in range(1, 12)))
    assert [s.tokens for s in read_steps] == [512, *[None] * 10]
    assert [s.tokens_total for s in read_steps] == [*[None] * 8, *(512 * n for n in (9, 10, 11))]


def test_batches_that_grow_for_a_while_are_each_steps() -> None:
    sizes = [8, 16, 24, 24, 32, 40]
    assert [s.tokens for s in steps(*({"step": n, "tokens": size} for n, size in enumerate(sizes)))] == [
        8, None, None, 24, 32, 40,
    ]  # fmt: skip


def test_more_tokens_than_any_batch_are_a_total_at_once() -> None:
    (step,) = steps({"step": 9, "tokens": 2**31})
    assert (step.tokens, step.tokens_total) == (None, 2**31)


def test_whoever_names_the_field_knows_what_it_is() -> None:
    reader = RecordReader("run", field_map({"tokens": "tokens"}))
    assert [s.tokens for s in steps(*({"step": n, "tokens": n} for n in range(1, 20)), reader=reader)] == [
        *range(1, 20)
    ]


def test_an_overflow_count_of_an_interval_is_so_many_skipped_updates() -> None:
    ten, eight, none = steps({"step": 10, "overflow": 10}, {"step": 20, "overflow": 8}, {"step": 30, "loss": 1.0})
    assert (ten.skipped_steps, eight.skipped_steps, none.skipped_steps) == (10, 18, None)
    assert steps({"step": 1, "overflow": 1})[0].applied is False


def test_gpu_figures_stand_beside_a_step_or_alone() -> None:
    (sample,) = read(RecordReader("run"), gpu_util=50.0, gpu_util_each=[0, 100.0, "x", 101])
    assert sample == GpuSample(AT, "run", (0.0, 1.0, None, None))
    assert [type(event) for event in read(RecordReader("run"), step=1, gpu_util=7)] == [GpuSample, Step]


def test_a_record_whose_kind_is_no_word_is_none_of_our_frames() -> None:
    """Whoever writes the log must not end the daemon that reads it."""
    for kind in (["step"], {"step": 1}):
        assert [type(event) for event in read(RecordReader("run"), v=1, kind=kind, step=3, loss=1.0)] == [Step]


def test_more_overflows_than_steps_are_no_count_of_an_interval() -> None:
    """A total since the run began, told with every record, is no update skipped with every record."""
    totals = steps({"step": 100, "overflow": 7}, *({"step": n, "overflow": 7, "loss": 1.0} for n in range(101, 109)))
    assert [(s.skipped_steps, s.applied) for s in totals] == [(7, None), *[(None, None)] * 8]


def test_true_and_false_are_no_losses() -> None:
    """A loss of 0.0 in the place of one that has broken would be health itself."""
    for word in (True, False):
        (step,) = steps({"step": 1, "loss": word, "grad_norm": word, "overflow": word})
        assert (step.loss, step.loss_expected, step.grad_norm) == (None, True, None)
        assert step.applied is (False if word else None)


def test_counts_of_samples_are_steps_also_after_a_restart_and_with_a_grown_batch() -> None:
    reader = RecordReader("run")
    samples = [0, 64, 64, 128, 192, 256, 128, 192, 320]
    records = [{"_step": count, "Train/Samples/train_loss": 2.0} for count in samples]
    assert [step.step for step in steps(*records, reader=reader)] == [1, 2, 2, 3, 4, 5, 3, 4, 5]


def test_deepspeeds_timers_are_milliseconds_and_its_evaluation_is_no_step() -> None:
    record = {"step": 64, "Train/Samples/elapsed_time_ms_forward": 250.0, "Train/Samples/elapsed_time_ms_step": 40.0}
    (step,) = steps(record)
    assert (step.step, step.forward_s, step.optimizer_s) == (1, 0.25, 0.04)
    assert phases(step=64, **{"Train/Samples/eval_loss": 2.0}) == ["eval", "train"]
    assert phases(step=64, **{"lm loss validation": 2.0}) == ["eval", "train"]


# --- a rate alone ---------------------------------------------------------------------------------------------


def rated(*times: float | None, named: bool = True, at_s: list[float] | None = None, **more: Any) -> list[int | None]:
    """The tokens of each record of a log with a rate of 1,000 a second, a record a step."""
    reader = RecordReader("run", field_map({"tokens_per_second": "tps"} if named else {}))
    tokens = []
    for number, time in enumerate(times):
        record = {"step": number + 1, "tps": 1000, **more, **({} if time is None else {"_timestamp": time})}
        events = reader.read(record, MonoNs(round((at_s[number] if at_s else 0) * NS_PER_S)))
        (step,) = (event for event in events if isinstance(event, Step))
        tokens.append(step.tokens)
    return tokens


def test_a_rate_that_the_user_has_named_gives_tokens_for_the_time_since_the_last_record() -> None:
    assert rated(100, 110, 120, 132) == [None, None, 10_000, 12_000]
    assert rated(None, None, None, at_s=[7, 9, 11]) == [None, None, 2000], "without a time of its own: by arrival"
    assert rated(1e9, 1e9 + 4, 1e9 + 8, at_s=[7, 7, 7]) == [None, None, 4000], "its own time counts, not the arrival"
    assert rated(None, None, None, None, at_s=[7, 9, 11, 11]) == [None, None, 2000, None], "flushed together"
    assert rated(100, 110, 120, named=False) == [None, None, None], "a usual name may be the rate of one GPU"
    assert rated(100, 110, 120, tokens=7) == [7, 7, 7]
    assert rated(100, 110, 120, step_s=2) == [2000, 2000, 2000]


def test_a_rate_counts_across_no_gap_no_restart_and_no_step_that_goes_back() -> None:
    assert rated(100, 110, 120, 160, 170) == [None, None, 10_000, None, 10_000], "it was evaluated, or stood still"
    assert rated(100, 110, 120, 5, 15, 25) == [None, None, 10_000, None, 10_000, 10_000], "another process's clock"
    assert rated(100, 110, 120, None, 140, at_s=[0, 10, 20, 30, 40]) == [None, None, 10_000, None, None]
    reader = RecordReader("run", field_map({"tokens_per_second": "tps"}))
    found = steps(
        *({"step": step, "tps": 1000, "t": t} for step, t in ((1, 1), (2, 2), (3, 3), (2, 4), (3, 5))), reader=reader
    )
    assert [step.tokens for step in found] == [None, None, 1000, None, 1000]
    reader.new_launch()
    (next_one,) = steps({"step": 4, "tps": 1000, "t": 6}, reader=reader)
    assert next_one.tokens is None


def test_a_rate_alone_fills_tokens_and_speed_of_a_run() -> None:
    node = make_node()
    play(node, tick(0), StreamOpened(at(0), "run", 1000))
    reader = RecordReader("run", field_map({"tokens_per_second": "tps"}))
    for number in range(1, 6):
        events = reader.read({"step": number, "loss": 2.0, "tps": 1000, "t": 10 * number}, at(10 * number))
        assert isinstance(events, tuple)
        play(node, *events)
    run = node.runs["run"].run
    assert (run.tokens_total, run.tokens_per_s) == (30_000, 1000.0)


def test_a_record_may_say_that_it_lacks_no_loss() -> None:
    """As of an update that fp16 skipped. A null says that one is due."""
    found = steps({"step": 1, "loss_expected": False}, {"step": 2, "loss": None}, {"step": 3, "loss_expected": "no"})
    assert [step.loss_expected for step in found] == [False, True, None]


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("nan", math.nan),
        ("-nan", math.nan),
        ("NAN", math.nan),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("+Infinity", math.inf),
    ],
)
def test_a_number_that_was_printed_and_is_none_is_read(printed: str, meant: float) -> None:
    """As f"{loss:.4f}" and printf write it, which is no JSON."""
    line = f'{{"step": 4, "loss": {printed}, "note": "from nan, on", "norms": [1.0, {printed}]}}'.encode()
    record = parse_line(line)
    assert isinstance(record, dict)
    assert (record["step"], record["note"]) == (4, "from nan, on")
    assert [str(one) for one in (record["loss"], record["norms"][1])] == [str(meant)] * 2


def test_words_of_other_kinds_are_no_numbers() -> None:
    assert parse_line(b'{"step": 4, "loss": nanny}') == ["not JSON: JSONDecodeError"]
    assert parse_line(b'{"step": 4, "loss": none}') == ["not JSON: JSONDecodeError"]
    assert parse_line(b"nan " * 100_000) == ["not JSON: JSONDecodeError"]
