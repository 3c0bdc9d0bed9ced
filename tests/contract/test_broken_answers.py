"""Real answers with one value broken, of every command: what is shown then is for people, and no fault of ours."""

from __future__ import annotations

import copy
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner, Result

from governor.cli.common import ExitCode, Failed
from governor.cli.main import cli
from governor.core.base.units import MonoNs
from governor.core.views.status import node_status, run_status
from governor.wire.control_client import TIMEOUT_S, ask
from tests.golden.report_cases import CASES
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import make_node

SAFETY_S = 20.0
ABSENT: Final = object()
ESCAPES: Final = "\x1b[2J\x1b]0;x\x07\x9b5m\r\nb"
BROKEN: Final = (ABSENT, None, "text", 3, [1], {"a": 1}, 1e308, 10**30, float("nan"), "\ud800")
SHOWN_ANYWAY: Final = (ExitCode.OK, ExitCode.FAILED, ExitCode.NO_GOVERNOR, ExitCode.UNKNOWN)


class Fake:
    """A governor that answers what it is told to."""

    def __init__(self, path: Path) -> None:
        self.path, self.answer = str(path), b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            conn, _ = self._listener.accept()
            with conn:
                if not conn.recv(1 << 16):
                    return
                conn.sendall(self.answer)

    def asked(self, answer: Any, *command: str) -> Result:
        self.answer = json.dumps(answer).encode() + b"\n"
        return CliRunner().invoke(cli, [*command, "--control", self.path], standalone_mode=False)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(self.path)
            last.shutdown(socket.SHUT_WR)
            self._thread.join(SAFETY_S)
        self._listener.close()


@pytest.fixture
def fake(short_tmp: Path) -> Iterator[Fake]:
    made = Fake(short_tmp / "c")
    yield made
    made.close()


def a_status() -> dict[str, Any]:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear()
    run = run_status(world.node.runs["llama"], MonoNs(world.mono)) | {
        "halt": {"stage": "ASKED", "reason": "r", "incident_id": "i"}, "hold": {"left_s": 1.0, "reason": "r"},
        "binding": {"scope": "day", "ceiling_usd": 1.0, "spend_usd": 0.5}, "hours_left": [1.0, 2.0, 3.0],
        "findings": [{"rule": "r", "reading": "firing", "reason": "", "text": "t"}], "cost_left_usd": [1.0, 2.0, 3.0],
        "saves": {"save_s": 1.0, "interval_s": 9.0, "mtbf_s": 99.0, "best_interval_s": 8.0, "saved_usd_per_hour": 1.0},
    }  # fmt: skip
    budget = {"scope": "day", "ceiling_usd": 9.0, "spend_usd": 1.0, "reserve_usd": 1.0, "reached_in_s": 5.0,
              "source": "live", "live": True, "set_at_s": 1.0, "reason": "r"}  # fmt: skip
    governor = {
        "node": "n", "pid": 1, "run": None, "mode": "enforce", "policies": ["p"], "price_usd_per_hour": 1.0,
        "price_source": "s", "lines": [{"usd_per_hour": 1.0}], "budgets": [budget], "last_reload_ok": False,
        "reload_error": "e", "cloud": {"will": "w", "stays_billed": ["b"], "problems": ["p"]},
        "alerts": {"problems": ["p"]}, "selftest": [{"ok": False, "line": "l"}], "journal_errors_total": 1,
        "price": {"remarks": [{"text": "t", "alarm": True}]}, "refused": [{"pid": 1, "uid": 1, "reason": "r"}],
    }  # fmt: skip
    node = node_status(world.node, MonoNs(world.mono)) | {"stop": {"stage": "ASKED", "incident_id": "i"}}
    gpus = [{"pid": 1, "gpu": "g", "usd_per_hour": 1.0}]
    return {"governor": governor, "runs": [run], "node": node, "unwatched_gpu_processes": gpus}


def an_incident() -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(json.dumps([CASES["nan_halt"]()]))
    return told


def an_act() -> dict[str, Any]:
    return {
        "run": "e3", "incident_id": "i", "owner_uid": 1, "left_s": 1.0, "before_usd": 1.0, "ceiling_usd": 2.0,
        "spend_usd": 1.0, "reserve_usd": 1.0, "source": "live", "runs": ["e3"], "observe": True, "notes": ["n"],
    }  # fmt: skip


COMMANDS: Final[dict[tuple[str, ...], Callable[[], Any]]] = {
    ("status",): a_status,
    ("status", "llama", "--json"): a_status,
    ("budget", "list"): a_status,
    ("incident", "list"): an_incident,
    ("incident", "show", "last"): an_incident,
    ("incident", "show", "last", "--json"): an_incident,
    ("incident", "show", "last", "--markdown"): an_incident,
    ("halt", "e3", "--reason", "r"): an_act,
    ("hold", "e3", "1h", "--reason", "r"): an_act,
    ("forget", "e3"): an_act,
    ("budget", "set", "run:e3", "30", "--reason", "r"): an_act,
    ("budget", "clear", "run:e3", "--reason", "r"): an_act,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document but itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def broken(document: Any, path: tuple[Any, ...], value: object) -> Any:
    made = copy.deepcopy(document)
    at = made
    for key in path[:-1]:
        at = at[key]
    if value is ABSENT:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return made


def is_for_people(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_one_broken_value_is_one_line_at_most(fake: Fake, command: tuple[str, ...]) -> None:
    document = COMMANDS[command]()
    whole = fake.asked({"ok": True, "data": document}, *command)
    assert whole.exception is None, whole.exception
    for number, path in enumerate(places(document)):
        for value in (*BROKEN[number % 3 :: 3], ESCAPES):  # All kinds at all places would take three times as long.
            done = fake.asked({"ok": True, "data": broken(document, path, value)}, *command)
            failed = done.exception
            assert failed is None or isinstance(failed, Failed), (path, value, failed)
            assert failed is None or failed.code in SHOWN_ANYWAY, (path, value)
            told = done.output + (failed.message if failed is not None else "")
            assert failed is None or "\n" not in failed.message, (path, value)
            assert is_for_people(told), (path, value, told)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("error", [ESCAPES, "\ud800", None, {"a": ESCAPES}, 10**30])
def test_a_refusal_is_one_printable_line(fake: Fake, command: tuple[str, ...], error: Any) -> None:
    done = fake.asked({"ok": False, "error": error, "code": ["x"]}, *command)
    assert isinstance(done.exception, click.ClickException), done.exception
    assert done.exception.message.isprintable(), done.exception.message


@pytest.mark.parametrize("command", [one for one, make in COMMANDS.items() if make is an_act], ids=" ".join)
def test_a_governor_that_takes_a_request_and_ends_has_perhaps_done_it(fake: Fake, command: tuple[str, ...]) -> None:
    fake.answer = b""
    done = CliRunner().invoke(cli, [*command, "--control", fake.path], standalone_mode=False)
    assert isinstance(done.exception, Failed), done.exception
    assert done.exception.code is ExitCode.UNSURE
    shown = "costgov budget list" if command[0] == "budget" else f"costgov status {command[1]}"
    assert f"may have been done, or still be; look: `{shown}`" in done.exception.message


def test_a_busy_governor_may_have_taken_what_it_does_not_answer(short_tmp: Path) -> None:
    """A halt that began was reported as "did not answer", with the exit code of no governor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
        busy.bind(str(short_tmp / "b"))
        busy.listen()
        halted = ask(str(short_tmp / "b"), {"cmd": "halt", "run": "e3"}, 0.05)
        seen = ask(str(short_tmp / "b"), {"cmd": "status"}, 0.05)
    assert (halted.code, seen.code) == ("unsure", "silent")
    assert "did not answer within 0.05 s: it may have been done" in halted.error
    assert TIMEOUT_S > 1
