"""Which format a log is of, by its lines; and that no line of anybody breaks a reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.units import MonoNs
from governor.core.events.inputs import Step
from governor.wire import formats
from governor.wire.jsonl import date_seconds
from governor.wire.records import RecordReader
from tests.unit.wire.formats.written import BATCH, GPUS, LENGTH, WRITERS, run

LINES = {name: list(write(run(40))) for name, write in WRITERS.items()}


def test_each_format_has_a_writer() -> None:
    assert set(WRITERS) == set(formats.NAMES)


@pytest.mark.parametrize("name", formats.NAMES)
def test_a_log_is_of_its_own_format(name: str) -> None:
    assert formats.recognise(LINES[name]) == name


@pytest.mark.parametrize("name", formats.NAMES)
def test_no_line_of_one_format_is_a_step_of_another(name: str) -> None:
    for other in formats.NAMES:
        log = formats.named(other)
        steps = [record for line in LINES[name] if isinstance(record := log.record(line), dict) and "step" in record]
        assert bool(steps) is (other == name), other


@pytest.mark.parametrize("name", formats.NAMES)
def test_what_is_read_is_what_was_done(name: str) -> None:
    """Steps and losses as far as they are printed, and each token once."""
    did = run(40)
    log = formats.named(name, sequence_length=LENGTH, gpus=GPUS)
    reader = RecordReader("log")
    steps: list[Step] = []
    for line in LINES[name]:
        record = log.record(line)
        assert not isinstance(record, list)
        events = reader.read(record, MonoNs(0)) if record is not None else ()
        assert not isinstance(events, list)
        steps += [event for event in events if isinstance(event, Step) and event.loss is not None]
    from_0 = 1 if name == "nemo" else 0  # Its steps are counted from 0.
    assert [step.step + from_0 for step in steps] == [one.step for one in did]
    assert [step.loss for step in steps] == pytest.approx([one.loss for one in did], rel=2e-3)
    counted = sum(step.tokens or 0 for step in steps[1:])
    if steps[0].tokens_total is not None:
        counted = (steps[-1].tokens_total or 0) - steps[0].tokens_total
    if name in ("lightning", "hf", "modded-nanogpt", "torchtune"):
        assert counted == 0  # They tell none, or no time.
    else:
        assert counted == pytest.approx(39 * BATCH * LENGTH)


def test_jsonl_stays_jsonl() -> None:
    lines = [json.dumps({"step": step, "loss": 2.0}) for step in range(10)]
    assert formats.recognise(lines) is None
    assert formats.recognise([*lines, LINES["nanogpt"][5]]) is None


def test_the_format_with_more_lines_wins() -> None:
    assert formats.recognise([*LINES["nanogpt"][:10], *LINES["llm.c"][:30]]) == "llm.c"


def test_what_trains_on_deepspeed_is_not_deepspeeds() -> None:
    said = [line for pair in zip(LINES["hf"], LINES["deepspeed"][::2], strict=False) for line in pair]
    assert formats.recognise(said) == "hf"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["hello", "Traceback (most recent call last):", "loss: 3", "step 4", "epoch 1 loss 2.0 lr 3e-4"],
        ["step 1/10 | Loss: 2.3 | Time: 3s"],
        ["Epoch 1/10", "32/32 [==============================] - 1s 2ms/step - loss: 0.6931 - acc: 0.5000"],
    ],
)
def test_what_only_looks_like_one_is_none(lines: list[str]) -> None:
    assert formats.recognise(lines) is None


# --- anybody's lines ---------------------------------------------------------------------------------------


def fed(lines: list[str]) -> None:
    """Every reader takes the lines; whatever it makes of them, RecordReader takes."""
    for name in formats.NAMES:
        log, reader = formats.named(name, sequence_length=1024, gpus=8), RecordReader("log")
        for line in lines:
            record = log.record(line)
            assert record is None or isinstance(record, dict | list)
            if isinstance(record, dict):
                reader.read(record, MonoNs(0))
                date_seconds(record.get("asctime", ""))
        log.new_launch()
        assert log.missing() is None or "\n" not in (log.missing() or "")
    formats.recognise(lines)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_bytes_of_anybody(lines: list[bytes]) -> None:
    fed([line.decode("utf-8", "replace") for line in lines])


@st.composite
def broken(draw: Any) -> str:
    """A line with a part cut out, another put in, or a number grown."""
    line: str = draw(st.sampled_from([line for lines in LINES.values() for line in lines]))
    begin = draw(st.integers(0, len(line)))
    end = draw(st.integers(begin, min(len(line), begin + 12)))
    put = draw(
        st.one_of(st.text(max_size=8), st.sampled_from(["9" * 400, "1e999", "-1", "nan", "\r", "\x1b[", "[" * 99]))
    )
    return line[:begin] + put + line[end:]


@settings(max_examples=200)
@given(st.lists(broken(), max_size=4))
def test_broken_lines(lines: list[str]) -> None:
    fed(lines)


@pytest.mark.parametrize(
    "line",
    [
        "|" * 1_000_000,
        "iteration " + "1" * 1_000_000,
        "{'loss': " * 100_000,
        "[" * 1_000_000,
        ":::MLLOG " + "[" * 200_000,
        ":::MLLOG " + '{"key":' * 100_000,
        "\r" * 500_000 + "x",
        "\x1b[" * 300_000,
        " " * 1_000_000,
        "Epoch 0: " + "1%|" * 300_000,
        "step: 1  loss: " + "1" * 1_000_000,
        "a_b=1, " * 100_000,
        "- " * 400_000,
        "\0" * 100_000,
    ],
    ids=lambda line: line[:12],
)
def test_long_lines(line: str) -> None:
    fed([line])
