"""A profile's trace, added up: own time of nested operators, and communication behind computing."""

from __future__ import annotations

import gzip
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.evidence.trace import TraceUnreadable, profile_of, read_profile
from tests.opened import opened_in
from trainer_shim.evidence.profile import FOLDER

UID = os.geteuid()
EMPTY = gzip.compress(b'{"traceEvents": []}')


def span(name: str, begin_us: float, lasts_us: float, kind: str = "cpu_op", thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": begin_us, "dur": lasts_us, "tid": thread}


def test_an_operators_own_time_is_without_what_it_calls() -> None:
    found = profile_of([span("outer", 0, 100), span("inner", 10, 60), span("leaf", 20, 10)])
    spent = {item.name: round(item.seconds * 1e6) for item in found.operators}
    assert spent == {"outer": 40, "inner": 50, "leaf": 10}
    assert not found.on_device


def test_communication_is_hidden_where_a_kernel_runs_beside_it() -> None:
    kernels = [span("ncclDevKernel_AllReduce", 0, 100, "kernel", 7), span("gemm", 50, 120, "kernel", 8)]
    found = profile_of([span("aten::mm", 0, 5), *kernels])
    assert found.on_device
    assert round(found.communication_s * 1e6) == 100
    assert round(found.hidden_s * 1e6) == 50
    assert [kernel.name for kernel in found.kernels] == ["gemm", "ncclDevKernel_AllReduce"]


def test_what_is_no_span_is_left_out() -> None:
    broken = [None, 3, {"ph": "X"}, span("a", -1, 5), span("b", float("nan"), 5), span("c", 1, True)]
    found = profile_of([*broken, span("good", 0, 5)])
    assert [item.name for item in found.operators] == ["good"]
    assert found.left_out == 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the shim writes profiles."""
    made = tmp_path / FOLDER
    made.mkdir(0o700)
    (made / "good").write_bytes(EMPTY)
    return made


def test_a_file_that_is_no_trace_is_one_line(folder: Path) -> None:
    (folder / "text").write_text("no gzip")
    (folder / "list").write_bytes(gzip.compress(b"[1]"))
    (folder / "link").symlink_to(folder / "good")
    os.mkfifo(folder / "pipe")
    for name in ("absent", "text", "list", "link", "pipe", "", ".", "..", "\0", "\udc80"):
        with pytest.raises(TraceUnreadable):
            read_profile(f"{folder}/{name}", UID)
    assert read_profile(f"{folder}/good", UID).operators == ()


def test_what_is_no_trace_of_that_user_is_never_opened(folder: Path, tmp_path: Path) -> None:
    """To open a device may act on it, and a pipe's writer goes on: a rank may name any, and root is who reads."""
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "good")
    (folder / "directory").mkdir()
    (tmp_path / "good").write_bytes(EMPTY)
    (tmp_path / "other").symlink_to(folder)
    with opened_in(folder) as opened, opened_in(tmp_path) as beside:
        for path in ("pipe", "link", "directory", "../good", "../other/good"):
            with pytest.raises(TraceUnreadable):
                read_profile(f"{folder}/{path}", UID)
        with pytest.raises(TraceUnreadable):
            read_profile(f"{folder}/good", UID + 1)
        with pytest.raises(TraceUnreadable):
            read_profile(os.path.relpath(folder / "good"), UID)
    assert ([name for name in opened if name != "directory"], beside) == ([], [])
    with opened_in(folder) as opened:
        read_profile(f"{folder}/good", UID)
    assert opened == ["good"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_trace_where_others_may_write_is_not_read(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(TraceUnreadable):
        read_profile(f"{folder}/good", UID)


@pytest.mark.skipif(UID != 0, reason="needs root")
@pytest.mark.parametrize("of_another", [FOLDER, f"{FOLDER}/good"])
def test_a_trace_of_another_user_is_not_read(folder: Path, of_another: str) -> None:
    """A hard link, or a file in another user's directory."""
    os.chown(folder.parent / of_another, 1002, 1002)
    with pytest.raises(TraceUnreadable):
        read_profile(f"{folder}/good", UID)


@pytest.mark.parametrize("size", [40 << 20, 80 << 20])
def test_a_small_file_that_unpacks_to_all_memory_is_one_line_and_takes_none_of_ours(folder: Path, size: int) -> None:
    """Fourteen bytes of memory for each byte: forty megabytes of lists are more than the reader may have."""
    path = folder / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(size >> 20):
            file.write(b"[]," * ((1 << 20) // 3))
        file.write(b"[]]}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceUnreadable, match="more than 64 MB"):
        read_profile(str(path), UID)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < (1 << 20) + 20_000


def test_a_trace_is_read_back_as_it_was_written(folder: Path) -> None:
    events = [span("outer", 0, 100), span("inner", 10, 60), span("gemm", 50, 120, "kernel", 8)]
    path = folder / "good.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert read_profile(str(path), UID) == profile_of(events)
