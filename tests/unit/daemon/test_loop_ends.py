"""Runs that end at once cost one commit, and none of them is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from governor.core.base.units import NS_PER_MS
from governor.core.events.effects import Alarm, PersistRuns, Record, one_commit
from tests.contract.fakes import FakeJournal
from tests.fuzz.rig import Rig, default_policies
from trainer_shim import wire

RUNS_MAX_OF_A_UID = 8


class Counted(FakeJournal):
    commits = 0

    def save_runs(self, runs: Mapping[str, Mapping[str, Any]], *arguments: Any, **options: Any) -> bool:
        self.commits += 1
        return super().save_runs(runs, *arguments, **options)


def hello(run: str) -> bytes:
    frame = {**wire.head("hello", 0, 1), "seq": 1, "run": run, "attempt": "a", "local_rank": 0, "world_size": 1}
    return json.dumps({**frame, "signal": 0}).encode()


def test_eight_runs_that_end_between_two_ticks_are_one_commit(tmp_path: Path) -> None:
    rig = Rig(tmp_path, default_policies())
    rig.daemon.performer.journal = journal = Counted()
    rig.go_on()
    names = [f"run-{number}" for number in range(RUNS_MAX_OF_A_UID)]
    for name in names:
        peer = rig.peer(Random(1))
        trainer = rig.inbox.connect(peer)
        trainer.send(hello(name))
        rig.go_on()
        trainer.hang_up()
        rig.processes.end(peer.process.pid)
    rig.go_on()
    assert all(rig.node.runs[name].run.alive for name in names), "nobody has looked yet"
    before = journal.commits
    rig.clock.advance(300 * NS_PER_MS)
    rig.daemon._notice_exits(rig.clock.mono())
    assert journal.commits == before + 1
    assert {name: journal.runs()[name]["alive"] for name in names} == dict.fromkeys(names, False)
    assert [row.run for row in journal.rows(kind="ended")] == names
    rig.end()


def test_what_is_joined_stands_first_and_has_the_newest_of_each_run() -> None:
    first, record, alarm = PersistRuns({"a": {"n": 1}, "b": {"n": 1}}), Record("ended", "a", None), Alarm("x", "a", "x")
    last = PersistRuns({"b": {"n": 2}}, records=(Record("window", "b", None),), durable=True)
    joined = PersistRuns({"a": {"n": 1}, "b": {"n": 2}}, (), (Record("window", "b", None),), durable=True)
    assert one_commit([record, first, alarm, last, alarm]) == [record, joined, alarm, alarm]
    assert one_commit([record, alarm]) == [record, alarm]
