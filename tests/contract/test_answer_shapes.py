"""Whatever is not a governor's answer is one line for people, of every command, over a real socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode, Failed
from governor.cli.main import cli
from governor.core.base.policy import Budget
from governor.core.base.units import MonoNs
from governor.core.views.status import run_status
from governor.wire.answer_shapes import ANSWERS, INCIDENT, OF_RUN, is_shaped, sifted
from tests.golden.report_cases import CASES
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, make_node

SAFETY_S = 20.0
Serve = Callable[[Any], str]


@pytest.fixture
def serve(short_tmp: Path) -> Iterator[Serve]:
    """Answer every request with that data."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(short_tmp / "c"))
    listener.listen()
    threads: list[threading.Thread] = []

    def run(data: Any) -> None:
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with conn:
                if not conn.recv(1 << 16):
                    return
                conn.sendall(json.dumps({"ok": True, "data": data}).encode() + b"\n")

    def start(data: Any) -> str:
        threads.append(threading.Thread(target=run, args=(data,)))
        threads[-1].start()
        return str(short_tmp / "c")

    yield start
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
        last.connect(str(short_tmp / "c"))
        last.shutdown(socket.SHUT_WR)
        for thread in threads:
            thread.join(SAFETY_S)
    listener.close()


COMMANDS = (
    ("status",), ("status", "--json"), ("status", "e3"), ("incident", "list"), ("incident", "show", "last"),
    ("halt", "e3", "--reason", "r"), ("hold", "e3", "1h", "--reason", "r"), ("hold", "@node", "1h", "--reason", "r"),
    ("forget", "e3"), ("budget", "list"), ("budget", "set", "run:e3", "30", "--reason", "r"),
    ("budget", "clear", "run:e3", "--reason", "r"),
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "data", [{"runs": []}, {"incident": "x"}, {"governor": {}, "runs": [1]}, [{"run": "x"}], None, 3]
)
def test_an_answer_of_another_shape_is_one_line(serve: Serve, command: tuple[str, ...], data: Any) -> None:
    path = serve(data)
    done = CliRunner().invoke(cli, [*command, "--control", path], standalone_mode=False)
    assert isinstance(done.exception, Failed), (done.exception, done.output)
    assert done.exception.code is ExitCode.NO_GOVERNOR
    assert f"{path} did not answer" in done.exception.message
    assert "\n" not in done.exception.message


def test_an_incident_that_is_not_whole_is_one_line(serve: Serve) -> None:
    """Beside it the list stays readable."""
    listed = {key: CASES["nan_halt"]()[key] for key in ANSWERS["incidents"][0] if not key.endswith("?")}
    path = serve([listed])
    shown = CliRunner().invoke(cli, ["incident", "list", "--control", path], standalone_mode=False)
    assert listed["incident_id"] in shown.output
    done = CliRunner().invoke(cli, ["incident", "show", "last", "--control", path], standalone_mode=False)
    assert isinstance(done.exception, Failed), done.exception
    assert "is not whole" in done.exception.message


@pytest.mark.parametrize("name", CASES)
def test_every_incident_that_is_reported_has_the_shape(name: str) -> None:
    case = json.loads(json.dumps(CASES[name]()))
    assert is_shaped([case], ANSWERS["incidents"])
    assert is_shaped(case, INCIDENT)
    assert is_shaped(case, OF_RUN) or case["trigger"] == "idle"


def a_run() -> dict[str, Any]:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear()
    return run_status(world.node.runs["llama"], MonoNs(world.mono))


ILL = 2**64  # A whole number beyond what a governor of ours says.


@pytest.mark.parametrize("command", [("status",), ("status", "--json"), ("status", "llama")], ids=" ".join)
@pytest.mark.parametrize("key", ["tokens_wasted", "spend_usd"])
def test_a_run_that_cannot_be_shown_hides_no_other(serve: Serve, command: tuple[str, ...], key: str) -> None:
    run = a_run()
    evil = run | {"run": "evil\x1b[2J", key: ILL}
    path = serve({"governor": {"node": "n", "mode": "enforce", "policies": []}, "runs": [evil, run]})
    done = CliRunner().invoke(cli, [*command, "--control", path], standalone_mode=False)
    assert done.exception is None, done.output
    assert run["run"] in done.stdout
    [line] = [line for line in done.stderr.splitlines() if "evil" in line]
    assert "left out" in line
    assert "\x1b" not in line
    assert str(ILL) not in done.stdout


def a_trained_run() -> dict[str, Any]:
    """With all that is told of a run beside a plan."""
    world = World(make_node(cloud="none", budget=Budget(window_tokens=1_000)))
    world.tick()
    world.hear()
    for second in range(1, 8):
        world.at(second)
        world.play(a_step(second, at=MonoNs(world.mono), tokens=1_000, tokens_total=second * 1_000))
    world.tick()
    run = run_status(world.node.runs["llama"], MonoNs(world.mono))
    planned = {"expected_usd_per_mtok": 1.0, "expected_tokens_per_s": 1.0, "drift_frac": 0.1, "drift_all_in_frac": 0.1}
    wasted = {"burn_rate": 1.0, "wasted_usd": 5.0, "wasted_usd_by_cause": {"start_up": 5.0}}
    return run | planned | wasted


@pytest.mark.parametrize("value", ["x" * 9, float("inf"), None])
def test_no_figure_of_a_run_whatever_it_is_ends_the_table(serve: Serve, value: Any) -> None:
    run = a_trained_run()
    assert {"window", "usd_per_mtok_all_in", "usd_per_mtok_steady"} <= run.keys()
    of_window = [run | {"window": run["window"] | {key: value}} for key in run["window"]]
    without = [
        run | {"window": {name: one for name, one in run["window"].items() if name != key}} for key in run["window"]
    ]
    evil = [run | {key: value} for key in run if key != "run"] + of_window + without
    rows = [one | {"run": f"evil{number}"} for number, one in enumerate(evil)]
    path = serve({"governor": {"node": "n", "mode": "enforce", "policies": []}, "runs": [*rows, run]})
    done = CliRunner().invoke(cli, ["status", "--control", path], standalone_mode=False)
    assert done.exception is None, done.exception
    assert run["run"] in done.stdout


@pytest.mark.parametrize(
    "command", [("budget", "list"), ("budget", "list", "--json"), ("incident", "list")], ids=" ".join
)
def test_a_budget_and_an_incident_that_cannot_be_shown_hide_no_other(serve: Serve, command: tuple[str, ...]) -> None:
    good = {"scope": "day", "ceiling_usd": 30.0, "spend_usd": 1.0, "reserve_usd": 0.0, "source": "s", "live": False}
    budgets = [good | {"scope": "run:evil", "spend_usd": ILL}, good]
    listed = {key: CASES["nan_halt"]()[key] for key in ANSWERS["incidents"][0] if not key.endswith("?")}
    incidents = [listed | {"incident_id": "evil-1", "spend_usd_micros": ILL}, listed]
    status = {"governor": {"node": "n", "budgets": budgets}, "runs": []}
    path = serve(incidents if command[0] == "incident" else status)
    done = CliRunner().invoke(cli, [*command, "--control", path], standalone_mode=False)
    assert done.exception is None, done.output
    assert (listed["incident_id"] if command[0] == "incident" else "day") in done.stdout
    assert len([line for line in done.stderr.splitlines() if "evil" in line and "left out" in line]) == 1
    assert "evil" not in done.stdout


def test_a_row_that_does_not_say_what_it_is_of_is_no_governors() -> None:
    governor = {"node": "n"}
    assert sifted({"governor": governor, "runs": [a_run() | {"run": 3}]}, ANSWERS["status"]) is None
    assert sifted({"governor": {"node": 3}, "runs": []}, ANSWERS["status"]) is None


def test_every_part_that_a_shape_names_is_looked_at() -> None:
    shape = ANSWERS["status"]["runs"]
    run = a_run() | {
        "halt": {"stage": "ASKED", "reason": "r", "incident_id": "i"},
        "hold": {"left_s": 1.0, "reason": "r"},
        "end": {"text": "t"},
        "binding": {"scope": "day", "ceiling_usd": 1.0, "spend_usd": 0.5},
        "command_ceiling": {"scope": "run:x", "ceiling_usd": 1.0, "spend_usd": 0.5},
        "findings": [{"rule": "r", "reading": "quiet", "reason": "", "text": ""}],
    }
    assert is_shaped([run], shape)
    for key in shape[0]:
        assert not is_shaped([run | {key.removesuffix("?"): object()}], shape), key
        without = {name: value for name, value in run.items() if name != key}
        assert key.endswith("?") or not is_shaped([without], shape), key


@pytest.mark.parametrize("moment", [-1, 2**63, True, "1", 1.5, None])
def test_a_moment_that_no_clock_shows_is_none(moment: Any) -> None:
    case = CASES["nan_halt"]() | {"opened_wall_ns": moment}
    assert not is_shaped([case], ANSWERS["incidents"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, True, "3"])
def test_a_number_that_cannot_be_shown_is_none(number: Any) -> None:
    assert not is_shaped({"run": "e3", "owner_uid": 1, "spend_usd": number}, ANSWERS["forget"])
