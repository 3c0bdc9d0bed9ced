"""What is seen of a command's end, from files: the kernel's counts, and the end of an output."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from governor.adapters.command.evidence import TAIL_BYTES_MAX, Evidence, OomWatch, output_files, read_lines
from governor.adapters.machine.oom_kills import counter_of, machine_counter
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.ends import OomKills

RAISED = b"CUDA out of memory\n"


def a_machine(root: Path, cgroup: str, counts: dict[str, str]) -> tuple[Path, Path]:
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in counts.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return proc, cgroups


@pytest.mark.parametrize(
    ("cgroup", "counts", "found"),
    [
        ("0::/job\n", {"cgroup/job/memory.events": "oom 3\noom_kill 2\noom_group_kill 0\n"}, (2, True)),
        ("0::/docker/x\n", {"cgroup/memory.events": "oom_kill 1\n", "proc/vmstat": "oom_kill 9\n"}, (1, True)),
        ("4:cpu,memory:/j\n0::/\n", {"cgroup/memory/j/memory.oom_control": "under_oom 0\noom_kill 4\n"}, (4, True)),
        ("0::/\n", {"proc/vmstat": "nr_free 1\noom_kill 9\n"}, (9, False)),
        ("0::/../other\n", {"cgroup/memory.events": "oom_kill many\n"}, None),
        ("", {}, None),
    ],
)
def test_the_count_of_the_own_group_else_of_the_machine(
    tmp_path: Path, cgroup: str, counts: dict[str, str], found: tuple[int, bool] | None
) -> None:
    proc, cgroups = a_machine(tmp_path, cgroup, counts)
    own, machine = counter_of("self", proc, cgroups), machine_counter(proc)
    counter = own or machine
    assert (None if counter is None else (counter(), counter is own)) == found


def test_only_what_was_counted_meanwhile_is_the_commands() -> None:
    counts = iter([5, 5, 6, None, 6])
    watch = OomWatch(lambda: next(counts), True, 5)
    for second in range(5):
        watch.poll(MonoNs(second * NS_PER_S))
    assert watch.seen(MonoNs(7 * NS_PER_S)) == OomKills(1, True, 5 * NS_PER_S)
    assert OomWatch().seen(MonoNs(1)) is None


def test_only_the_commands_own_output_is_read_and_of_it_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(3 * RAISED)
    with log.open("ab") as stream:
        files = output_files((stream.fileno(), stream.fileno(), 10_000))
        assert len(files) == 1
        assert read_lines([file.tail for file in files]) == ()
        stream.write(RAISED + b"." * TAIL_BYTES_MAX)
        stream.flush()
        assert read_lines([file.tail for file in files]) == (), "too long ago"
        stream.write(b"\n" + RAISED)
        stream.flush()
        log.unlink()
        assert [line.what for line in read_lines([file.tail for file in files])] == ["out of GPU memory"], (
            "by its descriptor"
        )
        stream.truncate(0)
        stream.write(RAISED)
        stream.flush()
        assert [line.what for line in read_lines([file.tail for file in files])] == ["out of GPU memory"], (
            "truncated meanwhile"
        )


def test_neither_a_pipe_nor_a_device_is_read() -> None:
    reader, writer = os.pipe()
    with open(os.devnull, "wb") as null:
        assert output_files((reader, writer, null.fileno())) == ()
    os.close(reader)
    os.close(writer)


def test_a_file_that_does_not_answer_is_not_waited_for() -> None:
    asked = threading.Event()

    def hung() -> bytes:
        asked.wait()
        return RAISED

    assert read_lines([hung], within_s=0.01) == ()
    asked.set()


def test_it_is_seen_how_long_before_the_end_a_signal_was_passed_on() -> None:
    def seen(passed_on: tuple[str, MonoNs] | None) -> tuple[str | None, int]:
        end = Evidence().of_end(
            MonoNs(9), "r", (), 1, ended_at=MonoNs(8), died_of=None, died_below=None, passed_on=passed_on
        )
        return end.passed_on, end.passed_on_before

    assert [seen(one) for one in (None, ("SIGINT", MonoNs(3)), ("SIGINT", MonoNs(9)))] == [
        (None, 0), ("SIGINT", 5), ("SIGINT", 0),
    ]  # fmt: skip


def test_one_that_cannot_be_read_costs_the_other_nothing() -> None:
    def forbidden() -> bytes:
        raise PermissionError

    assert [line.what for line in read_lines([forbidden, lambda: RAISED])] == ["out of GPU memory"]
