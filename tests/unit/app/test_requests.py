"""What the control socket refuses, and what it says then."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from governor.app import requests
from governor.app.requests import answer
from governor.core.engine.node import Node
from governor.wire import control_client, peers
from tests.contract.fakes import FakeClock
from tests.unit.core.engine.test_step import a_step, make_node, play, training
from tests.unit.wire.test_peers import in_user_namespace


def refused(node: Node, **body: str) -> str:
    daemon: Any = SimpleNamespace(node=node, control_is_private=True)
    request: Any = SimpleNamespace(uid=0, body=body)
    told = answer(daemon, request)
    assert told is not None
    assert told["ok"] is False
    return str(told["error"])


def test_a_name_is_not_released_in_a_halt_and_who_asks_is_not_sent_to_halt_it_again() -> None:
    node = make_node()
    training(node)
    assert "costgov halt llama" in refused(node, cmd="forget", run="llama")
    play(node, a_step(31, 1, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    told = refused(node, cmd="forget", run="llama")
    assert "costgov halt" not in told
    assert f"costgov incident show {incident.incident_id}" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("cmd", ["reload", "halt", "forget"])
def test_our_own_number_is_not_believed_where_others_have_it_too(tmp_path: Path, cmd: str, is_mapped: bool) -> None:
    """Nobody's, in a user namespace. Elsewhere it is our own user's."""
    node = make_node()
    training(node)
    daemon: Any = SimpleNamespace(
        node=node, control_is_private=False, performer=SimpleNamespace(clock=FakeClock()), apply=lambda _event: None,
        health=SimpleNamespace(reload_error="is allowed"), reload=lambda: False,
    )  # fmt: skip

    def ask(_path: str, uid: int) -> str:
        request: Any = SimpleNamespace(uid=uid, body={"cmd": cmd, "run": "llama", "reason": "enough"})
        return str(answer(daemon, request))

    assert "'denied'" in in_user_namespace(ask, str(tmp_path), peers.overflow_uid(), is_mapped=is_mapped)
    assert "'denied'" not in ask("", os.geteuid())


def test_every_request_that_acts_says_by_what_it_is_seen_to_have_acted() -> None:
    """Else who asks is told of a governor that does not answer in time that nothing was done, and asks again."""
    reads = {"ping", "status", "incidents", "halt_marks", "evidence"}
    asked_again = {"reload"}  # It does the same twice.
    assert set(requests._COMMANDS) - reads - asked_again == set(control_client._SHOWN_BY)
