"""Ranks' last collectives, joined: who is behind, who differs, and what a rank may send instead."""

from __future__ import annotations

import json

from governor.text.collectives import line, standings
from governor.wire.shown import Collective, read_collectives


def entered(
    number: int, operation: str = "gloo:all_reduce", group: str = "0/default_pg", p2p: bool = False
) -> Collective:
    return Collective(group, number, operation, "scheduled", "[[4]]", p2p, False)


def test_the_rank_that_has_not_entered_what_the_others_have_is_behind() -> None:
    (found,) = standings({0: [entered(412), entered(413)], 1: [entered(412)], 2: [entered(413)]})
    assert found.behind == (1,)
    assert found.front.number == 413
    assert all(word in line(found) for word in ("ranks 0, 2", "413", "rank 1", "412"))


def test_ranks_at_one_number_are_not_behind() -> None:
    (found,) = standings({0: [entered(7)], 1: [entered(7)]})
    assert found.behind == ()
    assert found.differing is None


def test_two_operations_under_one_number_differ_though_nobody_is_behind() -> None:
    (found,) = standings({0: [entered(7)], 1: [entered(7, "gloo:broadcast")]})
    assert found.differing is not None
    assert {one.operation for one in found.differing.values()} == {"gloo:all_reduce", "gloo:broadcast"}


def test_messages_of_pairs_make_nobody_late_and_a_group_with_a_late_rank_comes_first() -> None:
    ranks = {
        0: [entered(9, group="1/a"), entered(5, group="2/b"), entered(99, p2p=True)],
        1: [entered(9, group="1/a"), entered(4, group="2/b"), entered(3, p2p=True)],
    }
    assert [(one.group, one.behind) for one in standings(ranks)] == [("2/b", (1,)), ("1/a", ())]


def test_what_is_no_entry_is_left_out() -> None:
    good = json.dumps(["0/default_pg", 3, "nccl:all_reduce", "completed", "[[1]]", False, True])
    bad = ["", "[", "{}", "[1]", json.dumps(["g", -1, "o", "s", "z", False, False]), "[" * 5000]
    bad.append(json.dumps(["g", 2.5, "o", "s", "z", False, False]))
    assert read_collectives([*bad, good]) == (
        Collective("0/default_pg", 3, "nccl:all_reduce", "completed", "[[1]]", False, True),
    )
