"""Readers of checkpoints: what they give up on, what becomes of one that hangs, and who gets the next."""

from __future__ import annotations

import errno
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.adapters.trainers import checkpoint_reader
from governor.adapters.trainers.checkpoint_reader import Answer, Progress
from governor.adapters.trainers.checkpoints import _BOOT, DiskCheckpoints
from governor.adapters.trainers.reader_places import (
    ANSWERED_MAX,
    HUNG_BYTES_MAX,
    HUNG_MAX,
    READERS_MAX,
    READERS_PER_USER_MAX,
    WAITING_MAX,
    WAITING_PER_USER_MAX,
    Hung,
    Places,
    Seat,
)
from governor.core.events.checkpoints import CheckpointLook
from tests.unit.shim.test_checkpoint import written
from trainer_shim.saving import checkpoint

SAFETY_S = 30.0
ALICE, BOB = 1001, 1002
# By programs that start in a millisecond: dozens of them do.
HANGS = ("/bin/sh", "-c", "while read -r line; do :; done")
DIES = ("/bin/sh", "-c", "exit 0")
FLOODS = ("/bin/sh", "-c", "exec yes .")
SILENT_S = 0.01  # One that never answers is given up after any time, so after a short one.


def look(path: Path, hash_s: float = SAFETY_S) -> Answer:
    with open(os.devnull, "wb") as nowhere:
        return checkpoint_reader.look(str(path), Progress(nowhere.fileno()), hash_s)


def test_it_reads_what_the_shim_writes(tmp_path: Path) -> None:
    path = written(tmp_path, 7, ranks=3)
    left = "most of its bytes: shard_2.pt"
    assert look(path) == Answer(True, 6, 6, "every file is there with its size and hash", unsampled=left)
    assert look(path, hash_s=-1.0) == Answer(
        True, 6, 0, "every file is there with its size; 0 hashes were compared in time", unsampled=left
    )


def with_files(tmp_path: Path, files: object, **more: object) -> Path:
    path = written(tmp_path, 7)
    manifest = {"v": 1, "step": 7, "files": files, **more}
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../cg_7/shard_0.pt", "a/../../b", "nul\0", "n" * 4097, "/".join("d" * 33)],
    ids=["empty", "absolute", "above", "above by a way round", "nul", "long", "deep"],
)
def test_a_name_outside_the_directory_or_the_limits_is_no_entry(tmp_path: Path, name: str) -> None:
    found = look(with_files(tmp_path, [{"path": name, "bytes": 1}]))
    assert found == Answer(False, 0, 0, "the manifest cannot be parsed")


@pytest.mark.parametrize("files", [None, {}, [1], [[]], [{"path": 1, "bytes": 1}], [{"path": "a", "bytes": "1"}]])
def test_what_is_no_list_of_entries_cannot_be_parsed(tmp_path: Path, files: object) -> None:
    assert look(with_files(tmp_path, files)) == Answer(False, 0, 0, "the manifest cannot be parsed")


def test_nesting_without_end_cannot_be_parsed(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    (path / checkpoint.MANIFEST).write_text("[" * 1_000_000)
    assert look(path) == Answer(False, 0, 0, "the manifest cannot be parsed")


def test_more_entries_or_bytes_than_are_read_say_nothing_about_the_checkpoint(tmp_path: Path) -> None:
    path = with_files(tmp_path, [{"path": "a", "bytes": 1}] * (checkpoint_reader.ENTRIES_MAX + 65))
    assert look(path) == Answer(None, 0, 0, "the manifest has more than 100,000 entries: that many are not read")
    with (path / checkpoint.MANIFEST).open("wb") as file:
        file.truncate(checkpoint_reader.MANIFEST_BYTES_MAX + 1)
    assert look(path) == Answer(None, 0, 0, "the manifest has 25,165,825 bytes: more than 25,165,824 are not read")


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "circle"])
def test_what_is_no_file_is_no_manifest(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, 7)
    manifest = path / checkpoint.MANIFEST
    manifest.unlink()
    if kind == "pipe":
        os.mkfifo(manifest)
    elif kind == "directory":
        manifest.mkdir()
    else:
        manifest.symlink_to("/dev/zero" if kind == "device" else manifest)
    why = f"cannot be read: {os.strerror(errno.ELOOP)}" if kind == "circle" else "is no regular file"
    assert look(path) == Answer(False, 0, 0, f"the manifest {why}")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("pipe", "is no regular file"),
        ("gone", "is missing"),
        ("dangling", "is missing"),
        ("circle", f"cannot be read: {os.strerror(errno.ELOOP)}"),
        ("short", "has 1 bytes instead of 1000"),
    ],
)
def test_what_is_no_file_of_its_size_is_torn(tmp_path: Path, kind: str, why: str) -> None:
    path = written(tmp_path, 7)
    shard = path / "shard_0.pt"
    shard.unlink()
    if kind == "pipe":
        os.mkfifo(shard)
    elif kind == "short":
        shard.write_bytes(b"x")
    elif kind != "gone":
        shard.symlink_to("nowhere" if kind == "dangling" else shard)
    assert look(path) == Answer(False, 4, 0, f"shard_0.pt {why}")


def test_a_manifest_that_needs_all_memory_ends_its_reader_alone(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    (path / checkpoint.MANIFEST).write_bytes(b'{"files": [' + b"[]," * ((23 << 20) // 3) + b"[]]}")
    found = DiskCheckpoints().read(str(path), str(path / checkpoint.MANIFEST), uid=os.getuid(), gid=os.getgid())
    assert (found.whole, found.files) == (None, 0)
    assert "192 MiB" in found.reason


def test_a_reader_loads_nothing_but_the_standard_library_and_our_own() -> None:
    """It shall be there at once, and run what is imported as the user of the checkpoint."""
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(Path.cwd())!r}); "
         "import governor.adapters.trainers.checkpoint_reader; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {name.partition(".")[0] for name in shown.stdout.split()}
    assert loaded <= sys.stdlib_module_names | {"__main__", "governor", "trainer_shim"}


def test_one_that_stands_ready_holds_no_more_than_it_reads_with() -> None:
    """It waits on every node for all time. What only hashes need comes with the request."""
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _BOOT.replace("sys.exit(main())", "print(*sys.modules)"), str(Path.cwd())],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(shown.stdout.split())
    assert "trainer_shim.saving.weights_sample" in loaded
    assert not loaded & {"trainer_shim.attach", "dataclasses", "inspect", "hashlib", "_hashlib", "socket"}


# --- the weights are in it ---


def counted(tmp_path: Path, needed: int, **more: object) -> Answer:
    path = written(tmp_path, 7)
    manifest = path / checkpoint.MANIFEST
    manifest.write_text(
        json.dumps({**json.loads(manifest.read_text()), "parameters": 500, "bytes_min": needed, **more})
    )
    return look(path)


def test_files_with_fewer_bytes_than_the_parameters_need_are_not_a_whole_checkpoint(tmp_path: Path) -> None:
    held = 1000 + 1001
    found = counted(tmp_path / "enough", held)
    assert (found.whole, found.counted) == (
        True, "its files hold 2.0 kB; 500 parameters and their optimizer need at least 2.0 kB",
    )  # fmt: skip
    found = counted(tmp_path / "short", held + 1)
    assert (found.whole, found.counted) == (False, None)
    assert found.reason == "its files hold 2.0 kB; 500 parameters and their optimizer need at least 2.0 kB"
    assert counted(tmp_path / "absent", held + 1, parameters=None).whole, "an older manifest does not count"


def test_our_own_files_are_no_checkpoint_whatever_the_manifest_says(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    manifest["files"] = [entry for entry in manifest["files"] if entry["path"].startswith("costgov_")]
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    assert look(path) == Answer(False, 2, 0, "its files hold 0 bytes")


# --- a reader that hangs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "silent_s", "reason"),
    [
        (HANGS, SILENT_S, "its files gave no answer within 0 s"),
        (DIES, SAFETY_S, "the reader of the checkpoint ended without an answer"),
        (FLOODS, SAFETY_S, "the reader of the checkpoint ended without an answer"),
        (("/nonexistent",), SAFETY_S, f"no reader can be started: {os.strerror(errno.ENOENT)}"),
    ],
    ids=["hangs", "dies", "floods", "is not there"],
)
def test_a_reader_that_fails_is_no_verdict_and_the_next_one_reads(
    tmp_path: Path, command: tuple[str, ...], silent_s: float, reason: str
) -> None:
    """However long an interpreter takes to start: only one that never answers is given up by the clock."""
    path = written(tmp_path, 7)
    failing = DiskCheckpoints(command, silent_s=silent_s)
    for _ in range(2 * READERS_MAX):
        found = failing.read(str(path), str(path / checkpoint.MANIFEST), uid=os.getuid(), gid=None)
        assert found == CheckpointLook(None, 0, 0, reason)


def test_one_that_stands_ready_reads_and_one_that_ended_meanwhile_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    for command in (None, DIES):
        checkpoints = DiskCheckpoints(command)
        checkpoints.prepare()
        found = checkpoints.read(str(path), str(path / checkpoint.MANIFEST), uid=os.getuid(), gid=None)
        assert found.whole is (True if command is None else None)
        checkpoints.close()


# --- fair shares ------------------------------------------------------------------------------------------------


@pytest.fixture
def hung() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for a reader that not even SIGKILL ends."""
    with subprocess.Popen(HANGS, stdin=subprocess.PIPE) as process:
        yield process


def seated(places: Places, uid: int, *, is_urgent: bool = True) -> Seat:
    seat = places.enter(uid, is_urgent=is_urgent)
    assert isinstance(seat, Seat)
    return seat


def test_a_user_has_half_of_the_places_at_most_and_each_other_user_the_next() -> None:
    places = Places(wait_max_s=0.0)
    first, _ = [seated(places, ALICE) for _ in range(READERS_PER_USER_MAX)]
    assert places.enter(ALICE) == "no reader was free within 0 s"
    for number in range(READERS_MAX - READERS_PER_USER_MAX):
        seated(places, BOB + number)
    assert places.enter(BOB + READERS_MAX) == "no reader was free within 0 s"
    places.leave(first, None)
    assert places.enter(ALICE) == "no reader was free within 0 s", "her second place is free for others first"
    seated(places, BOB + READERS_MAX)


def test_who_has_a_reader_that_hangs_gets_no_further_one_until_it_ends(hung: subprocess.Popen[bytes]) -> None:
    places = Places(wait_max_s=0.0)
    first, second = (seated(places, ALICE) for _ in range(READERS_PER_USER_MAX))
    places.leave(first, Hung(hung, 0))
    assert places.enter(ALICE) == f"1 reader hangs on files of uid {ALICE}, and nothing ends it"
    places.leave(second, Hung(hung, 0))
    assert places.enter(ALICE) == f"2 readers hang on files of uid {ALICE}, and nothing ends them"
    for number in range(READERS_MAX):
        places.leave(seated(places, BOB + number), None)
    hung.kill()
    hung.wait(SAFETY_S)
    seated(places, ALICE)  # The file system is back.


@pytest.mark.parametrize(("count", "each"), [(HUNG_MAX, 0), (2, HUNG_BYTES_MAX // 2)], ids=["many", "large"])
def test_readers_that_hang_cost_others_nothing_up_to_a_bound_and_those_who_had_an_answer_nothing(
    hung: subprocess.Popen[bytes], count: int, each: int
) -> None:
    places = Places(wait_max_s=0.0)
    for number in range(ANSWERED_MAX + 1):
        seat = seated(places, BOB + number)
        seat.has_answered = True
        places.leave(seat, None)
    strangers = range(5_000, 5_000 + count)
    for uid in strangers:
        places.leave(seated(places, uid), Hung(hung, each))
    refused = places.enter(ALICE)
    assert refused == (
        f"{count} readers hang on file systems that do not answer, with {count * each >> 20} MiB, "
        f"and no checkpoint of uid {ALICE} was read lately"
    )
    assert "was read lately" in str(places.enter(BOB)), "so many answers are remembered"
    places.leave(seated(places, BOB + 1), None)
    places.leave(seated(places, BOB + 1), Hung(hung, 0))
    assert places.enter(BOB + 1) == f"1 reader hangs on files of uid {BOB + 1}, and nothing ends it"


class Line:
    """Those who wait, each in a thread of its own, and the order in which they are seated."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.seated: queue.SimpleQueue[Seat | str] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []

    def join(self, uid: int, *, is_urgent: bool = True) -> None:
        def wait() -> None:
            self.seated.put(self.places.enter(uid, is_urgent=is_urgent))

        waited = len(self.places._line)
        self.threads.append(threading.Thread(target=wait))
        self.threads[-1].start()
        while len(self.places._line) == waited:
            pass

    def next_one(self) -> Seat:
        seat = self.seated.get(timeout=SAFETY_S)
        assert isinstance(seat, Seat)
        return seat

    def end(self) -> None:
        for thread in self.threads:
            thread.join(SAFETY_S)


def test_who_waits_reads_when_a_place_is_given_back_and_only_so_many_wait() -> None:
    places = Places(wait_max_s=SAFETY_S, fair_s=SAFETY_S)
    seats = [seated(places, ALICE) for _ in range(READERS_PER_USER_MAX)]
    line = Line(places)
    for _ in range(WAITING_PER_USER_MAX):
        line.join(ALICE)
    refused = places.enter(ALICE)
    assert refused == places.crowd(ALICE) == f"8 checkpoints of uid {ALICE} wait for a reader already"
    for _ in line.threads:
        places.leave(seats.pop(0), None)
        seats.append(line.next_one())
    line.end()


def test_of_those_who_wait_the_one_comes_first_who_was_served_least_and_a_halt_before_a_look() -> None:
    places = Places(wait_max_s=SAFETY_S, fair_s=SAFETY_S)
    crowd = [seated(places, uid) for uid in (1, 2, 3, 4)]
    line = Line(places)
    for uid, is_urgent in ((1, True), (ALICE, False), (1, True), (2, True), (BOB, True)):
        line.join(uid, is_urgent=is_urgent)
    order = []
    for _ in range(4):  # 1 and 2 had the first two places: they are free again.
        places.leave(crowd.pop(0), None)
        crowd.append(line.next_one())
        order.append(crowd[-1].uid)
    assert order[0] == BOB
    assert order[1:] == [1, 2, ALICE]
    for seat in crowd:
        places.leave(seat, None)
    line.end()


def test_when_many_wait_each_user_may_wait_with_one() -> None:
    places = Places(wait_max_s=SAFETY_S, fair_s=SAFETY_S)
    seats = [seated(places, uid) for uid in (1, 2, 3, 4)]
    line = Line(places)
    for number in range(WAITING_MAX):
        line.join(1 + number // WAITING_PER_USER_MAX)
    assert places.crowd(1) is not None
    assert places.crowd(BOB) is None
    line.join(BOB)
    assert places.crowd(BOB) == f"1 checkpoints of uid {BOB} wait for a reader already"
    for seat in seats:
        places.leave(seat, None)
    for _ in line.threads:
        places.leave(line.next_one(), None)
    line.end()
