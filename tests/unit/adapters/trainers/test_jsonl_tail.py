"""Streams as trainers really write them: torn, rotated, truncated, replaced, full of NaN and of foreign names."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.adapters.trainers.jsonl_tail import Chunk, JsonlTail
from governor.core.base.units import MonoNs
from governor.core.events.inputs import PhaseChange, Step
from governor.wire.files.lines import LINE_BYTES_MAX
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from governor.wire.records import RecordReader
from trainer_shim.wire import encode, head

AT = MonoNs(1)


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


class Tail:
    """A log with what reads its lines, and what its last look has said."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self.tail = JsonlTail(str(path), from_start=from_start)
        self.reader = RecordReader("run-1")
        self.status: str | None = None
        self.faulty_total = 0

    def steps(self) -> list[int]:
        chunk: Chunk = self.tail.read()
        self.status = chunk.problem
        found = [self.reader.read_line(line, AT) for line in chunk.lines]
        self.faulty_total += chunk.faulty + sum(isinstance(events, list) for events in found)
        return [event.step for events in found for event in events if isinstance(event, Step)]


def steps(tail: Tail) -> list[int]:
    return tail.steps()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def tail(path: Path) -> Tail:
    return Tail(path)


def test_a_torn_last_line_waits_for_its_rest(path: Path, tail: Tail) -> None:
    assert steps(tail) == []
    whole = line(step=1, loss=2.0)
    path.write_bytes(whole + whole[:7])
    assert steps(tail) == [1]
    with path.open("ab") as file:
        file.write(whole[7:])
    assert steps(tail) == [1]
    assert tail.faulty_total == 0


def test_history_is_skipped_unless_asked_for(path: Path) -> None:
    path.write_bytes(line(step=1) + line(step=2) + b'{"step": 3')
    late, eager = Tail(path), Tail(path, from_start=True)
    assert steps(late) == []
    assert steps(eager) == [1, 2]
    with path.open("ab") as file:
        file.write(b"}\n" + line(step=4))
    assert steps(late) == [4]
    assert steps(eager) == [3, 4]
    assert late.faulty_total == 0


def test_a_file_that_appears_later_is_read_whole(path: Path, tail: Tail) -> None:
    assert steps(tail) == []
    assert tail.status is not None
    assert "No such file" in tail.status
    path.write_bytes(line(step=1))
    assert steps(tail) == [1]
    assert tail.status is None


def test_rotation_loses_no_line_of_either_file(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=1))
    assert steps(tail) == [1]
    with path.open("ab") as file:
        file.write(line(step=2) + b'{"torn')
    path.rename(path.with_suffix(".1"))
    path.write_bytes(line(step=3))
    assert steps(tail) == [2, 3]
    assert tail.faulty_total == 1


def test_a_rotated_file_is_read_to_its_end_over_several_polls(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=0))
    assert steps(tail) == [0]
    with path.open("ab") as file:
        file.writelines(line(step=n, padding="x" * 1000) for n in range(1, 2_000))
    path.rename(path.with_suffix(".1"))
    path.write_bytes(line(step=2_000))
    assert [n for _ in range(5) for n in steps(tail)] == list(range(1, 2_001))


def test_truncation_in_place_starts_over(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=1) + line(step=2))
    assert steps(tail) == [1, 2]
    os.truncate(path, 0)
    assert steps(tail) == []
    with path.open("ab") as file:
        file.write(line(step=3))
    assert steps(tail) == [3]


def test_a_file_cut_back_is_read_again_from_its_start(path: Path, tail: Tail) -> None:
    """It may be a new attempt under the same header; steps that go back are normal input, lost ones are not."""
    steps(tail)
    first = line(step=1, padding="x" * 100)
    path.write_bytes(first + line(step=2))
    assert steps(tail) == [1, 2]
    os.truncate(path, len(first))
    assert steps(tail) == [1]
    with path.open("ab") as file:
        file.write(line(step=2))
    assert steps(tail) == [2]


def test_a_file_written_anew_and_longer_than_before_is_noticed(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=1, note="first attempt"))
    assert steps(tail) == [1]
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(b"".join(line(step=n, note="second attempt") for n in range(5)))
    assert steps(tail) == [0, 1, 2, 3, 4]


def test_a_deleted_file_is_read_to_its_end(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=1))
    assert steps(tail) == [1]
    with path.open("ab") as file:
        path.unlink()
        file.write(line(step=2))
        file.flush()
        assert steps(tail) == [2]


def test_bad_lines_are_counted_and_the_good_ones_read(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(b"garbage\n" + line(step=1) + b"\xff\xfe\n[1]\n" + line(step=2))
    assert steps(tail) == [1, 2]
    assert tail.faulty_total == 3


def test_an_oversized_line_is_skipped_once_and_bounded_in_memory(path: Path, tail: Tail) -> None:
    steps(tail)
    with path.open("wb") as file:
        for _ in range(3):
            file.write(b"x" * LINE_BYTES_MAX)
            file.flush()
            assert steps(tail) == []
        file.write(b"\n" + line(step=1))
    assert steps(tail) == [1]
    assert tail.faulty_total == 1


def test_a_large_backlog_arrives_over_several_polls(path: Path, tail: Tail) -> None:
    steps(tail)
    count = 40_000
    path.write_bytes(b"".join(line(step=n, loss=1.0, padding="x" * 40) for n in range(count)))
    polls = [steps(tail) for _ in range(10)]
    assert [n for found in polls for n in found] == list(range(count))
    assert len([found for found in polls if found]) > 1


def test_a_pipe_under_the_name_blocks_nobody(path: Path, tail: Tail) -> None:
    os.mkfifo(path)
    assert steps(tail) == []
    assert tail.status is not None
    assert "not a regular file" in tail.status


def test_a_name_that_cannot_be_followed_is_said_and_what_stood_there_stays_history(path: Path, tail: Tail) -> None:
    """Not absence: the file may be as old as before."""
    path.symlink_to(path)
    assert steps(tail) == []
    assert tail.status is not None
    assert "symbolic links" in tail.status
    path.unlink()
    path.write_bytes(line(step=1))
    assert steps(tail) == []
    assert tail.status is None
    with path.open("ab") as file:
        file.write(line(step=2))
    assert steps(tail) == [2]


def test_a_directory_that_vanishes_and_comes_back_loses_and_repeats_nothing(path: Path, tail: Tail) -> None:
    assert steps(tail) == []
    path.write_bytes(line(step=1))
    assert steps(tail) == [1]
    away = path.parent.with_name("away")
    path.parent.rename(away)
    with (away / path.name).open("ab") as file:
        file.write(line(step=2))
    assert steps(tail) == [2]
    assert tail.status is not None
    assert "No such file" in tail.status
    away.rename(path.parent)
    with path.open("ab") as file:
        file.write(line(step=3))
    assert steps(tail) == [3]
    assert tail.status is None


def test_a_file_that_cannot_be_read_is_missing_data_and_not_our_end(path: Path, tail: Tail) -> None:
    """A regular file whose every read fails, as on a file server that has lost it: /proc/self/mem does so at 0."""
    assert steps(tail) == []
    path.symlink_to("/proc/self/mem")
    assert steps(tail) == []
    assert tail.status is not None
    assert "Input/output error" in tail.status
    path.unlink()
    path.write_bytes(line(step=1))
    assert steps(tail) == [1]
    assert tail.status is None


def test_a_rotated_file_whose_successor_cannot_be_read_yet_is_followed_once_it_can(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=1))
    assert steps(tail) == [1]
    path.rename(path.with_suffix(".1"))
    path.symlink_to("/proc/self/mem")
    assert steps(tail) == []
    assert tail.status is not None
    path.unlink()
    path.write_bytes(line(step=2))
    assert steps(tail) == [2]
    assert tail.status is None


# --- one line --------------------------------------------------------------------------------------------


def read(text: str | bytes, fields: object = DEFAULT_FIELDS) -> object:
    """The one event of a line, its last; its faults; None for a line without events."""
    events = RecordReader("run-1", fields).read_line(text if isinstance(text, bytes) else text.encode(), AT)  # type: ignore[arg-type]
    return events if isinstance(events, list) else events[-1] if events else None


def foreign(text: str) -> Step:
    event = read(text)
    assert isinstance(event, Step)
    return event


@pytest.mark.parametrize("token", ["NaN", '"nan"', '"NaN"'])
def test_nan_is_news_in_every_spelling(token: str) -> None:
    loss = foreign(f'{{"step": 1, "loss": {token}}}').loss
    assert loss is not None
    assert math.isnan(loss)


@pytest.mark.parametrize("token", ["Infinity", "-Infinity", '"inf"', '"-Infinity"'])
def test_infinities_too(token: str) -> None:
    assert math.isinf(foreign(f'{{"step": 1, "grad_norm": {token}}}').grad_norm or 0.0)


def test_a_loss_that_became_null_has_vanished_and_one_never_logged_has_not() -> None:
    assert foreign('{"step": 1, "loss": null}').loss_expected is True
    assert foreign('{"step": 1, "step_time_s": 1.5}').loss_expected is None


def test_foreign_names_and_milliseconds_are_understood() -> None:
    event = foreign('{"iteration": 10.0, "lm loss": 2.5, "step_time_ms": 250, "consumed_tokens": 1e6}')
    assert (event.step, event.loss, event.step_s, event.tokens_total) == (10, 2.5, 0.25, 1_000_000)


def test_of_tokens_seconds_and_their_quotient_two_are_enough() -> None:
    assert foreign('{"step": 1, "tokens_per_second": 1000, "step_time_s": 2}').tokens == 2000
    assert foreign('{"step": 1, "tokens_per_second": 1000, "tokens": 500}').step_s == 0.5
    assert foreign('{"step": 1, "tokens_per_second": 0, "tokens": 500}').step_s is None


def test_an_overflow_is_a_step_that_was_not_applied() -> None:
    assert foreign('{"step": 1, "loss": 3, "overflow": true}').applied is False
    assert foreign('{"step": 1, "loss": 3, "overflow": false}').applied is None


@pytest.mark.parametrize(
    ("word", "phase"), [("eval_start", "eval"), ("eval_stop", "train"), ("checkpoint", "checkpoint")]
)
def test_phases_are_marks(word: str, phase: str) -> None:
    event = read(f'{{"step": 4, "phase": "{word}"}}')
    assert isinstance(event, PhaseChange)
    assert (event.phase, event.step) == (phase, 4)


@pytest.mark.parametrize(
    "text",
    ["", "  ", '{"meta": {"run": 1}}', '{"phase": "lunch", "step": 5}', '{"phase": null}', "{}"],
)
def test_lines_that_are_no_step_are_passed_over(text: str) -> None:
    assert read(text) is None


def test_our_own_frames_are_the_same_objects_one_per_line() -> None:
    frame = {**head("step", 3, 9), "step": 7, "attempt_step": 1, "loss": "nan", "tokens": 10}
    event = read(encode(frame))
    assert isinstance(event, Step)
    assert (event.rank, event.step, event.tokens, event.connection) == (3, 7, 10, None)
    assert isinstance(read(encode({**frame, "step": "x"})), list)
    assert read(encode({**head("beat", 0, 1), "progress_seq": 1, "phase": "train", "phase_since_ns": 1})) is None


def test_the_users_names_come_first_and_a_wrong_field_is_named() -> None:
    fields = field_map({"loss": "ce", "step": ["my_step", "s"]})
    event = read('{"s": 3, "ce": 1.0, "loss": 9.0}', fields)
    assert isinstance(event, Step)
    assert (event.step, event.loss) == (3, 1.0)
    with pytest.raises(ValueError, match=r'"los" is not a field of a step; known: .*loss'):
        field_map({"los": "x"})


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
keys = st.sampled_from(sorted({name for names in DEFAULT_FIELDS.values() for name in names})) | st.text(max_size=5)


@given(st.dictionaries(keys, scalars | st.lists(scalars, max_size=2), max_size=10))
def test_no_record_raises(record: dict[str, object]) -> None:
    event = read(json.dumps(record))
    if isinstance(event, Step):
        assert event.step >= 0
        assert event.step_s is None or 0 <= event.step_s < math.inf
        assert event.tokens is None or event.tokens >= 0


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    read(data)
