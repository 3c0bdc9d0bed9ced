"""What the engine hands out stays as it was: observers keep it, and see by comparing what has changed since."""

from __future__ import annotations

import io
from collections import deque
from typing import Any

from governor.cli.run.console import Console
from governor.core.base.identity import ProcessId
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import node_snapshot, run_snapshot
from governor.core.events.checkpoints import CheckpointLook, CheckpointRead, NamedCheckpoint
from governor.core.events.effects import PersistIncident
from governor.core.events.inputs import ProcessesSeen
from governor.core.halt.incident import Incident
from governor.core.views.status import budgets_status, lines_status, node_status, run_status
from tests.unit.core.engine.test_step import a_step, ack, at, hello, make_node, play, rule, training

CHANGING = (dict, list, set, bytearray, deque)


def halted() -> tuple[Node, Incident, list[PersistIncident]]:
    """A short halt: it was over before its checkpoint had been read. And what was written of it."""
    node = make_node(rule(checkpoint="good"), cloud="none")
    training(node)
    node.runs["llama"].run.name_last_good(NamedCheckpoint(20, "/ck/cg_20"), at(20))
    record = {"path": "/ck/cg_33", "manifest": "/ck/cg_33/manifest.json", "files": 4, "kind": "suspect"}
    effects = play(
        node, a_step(31, 1, loss=float("inf")), ack("received", 31.1), ack("saved", 31.5, step=33, checkpoint=record)
    )
    incident = node.runs["llama"].incident
    assert incident is not None
    incident.add_targets([{"pid": 7, "start_ticks": 7, "boot_id": "boot-1", "role": "child", "argv0": "x"}])
    seen = ProcessesSeen(at(32), incident.incident_id, (), (ProcessId(900, 900, "boot-1"),))
    effects += play(node, seen, *[ProcessesSeen(at(33), incident.incident_id, ())] * 2)
    assert incident.is_closed
    return node, incident, [effect for effect in effects if isinstance(effect, PersistIncident)]


def reached(value: Any, name: str, found: dict[int, tuple[str, Any]]) -> dict[int, tuple[str, Any]]:
    """Everything that can be reached from a value, by identity, with the way to it."""
    if value is None or isinstance(value, (str, int, float, bytes, type)) or id(value) in found:
        return found
    found[id(value)] = name, value
    if hasattr(value, "items"):
        for key, one in value.items():
            reached(one, f"{name}.{key}", found)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for one in value:
            reached(one, f"{name}[]", found)
    else:
        slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        for slot in (*slots, *getattr(value, "__dict__", {})):
            reached(getattr(value, slot, None), f"{name}.{slot}", found)
    return found


def test_nothing_that_is_handed_out_can_change_afterwards() -> None:
    node, incident, _ = halted()
    play(node, hello(when=40, run="other", last_good=NamedCheckpoint(3, "/ck/3")), a_step(1, when=41, run="other"))
    handed_out = {
        "incident": incident_snapshot(node, incident),
        "runs": [run_snapshot(node, managed, at(42)) for managed in node.runs.values()],
        "node": node_snapshot(node),
        "status": [run_status(managed, at(42)) for managed in node.runs.values()],
        "status of the node": [node_status(node, at(42)), budgets_status(node, at(42)), lines_status(node)],
    }
    ours = reached(node, "node", {})
    assert any(isinstance(value, CHANGING) and ".incident.checkpoint" in name for name, value in ours.values())
    shared = [
        f"{name} is {ours[key][0]}"
        for key, (name, value) in reached(handed_out, "", {}).items()
        if isinstance(value, CHANGING) and key in ours
    ]
    assert shared == []


def test_the_terminal_tells_what_the_governor_has_read_of_a_checkpoint_after_the_end() -> None:
    """Nothing else changes with it: the last good one is another."""
    node, incident, written = halted()
    stream = io.StringIO()
    console = Console(stream=stream)
    for effect in written:
        console.incident(effect.snapshot)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "verified by trainer" in line]
    (read,) = (
        effect
        for effect in play(node, CheckpointRead(at(34), incident.incident_id, CheckpointLook(True, 4, 4, "as found")))
        if isinstance(effect, PersistIncident)
    )
    console.incident(read.snapshot)
    news = stream.getvalue().splitlines()[len(lines) :]
    assert [line for line in news if "verified by governor" in line], news
