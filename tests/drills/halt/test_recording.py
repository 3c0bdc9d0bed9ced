"""A halted run is replayed from what its governor recorded: the same policy decides the same, another does not."""

from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from tests.drills.halt.conftest import BIN, POLICY, SAFETY_S, Service
from tests.drills.halt.test_journal_full import small_disk as small_disk
from tests.drills.test_journal_disk import ext4, needs_ext4
from tests.drills.test_recordings_disk import frozen

Make = Callable[..., Service]

HANG = POLICY.replace('"nonfinite"', '"hang"').replace('for = "1 step"', 'between_limit = "2s"\ntight_min = "2s"')
LOOSER = POLICY.replace('for = "1 step"', 'for = "500 steps"').replace("{stop}", "processes")


def recording(governor: Service) -> Path:
    return governor.work / "state" / "recordings" / "drill"


def lines(directory: Path) -> list[dict[str, Any]]:
    """Whole segments, as any reader of gzip has them."""
    parts = sorted(directory.glob("frames-*.jsonl.gz"))
    return [json.loads(line) for part in parts for line in gzip.decompress(part.read_bytes()).splitlines()]


def steps(directory: Path) -> list[int]:
    return [line["step"] for line in lines(directory) if line.get("kind") == "step"]


def notes(directory: Path, what: str) -> list[dict[str, Any]]:
    return [line for line in lines(directory) if line.get("note") == what]


def replay(policy: Path, log: Path) -> list[dict[str, Any]]:
    """Verdicts, and the summary behind them."""
    argv = [str(BIN / "costgov"), "policy", "replay", "--json", "--policy", str(policy), str(log)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SAFETY_S)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def halted(governor: Service, mode: str) -> dict[str, Any]:
    """Have the trainee halted, and what led to it on disk while the governor lives; then nothing more is written."""
    governor.start()
    governor.trainee(mode)
    incident = governor.until_stage("HALTED")
    governor.until(lambda: notes(recording(governor), "halted"), "the halt is recorded")
    end(governor)
    return incident


def end(governor: Service) -> None:
    assert governor.process is not None
    governor.process.send_signal(signal.SIGTERM)
    assert governor.process.wait(SAFETY_S) == 0


def test_the_same_policy_halts_at_the_same_step_and_a_looser_one_does_not(service: Make, tmp_path: Path) -> None:
    governor = service()
    incident = halted(governor, "polite")
    verdict, summary = replay(governor.policy, recording(governor))
    for key in ("rule", "trigger", "step", "reason"):
        assert verdict[key] == incident[key]
    assert (summary["halts"], summary["first_halt_step"]) == (1, incident["step"])
    (tmp_path / "looser.toml").write_text(LOOSER)
    (summary,) = replay(tmp_path / "looser.toml", recording(governor))
    assert summary["halts"] == 0
    (above,) = replay(tmp_path / "looser.toml", recording(governor).parent)
    assert above == summary, "a directory of recordings holds one log for each run"


def test_a_halt_that_time_decided_is_decided_at_the_same_time(service: Make) -> None:
    governor = service(policy=HANG)
    incident = halted(governor, "stuck")
    verdict, _ = replay(governor.policy, recording(governor))
    assert (verdict["rule"], verdict["step"]) == (incident["rule"], incident["step"]) == ("hang", 31)
    heard = [line["at_ns"] for line in lines(recording(governor)) if "at_ns" in line]
    decided_s = (notes(recording(governor), "halted")[0]["at_ns"] - heard[0]) / 1e9
    assert decided_s - 0.25 <= verdict["t"] <= decided_s, "to a tick of the daemon's"


def test_a_recording_holds_no_command_line_and_is_not_for_everybody(service: Make) -> None:
    governor = service()
    halted(governor, "polite")
    (segment,) = recording(governor).iterdir()
    hello = next(line for line in lines(recording(governor)) if line.get("kind") == "hello")
    assert not {"resume_argv", "cwd", "checkpoint_dir"} & hello.keys()
    assert stat.S_IMODE(segment.stat().st_mode) == 0o600
    assert stat.S_IMODE(recording(governor).stat().st_mode) == 0o700


def test_what_a_killed_governor_has_written_goes_on_with_the_next_ones(service: Make) -> None:
    governor = service()
    governor.start()
    governor.trainee("healthy")
    governor.until(lambda: recording(governor).exists() and steps(recording(governor)), "steps are on disk")
    governor.kill9()
    before = steps(recording(governor))
    governor.start()
    governor.until(lambda: steps(recording(governor))[-1] > before[-1], "steps are on disk again")
    governor.ask({"cmd": "halt", "run": "drill", "reason": "the drill says so"})
    governor.until_stage("HALTED")
    end(governor)
    (summary,) = replay(governor.policy, recording(governor))
    assert summary["halts"] == 0, "time without a governor is no silence of the run's"
    assert len(lines(recording(governor))) == summary["records"] + 1, "the second segment's head is no record"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a tmpfs of its own")
def test_a_disk_with_no_room_to_spare_is_said_once_and_costs_no_halt(small_disk: Path, service: Make) -> None:
    governor = service()
    governor.start()
    governor.trainee("healthy")
    governor.until_said("recording_stopped")
    problem = governor.ask({"cmd": "status"})["governor"]["recording"]["problem"]
    assert "are left alone" in problem
    governor.ask({"cmd": "halt", "run": "drill", "reason": "the drill says so"})
    assert governor.until_checked()["checkpoint"]["verified_by"] == "governor"
    assert governor.log_at_end().count("recording_stopped") == 1
    assert not recording(governor).exists()


@needs_ext4
def test_a_disk_that_hangs_costs_neither_a_step_nor_a_halt(service: Make, tmp_path: Path) -> None:
    """Another one than the journal's, frozen under the writer while it holds what it could not write."""
    governor = service()
    (tmp_path / "other").mkdir()
    with ext4(tmp_path / "other") as disk:
        text = governor.config.read_text().replace("[paths]\n", f'[paths]\nrecordings_dir = "{disk}"\n')
        governor.config.write_text(text + "[record]\nleave_free_mb = 1\n")
        governor.start()
        governor.trainee("healthy")
        governor.until(lambda: (disk / "drill").exists() and steps(disk / "drill"), "steps are on disk")
        with frozen(disk):
            governor.until_said("no answer from the disk")
            at = governor.step()
            governor.until(lambda: governor.step() > at, "steps are judged all the same")
            governor.ask({"cmd": "halt", "run": "drill", "reason": "the drill says so"})
            assert governor.until_checked()["checkpoint"]["verified_by"] == "governor"
            assert not notes(disk / "drill", "halted"), "it hangs still"
        governor.until(lambda: notes(disk / "drill", "halted"), "what was held is written then")
        end(governor)


def test_a_recording_that_is_off_leaves_nothing(service: Make) -> None:
    governor = service()
    governor.config.write_text(governor.config.read_text() + "[record]\nenabled = false\n")
    governor.start()
    governor.trainee("polite")
    governor.until_stage("HALTED")
    end(governor)
    assert not (governor.work / "state" / "recordings").exists()
