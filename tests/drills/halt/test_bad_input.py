"""Whatever arrives at the trainer socket, the daemon lives, says one line or counts it, and loses no good frame."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import BIN, SAFETY_S, Service, configuration
from trainer_shim import wire

Make = Callable[..., Service]


def _connect(service: Service) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(SAFETY_S)
    sock.connect(str(service.work / "run" / "trainer.sock"))
    return sock


def _hello(run: str = "drill", rank: int = 0, **changes: Any) -> bytes:
    frame = {
        **wire.head("hello", rank, 1), "seq": 1, "run": run, "attempt": "a", "local_rank": rank, "world_size": 1,
        "signal": 0, **changes,
    }  # fmt: skip
    return json.dumps(frame).encode()


def _governor(service: Service) -> dict[str, Any]:
    return service.ask({"cmd": "status"})["governor"]


BAD = {
    "not json": b"\x00\xff{",
    "an array": b"[1,2,3]",
    "deep": b'{"v":1,"kind":' + b"[" * 20_000,
    "unknown kind": b'{"v":1,"kind":"sudo","rank":0,"mono_ns":1}',
    "another version": b'{"v":99,"kind":"step"}',
    "a step before hello": json.dumps({**wire.head("step", 0, 1), "step": 1, "attempt_step": 1}).encode(),
    "a huge integer": b'{"v":1,"kind":"step","rank":0,"mono_ns":1,"step":' + b"9" * 5_000 + b',"attempt_step":1}',
    "oversized": b'{"v":1,"kind":"beat","x":"' + b"y" * 100_000 + b'"}',
    "half a surrogate": b'{"v":1,"kind":"phase","rank":0,"mono_ns":1,"phase":"\\ud800"}',
    "truncated": _hello()[:-10],
    "pickle": b"\x80\x04cposix\nsystem\n",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_counted_and_the_next_good_one_has_record(name: str, service: Make) -> None:
    governor = service()
    governor.start()
    with _connect(governor) as sock:
        sock.send(BAD[name])
        sock.send(_hello())
        assert json.loads(sock.recv(65536))["kind"] == "confirm"
        governor.until(lambda: _governor(governor)["frames_malformed_total"] == 1, "the bad frame is counted")
        assert [run["run"] for run in governor.ask({"cmd": "status"})["runs"]] == ["drill"]
    log = governor.log_at_end()
    assert log.count('"event": "bad_frame"') == 1
    assert "Traceback" not in log


def test_a_faulty_hello_is_answered_with_its_fault_and_said(service: Make) -> None:
    governor = service()
    governor.start()
    with _connect(governor) as sock:
        sock.send(_hello(signal=15))
        reply = json.loads(sock.recv(65536))
        assert (reply["kind"], "SIGUSR1" in reply["reason"]) == ("refuse", True)
        assert sock.recv(65536) == b""
    governor.until_said("hello_refused")


@pytest.mark.skipif(os.geteuid() != 0, reason="another uid needs root")
def test_a_hello_with_another_uids_run_is_watched_under_a_name_of_its_own(service: Make) -> None:
    governor = service()
    governor.start()
    with _connect(governor) as sock:
        sock.send(_hello())
        assert json.loads(sock.recv(65536))["kind"] == "confirm"
        reply = json.loads(_as_nobody(governor.work / "run", _hello()))
        assert reply["kind"] == "confirm"
        runs = {run["run"]: run["uid"] for run in governor.ask({"cmd": "status"})["runs"]}
        assert runs == {"drill": 0, "drill@65534": 65534}


def _as_nobody(directory: Path, packet: bytes) -> bytes:
    """Send one packet as uid 65534 and return the answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(directory)  # While we may: what leads there is for root alone.
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect("trainer.sock")
                sock.send(packet)
                os.write(writing, sock.recv(65536))
        finally:
            os._exit(0)  # Whatever happens: a second pytest would go on from here.
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_a_ceiling_without_a_price_refuses_to_start_in_one_line(tmp_path: Any) -> None:
    config = configuration(tmp_path)
    config.write_text(config.read_text().replace("price_usd_per_hour = 98.32\n", ""))
    done = _run_costgov("run", "--config", str(config), "--ceiling", "10", "--", "true")
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert "--ceiling $10.00 needs a price, and that of this node is unknown" in line
    assert "--price" in line
    assert "Traceback" not in done.stderr


def test_a_policy_with_a_typo_names_file_line_and_key(tmp_path: Any) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text('[policy]\nname = "p"\n[[rule]]\nname = "n"\ntrigger = "nonfinite"\nrespones = "halt"\n')
    done = _run_costgov("run", "--config", str(configuration(tmp_path)), "--policy", str(policy), "--", "true")
    assert done.returncode == 1
    assert f"{policy}:6" in done.stderr
    assert "respones" in done.stderr
    assert "response" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_journal_that_may_not_be_written_is_said_and_the_governor_goes_on(tmp_path: Any) -> None:
    config = configuration(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "costgov.db").mkdir()  # A directory in the file's place: root cannot write it either.
    done = _run_costgov("run", "--config", str(config), "--ceiling", "10", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "problem:" in done.stderr
    assert "costgov.db" in done.stderr


def test_a_command_that_does_not_exist_is_one_line(tmp_path: Any) -> None:
    done = _run_costgov("run", "--config", str(configuration(tmp_path)), "--ceiling", "10", "--", "/no/such/trainer")
    assert done.returncode == 127
    assert "/no/such/trainer" in done.stderr.strip().splitlines()[-1]


def _run_costgov(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "costgov"), *argv], capture_output=True, text=True, timeout=SAFETY_S, check=False
    )  # fmt: skip
