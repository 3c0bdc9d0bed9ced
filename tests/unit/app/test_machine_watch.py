"""Whose processes the host sampler looks at, and with whom they share its look."""

from __future__ import annotations

from governor.app.machine_watch import ranks_by_user
from governor.core.base.identity import ConnectionId
from governor.core.base.shares import UidRange
from governor.core.events.machine import UidRangesSeen
from tests.unit.core.engine.test_step import at, hello, make_node, peer, play


def test_runs_of_a_user_and_of_uids_in_its_range_share_one_part() -> None:
    node = make_node()
    play(node, UidRangesSeen(at(0), (UidRange(100_000, 65_536, 1001),)))
    for pid, (run, uid) in enumerate((("a", 1001), ("b", 100_007), ("c", 1002)), 500):
        play(node, hello(run=run, peer=peer(pid, uid), connection=ConnectionId(pid), world_size=1))
    told = [[[one.pid for one in ranks] for ranks in user] for user in ranks_by_user(node)]
    assert told == [[[500], [501]], [[502]]]
