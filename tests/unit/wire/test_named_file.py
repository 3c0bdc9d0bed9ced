"""What a person names is opened without waiting: a file, a pipe of the shell, or one line that says what it is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from governor.wire.named_file import opened_file, read_whole, write_whole


def refusal(path: str) -> str:
    with pytest.raises(OSError) as raised:
        opened_file(path)
    return str(raised.value.strerror)


def test_a_file_and_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b"):
        with opened_file(str(tmp_path / name)) as file:
            assert file.readall() == b"12345"
    assert read_whole(str(tmp_path / "a"), 3) == b"1234"


def test_a_pipe_of_the_shell_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"12345")
    os.close(writer)
    with opened_file(f"/dev/fd/{reader}") as file:
        assert os.get_blocking(file.fileno())
        assert file.readall() == b"12345"
    os.close(reader)


def test_a_fifo_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    said = refusal(str(tmp_path / "fifo"))
    assert said == "it is a FIFO, whose writer may never come: name a file or <(COMMAND), or - for standard input"


def test_what_else_is_no_file_says_so(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert refusal(str(tmp_path / "s")) == "it is a socket"
    assert refusal("/dev/zero") == "it is a device"
    assert refusal(str(tmp_path)) == "it is a directory"
    assert refusal(str(tmp_path / "gone")) == os.strerror(2)
    assert not any(os.path.realpath(f"/proc/self/fd/{fd}") == "/dev/zero" for fd in os.listdir("/proc/self/fd"))


def test_standard_input_is_read_and_stays_open() -> None:
    code = "from governor.wire.named_file import opened_file as o; print(o('-').readall(), o('-').readall())"
    child = subprocess.run([sys.executable, "-c", code], input=b"12345", capture_output=True, check=True)
    assert child.stdout == b"b'12345' b''\n"


def test_a_file_a_pipe_and_a_device_are_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("longer than what comes")
    write_whole(str(tmp_path / "a"), "\u00e9")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "\u00e9"
    write_whole("/dev/null", "x")
    reader, writer = os.pipe()
    write_whole(f"/dev/fd/{writer}", "12345")
    os.close(writer)
    assert os.read(reader, 10) == b"12345"
    os.close(reader)


def test_nothing_waits_for_the_reader_of_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is a FIFO"):
        write_whole(str(tmp_path / "fifo"), "x")
