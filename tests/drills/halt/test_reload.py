"""SIGHUP while frames stream in and while a halt runs: no frame lost, no half policy in force, a halt as it began."""

from __future__ import annotations

import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.demo_cloud import DemoCloud
from tests.drills.halt.conftest import BIN, POLICY, SAFETY_S, Service, cloud_table
from tests.drills.halt.puppet import Puppet

Make = Callable[..., Service]

RELOADS, FRAMES_BETWEEN = 20, 200
TIGHT = '\n[budget]\nceiling_usd = 0.1\n[[rule]]\nname = "budget"\ntrigger = "budget"\nresponse = "halt"\n'


@pytest.fixture
def puppets() -> Iterator[list[Puppet]]:
    started: list[Puppet] = []
    yield started
    for puppet in started:
        puppet.end()


def _status(governor: Service) -> dict[str, Any]:
    return dict(governor.ask({"cmd": "status"})["governor"])


def _hang_up(governor: Service) -> None:
    assert governor.process is not None
    governor.process.send_signal(signal.SIGHUP)


def _put(path: Path, text: str) -> None:
    """As an administrator's tools do it: never half a file."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def _named(name: str) -> str:
    return POLICY.format(stop="processes").replace('name = "drill"', f'name = "{name}"').replace("1 step", "3 steps")


def _put_in_force(governor: Service, name: str) -> None:
    _put(governor.policy, _named(name))
    _hang_up(governor)
    governor.until(lambda: _status(governor)["policies"] == [name], f"policy {name} is in force")


def _join(governor: Service, puppets: list[Puppet], attempt: str = "a") -> Puppet:
    puppets.append(Puppet(governor.work / "run" / "trainer.sock"))
    assert puppets[-1].hello(attempt=attempt)["kind"] == "confirm"
    return puppets[-1]


def test_frames_that_stream_in_during_reloads_are_all_heard_and_judged(service: Make, puppets: list[Puppet]) -> None:
    governor = service()
    governor.start()
    rank = _join(governor, puppets)
    for n in range(RELOADS):
        rank.steps(n * FRAMES_BETWEEN + 1, (n + 1) * FRAMES_BETWEEN)
        _put_in_force(governor, f"drill-{n}")
    last = RELOADS * FRAMES_BETWEEN
    governor.until(lambda: governor.ask({"cmd": "status"})["runs"][0]["step"] == last, "the last frame is heard")
    status = _status(governor)
    assert (status["frames_total"], status["frames_dropped_total"], status["frames_malformed_total"]) == (last, 0, 0)
    assert governor.incidents() == []
    governor.until(lambda: governor.log.read_text().count('"reloaded"') == RELOADS, "each reload is in the log, once")

    # What a rule has counted outlives a reload: the third NaN in a row is the third.
    rank.steps(last + 1, last + 2, loss="nan")
    _put_in_force(governor, "drill-last")
    rank.steps(last + 3, last + 9, loss="nan")
    assert select.select([rank.pidfd], [], [], SAFETY_S)[0]
    incident = governor.until_stage("HALTED")
    assert (incident["step"], incident["policy"]) == (last + 3, "drill-last")


def test_a_halt_under_way_goes_on_by_the_plan_of_its_verdict(service: Make, cloud: DemoCloud) -> None:
    patient = POLICY.replace('grace = "10s"', 'grace = "90s"', 1)
    governor = service(stop="instance", cloud=cloud_table(cloud), policy=patient)
    governor.start()
    trainee = governor.trainee("slow_save", unsaved_s=600)
    governor.until_stage("SAVING")
    milder = POLICY.format(stop="processes").replace('name = "drill"', 'name = "milder"\nmode = "observe"')
    _put(governor.policy, milder.replace("suspect", "none"))
    _hang_up(governor)
    governor.until(lambda: _status(governor)["policies"] == ["milder"], "the milder policy is in force")
    governor.go_on()
    incident = governor.until_stage("HALTED")
    trainee.wait(SAFETY_S)
    assert incident["policy"] == "drill"
    assert incident["kind"] == "suspect"
    assert incident["checkpoint"]["verified_by"] == "governor"
    assert "verified" in [entry["what"] for entry in incident["timeline"]]
    assert (cloud.state(), cloud.times_ended) == ("stopped", 1)


def test_one_invalid_file_keeps_every_old_policy_and_says_so(service: Make, puppets: list[Puppet]) -> None:
    governor = service()
    directory = governor.work / "policies"
    directory.mkdir()
    ours, other = directory / "drill.toml", directory / "other.toml"
    ours.write_text(POLICY.format(stop="processes"))
    governor.policy = directory
    governor.start()
    before = _status(governor)
    rank = _join(governor, puppets)

    _put(ours, POLICY.format(stop="processes").replace('name = "drill"', 'name = "drill"\nmode = "observe"'))
    _put(other, '[policy]\nname = "other"\nmatch = { stage = "other" }\n[halt]\nterm_graze = "1s"\n')
    _hang_up(governor)
    governor.until(lambda: not _status(governor)["last_reload_ok"], "the reload is refused")
    after = _status(governor)
    assert (after["policies"], after["policy_digest"]) == (before["policies"], before["policy_digest"])
    assert f"{other}:5" in after["reload_error"]
    assert "halt.term_graze" in after["reload_error"]
    governor.until_said("reload_refused")
    shown = subprocess.run(
        [str(BIN / "costgov"), "status", "--control", str(governor.work / "run" / "control.sock")],
        capture_output=True, text=True, timeout=SAFETY_S, check=True,
    ).stdout  # fmt: skip
    assert "the last reload was refused" in shown

    # The good file beside it did not come into force either: the old policy halts, as it always would have.
    rank.steps(1, 30)
    rank.steps(31, 31, loss="nan")
    assert select.select([rank.pidfd], [], [], SAFETY_S)[0]
    governor.until_stage("HALTED")

    _put(other, other.read_text().replace("graze", "grace"))
    _hang_up(governor)
    governor.until(lambda: _status(governor)["last_reload_ok"], "the repaired files are in force")
    assert _status(governor)["reload_error"] is None
    again = _join(governor, puppets, attempt="b")
    again.steps(1, 30)
    again.steps(31, 31, loss="nan")
    governor.until_said("observe mode: would halt")
    assert len(governor.incidents()) == 1
    assert again.process.poll() is None
    assert governor.log_at_end().count("reload_refused") == 1


def test_a_ceiling_that_cannot_hold_is_refused_with_its_numbers_and_the_old_one_stays(service: Make) -> None:
    governor = service()
    governor.start()
    before = _status(governor)
    _put(governor.policy, _named("tight") + TIGHT)
    _hang_up(governor)
    governor.until(lambda: not _status(governor)["last_reload_ok"], "the reload is refused")
    after = _status(governor)
    assert (after["policies"], after["policy_digest"]) == (before["policies"], before["policy_digest"])
    assert after["reload_error"].startswith("policy tight: the ceiling $0.1000 is below $")


def test_a_drop_in_is_in_force_after_a_reload_and_a_bad_one_is_refused_with_its_place(
    service: Make, puppets: list[Puppet]
) -> None:
    governor = service()
    governor.start()
    rank = _join(governor, puppets)
    rank.steps(1, 30)
    drop_ins = governor.policy.with_suffix(".d")
    drop_ins.mkdir()
    before = _status(governor)
    _put(drop_ins / "10-site.toml", '[[rule]]\nname = "nonfinite"\nfor = "3 stepz"\n')
    _hang_up(governor)
    governor.until(lambda: not _status(governor)["last_reload_ok"], "the reload is refused")
    assert f"{drop_ins}/10-site.toml:3: rule[1].for: " in _status(governor)["reload_error"]
    assert _status(governor)["policy_digest"] == before["policy_digest"]

    _put(drop_ins / "10-site.toml", '[[rule]]\nname = "nonfinite"\nfor = "3 steps"\n')
    _hang_up(governor)
    governor.until(lambda: _status(governor)["last_reload_ok"], "the drop-in is in force")
    assert _status(governor)["policy_digest"] != before["policy_digest"]
    rank.steps(31, 32, loss="nan")
    rank.steps(33, 33)
    rank.steps(34, 36, loss="nan")
    assert select.select([rank.pidfd], [], [], SAFETY_S)[0]
    assert governor.until_stage("HALTED")["step"] == 36, "the third in a row, and not the first of all"
