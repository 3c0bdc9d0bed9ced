"""Every field of every request with every kind of JSON value; and a fault of one request ends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from governor.adapters.control_socket import Request
from governor.app import requests
from governor.app.request_fields import Refused, is_whole, whole
from governor.daemon.incident_queries import IncidentQueries
from governor.ports import ControlRequest
from tests.fuzz.frames import ANY_JSON, CODES, REQUESTS, frame
from tests.fuzz.rig import Rig, default_policies


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, default_policies())
    for place, run in enumerate(("llama", "qwen")):
        trainer = rig.inbox.connect(rig.peer(Random(1)))
        for kind in ("hello", "step"):
            one = frame(Random(1), kind, 1, 1) | ({"run": run, "rank": place} if kind == "hello" else {"loss": 2.0})
            trainer.send(json.dumps(one).encode())
        rig.go_on()
    yield rig
    rig.end()


def ask(rig: Rig, body: Any, uid: int = 0) -> Any:
    return requests.answer(rig.daemon, Request(uid, 1, 0, body))


@pytest.mark.parametrize("place", range(len(REQUESTS)))
def test_any_value_in_any_field_is_answered(rig: Rig, place: int) -> None:
    request = REQUESTS[place]
    for name in [*request, "look", "rank", "steps", "what", "brief"]:
        for value in ANY_JSON:
            if name != "cmd":
                told = ask(rig, {**request, name: value})
                assert told is None or told["ok"] or told["code"] in CODES, (name, value, told)
    rig.settle()


@pytest.mark.parametrize("rank", [[0], {}, True, 0.0, "0", -1, 2**70])
def test_a_rank_is_a_number(rig: Rig, rank: Any) -> None:
    told = ask(rig, {"cmd": "evidence", "run": "llama", "what": "collectives", "rank": rank})
    assert (told["ok"], told["code"]) == (False, "bad_request"), told


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1]])
def test_only_a_whole_number_is_one(value: Any) -> None:
    """To Python True is a 1, and would be rank 1."""
    with pytest.raises(Refused):
        whole({"rank": value}, "rank", 0, 9, "a rank is a number")
    assert not is_whole(value, 0, 9)


class Asked:
    """A control socket with these requests, and what was answered."""

    def __init__(self, *bodies: Any) -> None:
        self.open = [Request(0, 1, conn, body) for conn, body in enumerate(bodies)]
        self.answers: dict[int, Any] = {}

    def poll(self) -> list[Request]:
        found, self.open = self.open, []
        return found

    def reply(self, conn: int, response: Any) -> None:
        json.dumps(response)
        self.answers[conn] = response


def test_a_fault_of_one_request_is_answered_and_counted_and_the_next_is_served(rig: Rig) -> None:
    def answer(_daemon: Any, request: ControlRequest) -> dict[str, Any]:
        cmd = request.body["cmd"]
        return {"ok": True, "data": requests._COMMANDS[cmd] if cmd == "breaks" else object() if cmd == "no json" else 1}

    control: Any = Asked({"cmd": "breaks"}, {"cmd": "no json"}, {"cmd": "ping"})
    rig.daemon.control, rig.daemon.answer = control, answer
    rig.daemon._drain_control()
    assert [control.answers[conn].get("code") for conn in (0, 1, 2)] == ["internal_error", "internal_error", None]
    assert rig.daemon.request_faults.total == 2


def test_a_fault_while_an_event_is_applied_is_not_hidden(rig: Rig) -> None:
    """Half of it may be done: the governor starts anew and goes on from the journal."""

    def answer(daemon: Any, _request: ControlRequest) -> dict[str, Any]:
        no_event: Any = object()
        daemon.apply(no_event)
        return {}

    control: Any = Asked({"cmd": "breaks"})
    rig.daemon.control, rig.daemon.answer = control, answer
    with pytest.raises((KeyError, TypeError, AttributeError)):
        rig.daemon._drain_control()
    assert control.answers == {}


def test_a_fault_off_the_loop_is_answered_too() -> None:
    lines: list[bytes] = []
    queries = IncidentQueries()
    queries._work(lambda: json.dumps({1}).encode(), lines.append)
    assert json.loads(lines[0])["code"] == "internal_error"
    assert queries.faults.total == 1


def test_a_halt_without_a_save_says_so_and_one_with_a_save_says_how_long_it_waits(rig: Rig) -> None:
    request = {"cmd": "halt", "run": "qwen", "reason": "it hangs"}
    assert ask(rig, {**request, "checkpoint": "good"})["code"] == "bad_request"
    waits = ask(rig, request)["data"]
    assert waits["wait_s"] > 0 or waits["checkpoint"] == "none"
    told = ask(rig, {**request, "run": "llama", "checkpoint": "none"})["data"]
    assert (told["checkpoint"], told["wait_s"]) == ("none", 0.0)
