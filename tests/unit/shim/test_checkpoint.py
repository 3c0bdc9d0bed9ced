"""Checkpoints on a real filesystem: whole or not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from trainer_shim.saving import checkpoint

FAR_NS = time.monotonic_ns() + 3_600 * 10**9


def written(directory: Path, step: int, kind: str = "good", ranks: int = 2) -> Path:
    """A checkpoint of two ranks as the engine leaves it, committed as the watcher does."""
    path = directory / checkpoint.tag_of(step, kind)
    path.mkdir(parents=True)
    for rank in range(ranks):
        (path / f"shard_{rank}.pt").write_bytes(bytes(1000 + rank))
        checkpoint.write_rank_file(str(path), rank, {"v": 1, "rank": rank})
    parts = [part for rank in range(ranks) for part in checkpoint.secure(str(path), rank, ranks, rank, ranks, FAR_NS)]
    facts = {"step": step, "tokens_total": 100 * step, "kind": kind, "world_size": ranks}
    record = checkpoint.commit(str(path), parts, facts, move_latest=kind == "good")
    assert record["files"] == 2 * ranks
    assert record["hashed"]
    return path


def whole(directory: Path) -> list[dict[str, Any]]:
    """The good ones, newest first."""
    return [one for one in checkpoint.candidates(str(directory)) if not checkpoint.verify_manifest(one["path"])]


def test_every_file_is_in_the_manifest_exactly_once(tmp_path: Path) -> None:
    path = written(tmp_path, 7, ranks=3)
    manifest = checkpoint.read_manifest(str(path))
    assert manifest is not None
    names = [entry.path for entry in manifest["files"]]
    assert sorted(names) == sorted(name for name in os.listdir(path) if name != checkpoint.MANIFEST)
    assert len(set(names)) == len(names)
    assert checkpoint.verify_manifest(str(path), hashes=True) == []


def test_latest_follows_the_good_and_never_the_suspect(tmp_path: Path) -> None:
    written(tmp_path, 7)
    written(tmp_path, 9, kind="suspect")
    assert (tmp_path / "latest").read_text() == "cg_7"
    assert (tmp_path / "cg_9_suspect").is_dir()
    assert [(found["step"], found["tokens_total"]) for found in whole(tmp_path)] == [(7, 700)]


def kept(path: Path) -> tuple[int, ...]:
    """What tells that nobody has written to it or replaced it. Reading it changes none of these."""
    stat = path.lstat()
    return stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@pytest.mark.parametrize("own", ["directory", "link", "file"])
def test_a_latest_of_the_scripts_own_stays_and_costs_no_checkpoint(
    tmp_path: Path, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    latest = tmp_path / "latest"
    (tmp_path / "step_5").mkdir()
    if own == "directory":
        latest.mkdir()
        (latest / "weights.pt").write_bytes(bytes(9))
    elif own == "link":
        latest.symlink_to("step_5")
    else:
        latest.write_text("step_5")
    before = kept(latest)
    for step in (7, 9):
        written(tmp_path, step)
    assert kept(latest) == before
    assert [found["step"] for found in whole(tmp_path)] == [9, 7]
    why = f"{latest} stays as it is: it is the script's own. resume() needs no such file"
    assert capsys.readouterr().err == f"costgov: {why}\n", "once"


def test_a_latest_that_deepspeed_wrote_moves_on(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("my step 5 é")
    path = written(tmp_path, 7)
    parts = [checkpoint.Part("mp_rank_00_model_states.pt", 1000, None)]
    checkpoint.commit(str(path), parts, {"step": 7, "kind": "good"}, move_latest=True)
    assert (tmp_path / "latest").read_text() == "cg_7"


def test_a_latest_that_cannot_be_written_costs_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"latest.{os.getpid()}.costgov-tmp").mkdir()
    written(tmp_path, 7)
    assert [found["step"] for found in whole(tmp_path)] == [7]
    assert "latest stays as it is: it cannot be written" in capsys.readouterr().err


def test_latest_stays_where_the_manifest_cannot_be_written(tmp_path: Path) -> None:
    written(tmp_path, 7)
    path = tmp_path / "cg_9"
    (path / checkpoint.MANIFEST).mkdir(parents=True)
    parts = [checkpoint.Part("shard_0.pt", 1000, None)]
    with pytest.raises(OSError, match=checkpoint.MANIFEST):
        checkpoint.commit(str(path), parts, {"step": 9, "kind": "good"}, move_latest=True)
    assert (tmp_path / "latest").read_text() == "cg_7"


FLUSHES = """
import os, sys
from trainer_shim.saving import checkpoint

fsync = os.fsync

def told(descriptor):
    print(os.path.relpath(os.readlink("/proc/self/fd/%d" % descriptor), sys.argv[1]))
    fsync(descriptor)

os.fsync = told
path = os.path.join(sys.argv[1], "save", "cg_7")
parts = checkpoint.secure(path, 0, 1, 0, 1, 0)
print("secured")
checkpoint.commit(path, parts, {"step": 7, "kind": "good"}, move_latest=True)
"""


def test_what_a_crash_must_not_take_is_flushed_with_the_directories_that_name_it(tmp_path: Path) -> None:
    """As the kernel is told it by an interpreter of its own."""
    below = tmp_path / "save" / "cg_7" / "below"
    below.mkdir(parents=True)
    (below / "shard_0.pt").write_bytes(bytes(1000))
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    argv = [os.sys.executable, "-c", FLUSHES, str(tmp_path)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)
    secured, _, committed = done.stdout.partition("secured\n")
    assert sorted(secured.split()) == ["save", "save/cg_7", "save/cg_7/below", "save/cg_7/below/shard_0.pt"], (
        done.stderr
    )
    names = [re.sub(r"\.\d+\.costgov-tmp", "", name) for name in committed.split()]
    assert names == [f"save/cg_7/{checkpoint.MANIFEST}", "save/cg_7", "save/latest", "save"]


@pytest.mark.parametrize("damage", ["missing", "short", "no manifest", "torn manifest"])
def test_a_torn_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    written(tmp_path, 7)
    path = written(tmp_path, 9)
    if damage == "missing":
        (path / "shard_1.pt").unlink()
    elif damage == "short":
        (path / "shard_1.pt").write_bytes(b"x")
    elif damage == "no manifest":
        (path / checkpoint.MANIFEST).unlink()
    else:
        (path / checkpoint.MANIFEST).write_text('{"step": 9, "fil')
    assert checkpoint.verify_manifest(str(path)) != []
    assert [found["step"] for found in whole(tmp_path)] == [7]


def test_a_flipped_bit_is_found_by_its_hash_and_only_by_it(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    content = bytearray((path / "shard_0.pt").read_bytes())
    content[500] ^= 1
    (path / "shard_0.pt").write_bytes(content)
    assert checkpoint.verify_manifest(str(path)) == []
    assert checkpoint.verify_manifest(str(path), hashes=True) == ["shard_0.pt differs from its hash"]


def test_without_time_there_are_no_hashes_but_there_is_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "cg_7"
    path.mkdir()
    (path / "shard").write_bytes(bytes(1000))
    checkpoint.write_rank_file(str(path), 0, {})
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, time.monotonic_ns() - 1)
    record = checkpoint.commit(str(path), parts, {"step": 7, "kind": "good"}, move_latest=True)
    assert not record["hashed"]
    assert checkpoint.verify_manifest(str(path), hashes=True) == []


def test_each_node_of_an_unshared_directory_lists_its_own_files(tmp_path: Path) -> None:
    path = tmp_path / "cg_7"
    path.mkdir()
    for rank in (0, 1):  # Ranks 2 and 3 wrote on another machine.
        (path / f"shard_{rank}.pt").write_bytes(bytes(1000))
        checkpoint.write_rank_file(str(path), rank, {})
    parts = [part for rank in (0, 1) for part in checkpoint.secure(str(path), rank, 4, rank, 2, FAR_NS)]
    own = [checkpoint.rank_file(0), checkpoint.rank_file(1)]
    assert sorted(part.path for part in parts) == [*own, "shard_0.pt", "shard_1.pt"]
    assert all(part.node == os.uname().nodename for part in parts)
    parts.append(checkpoint.Part(checkpoint.rank_file(2), 3, None, "elsewhere"))
    checkpoint.commit(str(path), parts, {"step": 7, "kind": "good"}, move_latest=False)
    assert checkpoint.verify_manifest(str(path)) == [], "another node's files are not looked for here"


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    """On a real, tiny filesystem in a mount namespace of its own."""
    script = f"""
import errno, os, sys
from trainer_shim.saving.checkpoint import write_durably
path = os.path.join({str(tmp_path)!r}, "latest")
write_durably(path, "cg_7")
with open(os.path.join({str(tmp_path)!r}, "filler"), "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC
try:
    write_durably(path, "cg_8" * 5000)
except OSError as error:
    assert error.errno == errno.ENOSPC, error
else:
    sys.exit("the disk was not full")
assert open(path).read() == "cg_7"
assert sorted(os.listdir({str(tmp_path)!r})) == ["filler", "latest"]
"""
    command = f'mount -t tmpfs -o size=64k none {tmp_path} && exec {os.sys.executable} -c "$SCRIPT"'
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", command],
        env={**os.environ, "SCRIPT": script, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip("needs permission to mount a tmpfs in a namespace: " + done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_a_manifest_is_plain_json_for_other_tools(tmp_path: Path) -> None:
    manifest = json.loads((written(tmp_path, 7) / checkpoint.MANIFEST).read_text())
    assert manifest["v"] == checkpoint.MANIFEST_VERSION
    assert {"path", "bytes", "sha256"} == set(manifest["files"][0])


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../../etc/passwd", "bytes": 1, "sha256": None},
        {"path": "/etc/passwd", "bytes": 1, "sha256": None},
        {"path": "a\0b", "bytes": 1, "sha256": None},
        {"path": "shard_0.pt", "bytes": "1", "sha256": None},
        {"path": "shard_0.pt", "bytes": 1, "sha256": 5},
        {"bytes": 1},
        "shard_0.pt",
    ],
)
def test_a_hostile_manifest_is_no_manifest(tmp_path: Path, entry: object) -> None:
    path = written(tmp_path, 7)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    manifest["files"].append(entry)
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    assert checkpoint.verify_manifest(str(path)) == ["no readable manifest"]
    assert whole(tmp_path) == []


def test_a_pipe_in_a_files_place_is_not_opened(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    (path / "shard_0.pt").unlink()
    os.mkfifo(path / "shard_0.pt")
    assert checkpoint.verify_manifest(str(path), hashes=True) == ["shard_0.pt is no regular file"]


def test_what_an_aborted_save_tried_out_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "cg_7"
    path.mkdir()
    for rank in range(2):
        checkpoint.stage_rank_file(str(path), rank, {})
    checkpoint.discard_staged_file(str(path), 0)
    assert len(os.listdir(path)) == 1, "the other rank's"
    checkpoint.discard_staged_file(str(path), 1)
    assert not path.exists()


def test_a_checkpoint_that_is_written_again_counts_as_none_meanwhile(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    checkpoint.discard_manifest(str(path))
    assert whole(tmp_path) == []
    checkpoint.discard_manifest(str(path))
