"""`systemctl start costgov` under a really booted systemd: what the unit promises, observed."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.drills.systemd.node import Node, Trainer

EXPOSURE_MAX = 5.0  # Where systemd-analyze begins to say MEDIUM instead of OK.
BAD_POLICY = '[policy]\nname = "zz"\nmatch = { stage = "zz" }\n[halt]\ngrase = "10m"\n'


def test_the_unit_is_valid_and_little_exposed(node: Node) -> None:
    verified = node.box.run("systemd-analyze", "verify", "/etc/systemd/system/costgov.service")
    assert verified.stderr == ""
    security = node.box.run("systemd-analyze", "security", "--no-pager", "costgov").stdout
    exposure = re.search(r"Overall exposure level for costgov.service: ([\d.]+) OK", security)
    assert exposure, security[-300:]
    assert float(exposure[1]) < EXPOSURE_MAX


def test_start_returns_when_it_watches(started: Node) -> None:
    box = started.box
    assert box.property("costgov", "ActiveState") == "active"
    assert box.property("costgov", "StatusText") != ""
    assert started.governor()["pid"] == started.main_pid()
    status = box.run("cat", f"/proc/{started.main_pid()}/status").stdout
    capabilities = dict(re.findall(r"^(Cap\w+):\s+(\w+)$", status, flags=re.MULTILINE))
    kill_only = f"{1 << 5:016x}"
    assert capabilities == dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), kill_only)
    uid = box.run("id", "-u", "costgov").stdout.strip()
    assert re.search(rf"^Uid:\t{uid}\t{uid}\t{uid}\t{uid}$", status, flags=re.MULTILINE)


def test_a_command_of_the_operator_reaches_it(started: Node) -> None:
    assert "costgov" in started.box.run("costgov", "--version").stdout
    started.box.run("costgov", "status")


def test_a_trainer_of_another_user_is_watched(started: Node, make_trainer: Callable[[str], Trainer]) -> None:
    trainer = make_trainer("watched")
    run = started.run("watched")
    assert run is not None
    assert run["uid"] == int(started.box.run("id", "-u", "alice").stdout)
    assert run["ranks_connected"] == 1
    assert started.is_alive(trainer.pid)


def test_a_reload_keeps_the_old_policy_when_the_new_one_is_wrong(started: Node) -> None:
    box, policy = started.box, "/etc/costgov/policies.d/zz.toml"
    pid, digest = started.main_pid(), started.governor()["policy_digest"]
    box.write(policy, BAD_POLICY)
    try:
        box.run("systemctl", "reload", "costgov")
        governor = started.until(
            lambda: (g := started.governor()) and not g["last_reload_ok"] and g, "a refused reload"
        )
        assert "grase" in governor["reload_error"]
        assert (governor["policy_digest"], started.main_pid()) == (digest, pid)
        box.write(policy, BAD_POLICY.replace("grase", "grace"))
        box.run("systemctl", "reload", "costgov")
        governor = started.until(lambda: (g := started.governor()) and g["last_reload_ok"] and g, "an accepted reload")
        assert governor["policy_digest"] != digest
    finally:
        box.run("rm", policy)
        box.run("systemctl", "reload", "costgov")
    started.until(lambda: started.governor()["policy_digest"] == digest, "the first policy again")


def test_a_halt_saves_and_ends_the_trainer_of_another_user(
    started: Node, make_trainer: Callable[[str], Trainer]
) -> None:
    trainer = make_trainer("polite")
    started.box.run("costgov", "halt", "polite", "--reason", "drill")
    trainer.wait_until_gone()
    incident = started.ended_incident("polite")
    assert incident["halt_stage"] == "HALTED"
    assert incident["checkpoint"]["verified_by"] == "governor"
    assert incident["agreed_step"] == incident["checkpoint"]["step"]
    files = started.box.run("ls", incident["checkpoint"]["path"]).stdout.split()
    assert {"count.json", "costgov_manifest.json"} <= set(files)


def test_killed_in_the_middle_of_a_halt_it_comes_back_and_finishes(
    started: Node, make_trainer: Callable[[str], Trainer]
) -> None:
    """The trainer stands before a boundary, so the halt waits for its checkpoint, and the governor dies there."""
    trainer = make_trainer("midway")
    trainer.tell("hold")
    started.box.run("costgov", "halt", "midway", "--reason", "drill")
    asked = started.until(
        lambda: (i := started.incident("midway")) and i["halt_stage"] in ("ASKED", "SAVING") and i, "the ask"
    )
    before = started.main_pid()
    started.box.run("kill", "-KILL", str(before))
    started.wait_for_another(before)
    assert started.is_alive(trainer.pid), "the halt must wait for the checkpoint, not start over with a kill"
    trainer.tell("go")
    trainer.wait_until_gone()
    incident = started.ended_incident("midway")
    assert incident["incident_id"] == asked["incident_id"]
    assert incident["halt_stage"] == "HALTED"
    assert incident["checkpoint"]["verified_by"] == "governor"


def test_a_stuck_loop_is_found_by_the_watchdog(started: Node) -> None:
    box, drop_in = started.box, "/etc/systemd/system/costgov.service.d/drill.conf"
    box.write(drop_in, "[Service]\nWatchdogSec=5\n")
    try:
        box.run("systemctl", "daemon-reload")
        box.run("systemctl", "restart", "costgov")
        before = started.main_pid()
        box.run("kill", "-STOP", str(before))
        started.wait_for_another(before)
        assert "watchdog" in box.run("journalctl", "--no-pager", "--output=cat", "_PID=1", "--unit=costgov").stdout
    finally:
        box.run("rm", drop_in)
        box.run("systemctl", "daemon-reload")
        box.run("systemctl", "restart", "costgov")


def test_credentials_are_the_services_alone(started: Node) -> None:
    """With the shipped example as the drop-in: the file is root's, the service sees a copy, other users see neither."""
    box, drop_in = started.box, "/etc/systemd/system/costgov.service.d/credentials.conf"
    box.write("/etc/costgov/credentials/aws", "[default]\naws_secret_access_key = drill\n", mode=0o600)
    box.run("install", "-D", "-m", "644", "/box/tree/deploy/systemd/credentials.conf.example", drop_in)
    try:
        box.run("systemctl", "daemon-reload")
        box.run("systemctl", "restart", "costgov")
        environ = box.run("cat", f"/proc/{started.main_pid()}/environ").stdout.split("\0")
        directory = next(one for one in environ if one.startswith("CREDENTIALS_DIRECTORY=")).partition("=")[2]
        given = f"{directory}/aws"
        for user, exit_code in (("costgov", 0), ("alice", 1)):
            found = box.run(
                "setpriv", f"--reuid={user}", "--clear-groups", "sh", "-c", 'cat "$1"', "sh", given, check=False
            )
            assert found.returncode == exit_code, (user, found)
        assert "drill" not in box.journal("costgov")
    finally:
        box.run("rm", "-r", drop_in, "/etc/costgov/credentials")
        box.run("systemctl", "daemon-reload")
        box.run("systemctl", "restart", "costgov")


def test_no_number_of_deaths_makes_systemd_give_up(started: Node) -> None:
    """The default limit is five starts in ten seconds."""
    box = started.box
    inode = box.run("stat", "--format=%i", "/run/costgov").stdout
    box.run("systemctl", "reset-failed", "costgov")
    for _ in range(6):
        before = started.main_pid()
        box.run("kill", "-KILL", str(before))
        started.until(lambda before=before: started.main_pid() not in (0, before), "another start")  # type: ignore[misc]
    started.until(lambda: started.ask(cmd="ping") is not None, "an answer")
    assert int(box.property("costgov", "NRestarts")) >= 6
    assert box.run("stat", "--format=%i", "/run/costgov").stdout == inode, "a bind mount of it would be dead now"
