"""What a hello says of its launch on all nodes: decoded within bounds, kept in recordings, shown while it is so."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.base.units import MonoNs
from governor.core.engine.node import Node
from governor.core.events.inputs import Hello
from governor.core.views.status import run_status
from tests.unit.core.engine.test_step import at, hello, make_node, play
from tests.unit.wire.test_frames import decoded
from tests.unit.wire.test_frames import hello as said
from tests.unit.wire.test_recording import hello as recorded
from tests.unit.wire.test_recording import ranks
from tests.unit.wire.test_recording import said as line

JOB = "6c297e5ca778e819bc4b94b87e2c9fee"


def read(**fields: Any) -> tuple[str | None, str | None]:
    event = decoded(said(**fields), run=None)
    assert isinstance(event, Hello), "the rank is watched whatever these say"
    return event.job, event.master


def shown(node: Node) -> tuple[str | None, str | None]:
    status = run_status(node.runs["llama"], MonoNs(at(9)))
    return status["job"], status["master"]


def test_an_older_shim_says_neither() -> None:
    assert read() == (None, None)


def test_both_are_read() -> None:
    assert read(job=JOB, master="node1.cluster") == (JOB, "node1.cluster")


@pytest.mark.parametrize("job", ["", "a b", "a\nb", "\x1b[2J", "x" * 129, "ü", "a/b"])
def test_a_job_that_is_no_name_is_left_out(job: str) -> None:
    assert read(job=job, master="10.77.0.1") == (None, "10.77.0.1")


@pytest.mark.parametrize("master", ["127.0.0.1", "0.0.0.0", "224.0.0.1", "a b", "-x", "\x1b[2J", "x" * 300])
def test_where_nobody_else_is_found_is_left_out(master: str) -> None:
    assert read(job=JOB, master=master) == (JOB, None)


def test_a_recording_keeps_both_and_an_older_one_has_neither() -> None:
    for fields in ({"job": JOB, "master": "node1"}, {}):
        _, events = ranks(line(recorded(**fields), pid=40))
        (event,) = (one for one in events if isinstance(one, Hello))
        assert (event.job, event.master) == (fields.get("job"), fields.get("master"))


def test_what_comes_with_a_later_hello_stays_until_the_next_attempt() -> None:
    node = make_node()
    play(node, hello(0, 0, master="node1"), hello(1, 0))
    assert shown(node) == (None, "node1")
    play(node, hello(0, 1, job=JOB, master="node1"), hello(1, 1))
    assert shown(node) == (JOB, "node1"), "another rank may not know it yet"
    play(node, hello(0, 2, attempt="a1.1"))
    assert shown(node) == (None, None), "a new start has another one"
