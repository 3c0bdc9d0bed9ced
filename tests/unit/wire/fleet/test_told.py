"""What is told comes back, in one datagram whatever the names are; what is not as it should be does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.units import NS_PER_MS, NS_PER_S, DurationNs
from governor.core.events.peers import (
    BEAT_NS_MAX,
    NODE_BYTES_MAX,
    NODES_MAX,
    RUNS_TOLD_MAX,
    NodeTold,
    ToldHalt,
    ToldRun,
)
from governor.wire.fleet.told import (
    BODY_BYTES_MAX,
    INCIDENT_BYTES_MAX,
    JOB_BYTES_MAX,
    RULE_BYTES_MAX,
    body,
    parts,
    read,
)

HALT = ToldHalt(
    "llama.node-a.1",
    "node-a",
    "nan",
    "nonfinite",
    "loss_nan",
    "loss is NaN at step 7",
    "suspect",
    "SAVING",
    False,
    None,
)
RUN = ToldRun(
    "llama", "job-1", 1000, True, 8, has_first=True, step=7, spend_usd_micros=5_000_000,
    rate_usd_micros_per_hour=22_000_000, halt=HALT, left=(("node-c", 40), ("node-d", 50)),
)  # fmt: skip
NODE = NodeTold("node-a", "boot-1", "aws", "i-0abc", "us-east-1", (RUN,))


def document(**changed: Any) -> bytes:
    return json.dumps({**json.loads(body(NODE)), **changed}).encode()


def of_run(**changed: Any) -> bytes:
    return document(run={**json.loads(body(NODE))["run"], **changed})


def of_halt(**changed: Any) -> bytes:
    return of_run(halt={**json.loads(body(NODE))["run"]["halt"], **changed})


@pytest.mark.parametrize(
    "node",
    [
        NODE,
        replace(NODE, runs=()),
        replace(NODE, beat_ns=DurationNs(1_875 * NS_PER_MS)),
        replace(NODE, instance_id=None, region=None, runs=(ToldRun("b", "", 0, False, 0),)),
    ],
)
def test_what_is_told_comes_back(node: NodeTold) -> None:
    if node.runs and not node.runs[0].job:
        node = replace(node, runs=(replace(node.runs[0], job="j"),))
    found = read(body(node))
    assert isinstance(found, NodeTold)
    if found.runs:
        run = node.runs[0]
        node = replace(node, runs=(replace(run, left=tuple(sorted(run.left, key=lambda one: -one[1]))),))
    assert found == node


def test_each_run_has_a_part_and_halts_go_first() -> None:
    calm = replace(RUN, run="calm", halt=None)
    found = parts(replace(NODE, runs=(calm, RUN)))
    assert [[run.run for run in one.runs] for one in found] == [["llama"], ["calm"]]
    assert parts(replace(NODE, runs=())) == (replace(NODE, runs=()),)


def test_of_too_many_runs_those_that_halt_are_told() -> None:
    many = tuple(replace(RUN, run=f"calm-{number}", halt=None) for number in range(RUNS_TOLD_MAX))
    found = parts(replace(NODE, runs=(*many, RUN)))
    assert len(found) == RUNS_TOLD_MAX
    assert found[0].runs == (RUN,)


def test_a_halt_fits_whatever_the_names_are() -> None:
    """Quotes take two bytes in JSON, so these are the longest names that there are."""
    halt = ToldHalt(
        '"' * INCIDENT_BYTES_MAX, '"' * NODE_BYTES_MAX, '"' * RULE_BYTES_MAX, '"' * 64, '"' * 900, "\N{SNOWMAN}" * 900,
        "good", '"' * 64,
    )  # fmt: skip
    left = tuple((f"node-{number}".ljust(NODE_BYTES_MAX, "x"), number) for number in range(NODES_MAX))
    run = ToldRun("r" * 128, '"' * JOB_BYTES_MAX, 1, True, 8, halt=halt, left=left)
    node = NodeTold('"' * NODE_BYTES_MAX, '"' * 64, '"' * 64, '"' * 256, '"' * 64, (run,))
    data = body(node)
    found = read(data)
    assert len(data) <= BODY_BYTES_MAX
    assert isinstance(found, NodeTold)
    assert found.runs[0].halt is not None
    assert found.runs[0].halt.incident_id == halt.incident_id
    assert found.runs[0].halt.node == halt.node


def test_of_nodes_that_have_left_the_largest_amounts_are_told() -> None:
    left = tuple((f"node-{number}", number) for number in range(1_000, 1_000 + NODES_MAX))
    found = read(body(replace(NODE, runs=(replace(RUN, left=left),))))
    assert isinstance(found, NodeTold)
    told = found.runs[0].left
    assert 100 < len(told) < NODES_MAX
    assert [micros for _, micros in told] == list(range(999 + NODES_MAX, 999 + NODES_MAX - len(told), -1))


def test_a_text_that_could_steer_a_terminal_is_told_without_that() -> None:
    found = read(body(replace(NODE, runs=(replace(RUN, halt=replace(HALT, text="a\x1b[2J\nb\ud800")),))))
    assert isinstance(found, NodeTold)
    assert found.runs[0].halt is not None
    assert found.runs[0].halt.text == "a\ufffd[2J\ufffdb\ufffd"


@pytest.mark.parametrize(
    "node",
    [
        replace(NODE, node="a" * (NODE_BYTES_MAX + 1), runs=()),
        replace(NODE, node="a\nb"),
        replace(NODE, runs=(replace(RUN, run="no name"),)),
        replace(NODE, runs=(replace(RUN, halt=replace(HALT, incident_id="i" * 641)),)),
    ],
)
def test_what_nobody_would_take_is_not_sent(node: NodeTold) -> None:
    with pytest.raises(ValueError, match="is no"):
        body(node)


def test_fields_of_a_newer_governor_are_ignored() -> None:
    plain = read(body(NODE))
    assert read(document(colour="red", run={**json.loads(body(NODE))["run"], "mood": [1]})) == plain


def test_a_checkpoint_that_only_a_newer_governor_knows_harms_none() -> None:
    found = read(of_halt(checkpoint="mirrored"))
    assert isinstance(found, NodeTold)
    assert found.runs[0].halt is not None
    assert found.runs[0].halt.checkpoint == "suspect"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"{} {}", b"\xff", b"[" * 5_000, b'{"node":"a"}', b"9" * 5_000,
        document(node=""), document(node=7), document(node="a\x1b"), document(node="\ud800"),
        document(node="n" * 254), document(boot_id=None), document(cloud=[]), document(region=1), document(run=[]),
        of_run(run="-x"), of_run(run=None), of_run(run="a" * 129), of_run(job=""), of_run(uid=-1), of_run(uid=2**32),
        of_run(uid=True), of_run(ranks=1.0), of_run(ranks=2**30), of_run(is_alive=1), of_run(has_first=None),
        of_run(step=-1), of_run(step=2**60), of_run(spend_usd_micros=-1), of_run(spend_usd_micros=2**53 + 1),
        of_run(rate_usd_micros_per_hour="1"), of_run(halt=[]), of_run(left={}), of_run(left=[1]),
        of_run(left=[["a"]]), of_run(left=[["a", 1, 1]]), of_run(left=[["a", -1]]), of_run(left=[["", 1]]),
        of_run(left=[["a", 1]] * (NODES_MAX + 1)), of_halt(incident_id=""), of_halt(incident_id="a\nb"),
        of_halt(node=None), of_halt(rule=""), of_halt(text=None), of_halt(stage="x" * 65), of_halt(gone=None),
        of_halt(stopped=0), of_halt(verified="yes"), of_halt(checkpoint=1),
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_a_fault(data: bytes) -> None:
    found = read(data)
    assert isinstance(found, str)
    assert found.isprintable()


def test_a_beat_is_never_longer_than_our_own_longest() -> None:
    told = [read(document(beat_ms=ms)) for ms in (0, 999, 2_000, 10**15)]
    assert [one.beat_ns for one in told if isinstance(one, NodeTold)] == [NS_PER_S, NS_PER_S, 2 * NS_PER_S, BEAT_NS_MAX]
    assert all(isinstance(read(document(beat_ms=bad)), str) for bad in (-1, 1.5, "1000", True, None, 10**30))
