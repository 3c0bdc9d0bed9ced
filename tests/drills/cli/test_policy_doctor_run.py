"""What is checked before it is needed, and a command under a governor of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from governor.adapters.journal.db import Database
from governor.cli.common import ExitCode
from tests.drills.cli.installed import COSTGOV, Costgov

REPOSITORY = Path(__file__).parents[3]


def test_policy_check_explains_or_names_file_line_and_key(costgov: Costgov, tmp_path: Path) -> None:
    good = costgov("policy", "check", str(REPOSITORY / "policies"))
    assert good.returncode == 0
    assert 'policy "default"' in good.stdout
    (tmp_path / "typo.toml").write_text('[policy]\nname = "x"\nmod = "enforce"\n')
    bad = costgov("policy", "check", str(tmp_path))
    assert (bad.returncode, bad.stdout) == (ExitCode.FAILED, "")
    assert f"{tmp_path}/typo.toml:3" in bad.stderr
    assert costgov("policy", "check", f"{tmp_path}/absent.toml").returncode == ExitCode.FAILED


def test_policy_check_knows_what_a_stream_can_be_stopped_by(costgov: Costgov, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[[jsonl]]\npath = "/data/m.jsonl"\nrun = "r"\n')
    told = costgov("policy", "check", str(REPOSITORY / "policies/default.toml"), "--config", f"{tmp_path}/c.toml")
    assert "a halt can stop only the instance" in told.stdout


RULE = '[[rule]]\nname = "budget"\ntrigger = "budget"\nresponse = "halt"\n'


def doctors_config(tmp_path: Path, more: str = "", price: str = "price_usd_per_hour = 22.0") -> str:
    (tmp_path / "policies").mkdir(exist_ok=True)
    (tmp_path / "policies/p.toml").write_text('[policy]\nname = "p"\n[budget]\nceiling_usd = 90.0\n' + RULE)
    path = tmp_path / "c.toml"
    path.write_text(f"[node]\n{price}\n[metrics]\nport = 0\n{more}\n")
    path.chmod(0o600)
    return str(path)


def test_the_doctor_finds_a_sound_machine_sound(costgov: Costgov, tmp_path: Path) -> None:
    config = doctors_config(tmp_path)
    told = costgov("doctor", "--config", config, "--json", COSTGOV_PATHS__POLICIES_DIR=f"{tmp_path}/policies")
    document = json.loads(told.stdout)
    assert document["ok"], [check for check in document["checks"] if check["level"] == "fail"]
    assert told.returncode == 0
    names = {check["name"] for check in document["checks"]}
    assert names >= {
        "settings",
        "governor",
        "trainers",
        "control",
        "journal",
        "kill path",
        "cloud",
        "price",
        "policies",
    }
    assert not (Path(config).parent / "state").exists(), "it only looks"


@pytest.mark.parametrize(
    ("more", "price", "expected"),
    [
        ('[cloud]\nprovider = "command"\n[cloud.command]\nargvv = []\n', None, 'cloud.command: unknown key "argvv"'),
        ("", "", "the price of this node is unknown"),
        ('[control]\ngroup = "no-such-group"\n', None, 'there is no group "no-such-group"'),
        (
            '[cloud]\nprovider = "command"\n[cloud.command]\nargv = ["/no/such"]\n',
            None,
            "/no/such is not an executable",
        ),
    ],
)
def test_the_doctor_finds_what_would_fail(
    costgov: Costgov, tmp_path: Path, more: str, price: str | None, expected: str
) -> None:
    config = doctors_config(tmp_path, more, price="price_usd_per_hour = 22.0" if price is None else price)
    told = costgov("doctor", "--config", config, COSTGOV_PATHS__POLICIES_DIR=f"{tmp_path}/policies")
    assert told.returncode == ExitCode.FAILED
    assert any(line.startswith("FAIL") and expected in line for line in told.stdout.splitlines()), told.stdout


def test_the_doctor_finds_a_schema_with_one_byte_amiss(costgov: Costgov, tmp_path: Path, short_tmp: Path) -> None:
    """SQLite quotes the damaged text in its error, which then is no UTF-8."""
    (short_tmp / "state").mkdir()
    path = short_tmp / "state/costgov.db"
    Database(str(path)).close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"tablerunsruns", b"tablerun\xeeruns", 1))
    assert path.read_bytes() != whole
    told = costgov("doctor", "--config", doctors_config(tmp_path), COSTGOV_PATHS__POLICIES_DIR=f"{tmp_path}/policies")
    (line,) = [line for line in told.stdout.splitlines() if " journal " in line]
    assert line.startswith(f"warn  journal       {path}: "), "known, and no end of the doctor"
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "ok    recordings    {root}: 1 of at most 1024 MB"),
        ("[record]\nenabled = false", "ok    recordings    off: no run of this node can be replayed later"),
        ("[record]\nleave_free_mb = 10_000_000", "MB are free and 10000000 are left alone: nothing is recorded"),
    ],
)
def test_the_doctor_says_what_is_recorded(costgov: Costgov, tmp_path: Path, more: str, expected: str) -> None:
    root = tmp_path / "recordings"
    (root / "r").mkdir(parents=True)
    (root / "r" / "frames-000001.jsonl.gz").write_bytes(bytes(1_000_000))
    environ = {"COSTGOV_PATHS__POLICIES_DIR": f"{tmp_path}/policies", "COSTGOV_PATHS__RECORDINGS_DIR": str(root)}
    told = costgov("doctor", "--config", doctors_config(tmp_path, more), **environ)
    assert told.returncode == 0, told.stdout
    (line,) = [line for line in told.stdout.splitlines() if " recordings " in line]
    assert expected.format(root=root) in line


def test_the_doctor_says_where_nothing_can_be_recorded(costgov: Costgov, tmp_path: Path) -> None:
    environ = {
        "COSTGOV_PATHS__POLICIES_DIR": f"{tmp_path}/policies",
        "COSTGOV_PATHS__RECORDINGS_DIR": f"{tmp_path}/c.toml/x",
    }
    told = costgov("doctor", "--config", doctors_config(tmp_path), **environ)
    assert told.returncode == 0, "no halt depends on it"
    (line,) = [line for line in told.stdout.splitlines() if " recordings " in line]
    assert f"warn  recordings    {tmp_path}/c.toml/x: {tmp_path}/c.toml is no directory; nothing is recorded" in line


def test_the_doctor_says_what_an_idle_node_would_come_to(costgov: Costgov, tmp_path: Path) -> None:
    config = doctors_config(tmp_path, "", price='price_usd_per_hour = 22.0\nidle_stop = "15m"')
    told = costgov("doctor", "--config", config, COSTGOV_PATHS__POLICIES_DIR=f"{tmp_path}/policies")
    (line,) = [line for line in told.stdout.splitlines() if " idle " in line]
    assert line.startswith("warn")
    assert "idle_stop of costgov.toml wants this node stopped after 15m 0s with nobody here" in line
    assert "no cloud is configured" in line


def test_the_doctor_says_what_is_to_be_known_of_the_price(costgov: Costgov, tmp_path: Path) -> None:
    machine = '[price]\nprovider = "AWS"\ninstance = "p5.48xlarge"\n'
    config = doctors_config(tmp_path, machine, price='price_usd_per_hour = 6.88\nprice_as_of = "2025-06"')
    told = costgov("doctor", "--config", config, COSTGOV_PATHS__POLICIES_DIR=f"{tmp_path}/policies")
    assert told.returncode == 0, told.stdout
    about = [line for line in told.stdout.splitlines() if " price " in line or "→" in line]
    assert about[0].startswith("ok    price         $6.88/h on-demand (costgov.toml, as of 2025-06, ")
    assert any(line.startswith("warn  price") and "days old" in line for line in about)
    assert any("$55.04/h (built-in table: AWS" in line for line in about)
    assert any("is the former the price of one of 8 GPUs?" in line for line in about)


def test_the_doctor_finds_sockets_that_cannot_be(costgov: Costgov, tmp_path: Path) -> None:
    told = costgov("doctor", "--config", doctors_config(tmp_path), COSTGOV_PATHS__RUNTIME_DIR=f"/{'x' * 120}")
    assert "FAIL  trainers" in told.stdout


@pytest.mark.parametrize(
    ("command", "code"), [(["true"], 0), (["sh", "-c", "exit 3"], 3), (["/no/such"], 127), (["/etc/hostname"], 126)]
)
def test_run_exits_as_its_command_does(costgov: Costgov, command: list[str], code: int) -> None:
    told = costgov("run", "--ceiling", "300", "--price", "22", "--", *command)
    assert told.returncode == code, told.stderr


def test_run_passes_options_of_the_command_through(costgov: Costgov) -> None:
    told = costgov("run", "--ceiling", "300", "--price", "22", "sh", "-c", 'echo "$0 $COSTGOV_RUN"', "--json")
    assert told.stdout.startswith("--json sh-")


def test_run_with_a_ceiling_and_no_price_refuses(costgov: Costgov) -> None:
    told = costgov("run", "--ceiling", "300", "--", "true")
    assert told.returncode == ExitCode.FAILED
    assert "--price" in told.stderr


def test_run_as_json_speaks_json_only(costgov: Costgov) -> None:
    told = costgov("run", "--json", "--ceiling", "300", "--price", "22", "--", "true")
    assert {json.loads(line)["kind"] for line in told.stderr.splitlines()} == {"said", "run"}


def test_a_log_that_cannot_be_written_is_said_before_anything_starts(costgov: Costgov, tmp_path: Path) -> None:
    told = costgov("run", "--price", "22", "--log", f"{tmp_path}/absent/log", "--", "touch", f"{tmp_path}/started")
    assert told.returncode == ExitCode.USAGE
    assert told.stderr.splitlines()[-1] == (
        f"costgov run: --log {tmp_path}/absent/log: cannot be written: No such file or directory"
    )
    assert not (tmp_path / "started").exists()
    assert "on halt I will" not in told.stderr, "no governor came to be"


SEEN = 'echo "$COSTGOV_RUN $COSTGOV_SOCKET"'


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "7"}])
def test_a_run_inside_a_run_has_a_name_and_a_socket_of_its_own(
    costgov: Costgov, environ: dict[str, str], job: dict[str, str]
) -> None:
    del environ["COSTGOV_CONTROL"]
    inner = f"{COSTGOV} run --price 22 -- sh -c '{SEEN}'"
    told = costgov("run", "--price", "22", "--", "sh", "-c", f"{SEEN}; {inner}; echo inner $?; {SEEN}", **job)
    assert told.returncode == 0, told.stderr
    before, within, ended, after = told.stdout.splitlines()
    assert (before, ended) == (after, "inner 0")
    (outer_name, outer_socket), (inner_name, inner_socket) = before.split(), within.split()
    assert inner_name != outer_name
    assert inner_socket.endswith(f"/run/runs/{inner_name}/trainer.sock")
    assert outer_socket.endswith(f"/run/runs/{outer_name}/trainer.sock")


TRAINEE = """
import json, os, socket
from trainer_shim import wire

sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(os.environ["COSTGOV_SOCKET"])
hello = dict(seq=1, run=os.environ["COSTGOV_RUN"], attempt="a1", local_rank=0, world_size=1, signal=0, total_steps=200)
sock.send(wire.encode({**wire.head("hello", 0, 1), **hello}))
step = dict(step=41, attempt_step=41, loss=2.5, tokens=4096, tokens_total=41 * 4096, step_s=0.1)
sock.send(wire.encode({**wire.head("step", 0, 2), **step}))
sock.send(wire.encode({**wire.head("bye", 0, 3), **dict(seq=2, completed=True)}))
while json.loads(sock.recv(65536)).get("seq") != 2:
    pass
"""


def test_a_run_ends_with_one_line_of_what_it_came_to(costgov: Costgov) -> None:
    """Off a terminal the live line comes every ten seconds: what came after it stands in this one."""
    told = costgov("run", "--name", "r1", "--price", "22", "--progress", "3600", "--", sys.executable, "-c", TRAINEE)
    assert told.returncode == 0, told.stderr
    closing, whole = told.stderr.splitlines()[-2:]
    assert closing.startswith("costgov: r1: ended with exit code 0; step 41/200; 167,936 tokens; spent $0.")
    assert closing.endswith("; no checkpoint seen")
    assert whole.split() == ["whole", "run", "costgov", "report", "r1"]
    failed = costgov("run", "--price", "22", "--", "sh", "-c", "exit 3")
    closing, resume = failed.stderr.splitlines()[-2:]
    assert "ended with exit code 3; no step was seen" in closing
    assert resume.startswith("resume ")


def test_the_end_of_a_run_clears_away_after_ended_ones(costgov: Costgov, short_tmp: Path) -> None:
    idle = short_tmp / "run" / "runs" / "ended-1"
    idle.mkdir(parents=True)
    os.utime(idle, (0, 0))
    assert costgov("run", "--price", "22", "--", "true").returncode == 0
    assert not idle.exists()


def test_what_stands_beside_a_configured_directory_is_left_alone(
    costgov: Costgov, environ: dict[str, str], short_tmp: Path
) -> None:
    del environ["COSTGOV_PATHS__RUNTIME_DIR"]
    idle, ours = short_tmp / "x" / "runs" / "theirs", short_tmp / "x" / "runs" / "ours"
    idle.mkdir(parents=True)
    os.utime(idle, (0, 0))
    config = short_tmp / "costgov.toml"
    config.write_text(f'[paths]\nruntime_dir = "{ours}"\n')
    config.chmod(0o600)
    done = costgov("run", "--config", str(config), "--name", "ours", "--price", "22", "--", "true")
    assert (done.returncode, ours.is_dir()) == (0, True), done.stderr
    assert idle.is_dir()
