"""What the control socket refuses, and what it says then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from governor.app.requests import answer
from governor.core.engine.node import Node
from tests.unit.core.engine.test_step import a_step, make_node, play, training


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
