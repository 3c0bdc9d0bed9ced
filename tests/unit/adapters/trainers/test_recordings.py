"""Recordings on disk: bounded, whole after every write, and read back as one log."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.trainers.recordings import ALL_BYTES_MAX, RUN_BYTES_MAX, Pending, RecordingFiles
from governor.adapters.trainers.segments import FRESH_S, Limits, RunSegments, kept_bytes, sweep
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.node import RUNS_MAX
from governor.replay.logs import Place, logs, records
from governor.replay.readers.lines import LogUnreadable
from governor.wire import recording
from governor.wire.recording import ReceivedFrame, number_of, segments
from trainer_shim.wire import encode, head

LIMITS = Limits(run_bytes_max=64_000, node_bytes_max=200_000, keep_s=3600.0, free_bytes_min=0)
FACTS = {"node": "n", "boot_id": "b"}
FIRST = ConnectionId(7)


def at(number: int) -> MonoNs:
    return MonoNs(number * NS_PER_S)


def hello(number: int = 0, connection: ConnectionId = FIRST) -> ReceivedFrame:
    frame = {"seq": 1, "run": "r", "attempt": "a", "local_rank": 0, "world_size": 1, "signal": 0}
    packet = encode({**head("hello", 0, at(number)), **frame})
    return ReceivedFrame(at(number), connection, packet, ProcessId(40, 9, "b"))


def step(number: int, detail: str = "") -> ReceivedFrame:
    more = {"detail": detail} if detail else {}
    packet = encode({**head("step", 0, at(number)), "step": number, "attempt_step": number, "loss": 2.0, **more})
    return ReceivedFrame(at(number), FIRST, packet)


def big(number: int) -> ReceivedFrame:
    """A step that does not pack."""
    return step(number, os.urandom(500).hex())


def ours(root: Path, limits: Limits = LIMITS) -> RunSegments:
    return RunSegments(root, "r", limits, FACTS)


def write(one: RunSegments, batch: Sequence[ReceivedFrame | bytes], hellos: Sequence[ReceivedFrame] = ()) -> None:
    first = next(line for line in batch if isinstance(line, ReceivedFrame))
    one.write(batch, hellos or [hello()], first.at, durably=False)


def read(path: Path) -> tuple[list[tuple[Place, Any]], str | None]:
    """Every record, and the one line that says what could not be read."""
    found = []
    try:
        found.extend(records(path))
    except LogUnreadable as error:
        return found, str(error)
    return found, None


def steps(path: Path) -> list[int]:
    found, problem = read(path)
    assert problem is None
    return [record["step"] for _, record in found if record.get("kind") == "step"]


def kinds(found: Iterable[tuple[Place, Any]]) -> list[str]:
    return [record.get("note") or record.get("kind") or "head" for _, record in found]


def test_every_batch_leaves_a_whole_file_and_all_are_one_log(tmp_path: Path) -> None:
    one = ours(tmp_path)
    write(one, [hello(), step(1)])
    write(one, [step(2)])
    assert one.path is not None
    assert gzip.decompress(one.path.read_bytes()).count(b"\n") == 4
    assert logs([tmp_path]) == logs([tmp_path / "r"]) == ([tmp_path / "r"], [])
    assert steps(tmp_path / "r") == steps(one.path) == [1, 2]


def test_a_run_that_has_reached_its_limit_forgets_its_oldest_and_can_still_be_replayed(tmp_path: Path) -> None:
    one = ours(tmp_path)
    write(one, [hello(), *map(big, range(10))])
    for number in range(10, 400, 10):
        write(one, [big(number + n) for n in range(10)])
        one.forget_oldest()
        kept = sum(path.stat().st_size for path in segments(tmp_path / "r"))
        assert kept <= LIMITS.run_bytes_max + 2 * LIMITS.segment_bytes, "a batch beyond, no more"
    assert number_of(segments(tmp_path / "r")[0].name) != 1
    last = steps(tmp_path / "r")
    assert last == list(range(last[0], 400))
    found, _ = read(tmp_path / "r")
    assert kinds(found)[:2] == ["head", "hello"], "whoever was connected is named where it begins now"


def test_segments_that_somebody_else_numbers_or_removes_cost_no_line(tmp_path: Path) -> None:
    one = ours(tmp_path)
    write(one, [hello(), step(1)])
    (tmp_path / "r" / "frames-0000001.jsonl.gz").write_bytes(bytes(LIMITS.run_bytes_max))
    (tmp_path / "r" / "frames-000000.jsonl.gz").mkdir()
    one.forget_oldest()
    assert one.path is not None
    assert one.path.exists(), "what is being written stays"


def test_what_all_runs_are_writing_fits_into_the_nodes_limit() -> None:
    limits = Limits(run_bytes_max=1_000_000, node_bytes_max=1_000_000, keep_s=1.0, free_bytes_min=0)
    assert limits.segment_bytes * RUNS_MAX <= limits.node_bytes_max


def test_the_second_segment_repeats_who_is_connected_at_its_begin_and_misses_nothing(tmp_path: Path) -> None:
    one = ours(tmp_path)
    write(one, [hello(), *map(big, range(20))])
    write(one, [step(20)])
    first, second = segments(tmp_path / "r")
    assert kinds(read(second)[0]) == ["head", "hello", "step"]
    found, _ = read(tmp_path / "r")
    assert kinds(found).count("head") == 1
    assert "gap" not in kinds(found)
    again = [record for _, record in found if record.get("again")]
    assert [record["at_ns"] for record in again] == [at(20)]
    assert first != second


def test_the_next_governors_segment_begins_behind_a_break(tmp_path: Path) -> None:
    write(ours(tmp_path), [hello(), step(1)])
    write(ours(tmp_path), [hello(5), step(5)])
    found, problem = read(tmp_path / "r")
    assert (kinds(found), problem) == (["head", "hello", "step", "gap", "hello", "step"], None)
    assert found[3][1]["at_ns"] == at(1), "nobody is heard from what came last"


@pytest.mark.parametrize("torn_bytes", [5, 12, 40, 80])
def test_what_a_power_cut_tore_is_not_missed(tmp_path: Path, torn_bytes: int) -> None:
    one = ours(tmp_path)
    write(one, [hello(), step(1)])
    assert one.path is not None
    whole = one.path.read_bytes()
    write(one, [step(2), step(3)])
    os.truncate(one.path, len(whole) + torn_bytes)
    write(ours(tmp_path), [hello(5), step(5)])
    assert steps(tmp_path / "r") in ([1, 5], [1, 2, 5]), "of the torn batch what is whole, before it everything"


def test_damage_is_named_and_costs_its_segment_alone(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write(ours(tmp_path), [hello(number), step(number)])
    damaged = segments(tmp_path / "r")[1]
    damaged.write_bytes(b"no gzip at all" * 10)
    found, problem = read(tmp_path / "r")
    assert [record["step"] for _, record in found if record.get("kind") == "step"] == [1, 3]
    assert problem is not None
    assert problem.startswith(f"{damaged}:1: damaged: ")


def test_a_write_that_failed_is_a_gap_behind_which_everybody_is_named_again(tmp_path: Path) -> None:
    one = ours(tmp_path)
    write(one, [hello(), step(1)])
    assert one.path is not None
    one.path.unlink()  # As the disk would refuse it.
    with pytest.raises(FileNotFoundError):
        write(one, [step(2), step(3)])
    write(one, [step(4)])
    (only,) = segments(tmp_path / "r")
    found, problem = read(only)
    assert (kinds(found), problem) == (["head", "gap", "hello", "step"], None)
    assert (found[1][1]["at_ns"], found[1][1]["lines"]) == (at(2), 2)


def test_the_last_of_the_disk_is_left_to_the_journal(tmp_path: Path) -> None:
    one = ours(tmp_path, Limits(1, 1, 1.0, free_bytes_min=1 << 62))
    with pytest.raises(OSError, match="are left alone"):
        write(one, [hello(), step(1)])
    assert not list(tmp_path.iterdir())


def make(root: Path, run: str, sizes: Sequence[int], written_s: float) -> None:
    (root / run).mkdir(parents=True)
    for number, size in enumerate(sizes, start=1):
        path = root / run / f"frames-{number:06d}.jsonl.gz"
        path.write_bytes(bytes(size))
        os.utime(path, (written_s, written_s))


def test_whoever_has_most_gives_first(tmp_path: Path) -> None:
    now_s = 1_000_000.0
    make(tmp_path, "small", [10_000], now_s - 2 * FRESH_S)
    make(tmp_path, "flood", [50_000] * 6, now_s - FRESH_S / 2)
    (tmp_path / "flood" / "notes.txt").write_text("somebody's own")
    assert sweep(tmp_path, LIMITS, [], now_s) == kept_bytes(tmp_path) == 160_000
    assert [number_of(path.name) for path in segments(tmp_path / "flood")] == [4, 5, 6]
    assert (tmp_path / "flood" / "notes.txt").exists()


def test_what_is_too_old_goes_with_its_directory_and_what_is_being_written_stays(tmp_path: Path) -> None:
    now_s = 1_000_000.0
    make(tmp_path, "old", [10, 10], now_s - LIMITS.keep_s - 1)
    make(tmp_path, "live", [10, 10], now_s - LIMITS.keep_s - 1)
    make(tmp_path, "young", [10], now_s - LIMITS.keep_s + 1)
    live = tmp_path / "live" / "frames-000002.jsonl.gz"
    sweep(tmp_path, LIMITS, [live], now_s)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.gz"))
    assert left == ["live/frames-000002.jsonl.gz", "young/frames-000001.jsonl.gz"]
    assert not (tmp_path / "old").exists()


def test_what_is_too_old_goes_also_while_nobody_trains(tmp_path: Path) -> None:
    make(tmp_path, "old", [10], time.time() - LIMITS.keep_s - 1)
    files = RecordingFiles(tmp_path, LIMITS, FACTS)
    files.begin()
    files.close()
    assert not (tmp_path / "old").exists()


def test_what_is_handed_over_is_on_disk_when_it_is_closed(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path, LIMITS, FACTS)
    files.hello("r", hello())
    files.put("r", hello())
    files.put("r", step(1))
    files.note("r", at(2), recording.exited(at(2)))
    files.close()
    assert kinds(read(tmp_path / "r")[0]) == ["head", "hello", "step", "exited"]
    assert (files.problem, files.lost_total) == (None, 0)


def test_what_waits_for_the_disk_is_bounded_by_run_and_altogether() -> None:
    """As behind a disk that does not answer: nothing is taken."""
    pending, size = Pending(), RUN_BYTES_MAX // 8 - 1
    pending.hello("a", hello())
    soon = [pending.hold("a", step(n), at(n), size) for n in range(10)]
    assert soon == [False] * 4 + [True] * 6
    pending.hold("a", step(10), at(10), 1)  # It would fit: after a gap nothing, until the gap can be told.
    for n in range(10):
        pending.hold("b", step(n), at(n), size)
    taken = pending.take()
    assert (len(taken["a"].lines), taken["a"].dropped, taken["a"].dropped_at) == (8, 3, at(8))
    assert len(taken["b"].lines) == ALL_BYTES_MAX // size - 8
    assert pending.hold("b", step(1), at(1), size) is False
    assert list(pending.take()) == ["a", "b"]
    assert pending.hellos("a") == [hello()], "whoever is connected is still known"
