"""What people say of halts: which mark counts, for whose runs, and until when."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.findings import Response
from governor.core.base.halt_marks import HaltMark, HaltMarks, Rearm, Said, Standing, entry_of, row_of
from governor.core.base.policy import AT_ONCE, Mode, Policy, PolicySet, Rule, WrongHalt
from governor.core.base.units import WallNs

NAN = ("p", "nan")


def mark(number: int, said: Said = Said.FALSE, **changes: Any) -> HaltMark:
    made = HaltMark(
        f"run.node.{number}", WallNs(number), "run", *NAN, "nonfinite", 1000, said, "", 0, WallNs(99), True, 2
    )
    return replace(made, **changes)


def rearm(uid: int = 0, *, for_all: bool = True) -> Rearm:
    return Rearm(*NAN, uid, WallNs(100), for_all)


def counted(*entries: HaltMark | Rearm) -> list[str]:
    return [one.incident_id for one in HaltMarks.of(entries).counted(NAN)]


def test_the_last_word_on_a_halt_counts_and_counts_once() -> None:
    assert counted(mark(1), mark(2), mark(1)) == ["run.node.2", "run.node.1"]
    assert counted(mark(1), mark(1, Said.RIGHT)) == []
    assert counted(mark(1), mark(1, Said.CLEARED)) == []
    assert counted(mark(1, Said.RIGHT), mark(1)) == ["run.node.1"]


def test_two_halts_of_one_id_are_two() -> None:
    assert len(counted(mark(1), mark(1, opened_wall=WallNs(7)))) == 2


def test_after_a_rearm_only_other_halts_count() -> None:
    assert counted(mark(1), mark(2), rearm()) == []
    assert counted(mark(1), rearm(), mark(1, note="once more"), mark(2)) == ["run.node.2"]
    assert len(HaltMarks.of([mark(1), rearm()]).marks) == 1, "it stays marked"


def test_a_users_word_counts_for_the_own_runs_and_a_users_rearm_likewise() -> None:
    own = mark(1, owner=1001, uid=1001, for_all=False)
    assert HaltMarks.of([own, mark(2)]).wrong() == {NAN: (WrongHalt("run.node.1", 1001), WrongHalt("run.node.2"))}
    assert counted(own, mark(2), rearm(1001, for_all=False)) == ["run.node.2"]
    assert counted(own, mark(2), rearm(1002, for_all=False)) == ["run.node.1", "run.node.2"]


def a_set(wrong: dict[tuple[str, str], tuple[WrongHalt, ...]], trigger: str = "nonfinite", **changes: Any) -> PolicySet:
    rule = Rule("nan", trigger, {}, AT_ONCE, Response.HALT, Mode.ENFORCE, "good")
    return PolicySet((Policy("p", rules=(rule,), **changes),), "digest", wrong)


def modes(policies: PolicySet, uid: int) -> list[Mode]:
    return [rule.mode for rule in policies.for_run({}, None, uid).rules]


def test_nobody_takes_a_rules_force_from_another_users_runs() -> None:
    policies = a_set({NAN: (WrongHalt("a", 1001), WrongHalt("b", 1001))})
    assert (modes(policies, 1001), modes(policies, 1002)) == ([Mode.OBSERVE], [Mode.ENFORCE])
    assert [(one.owner, one.incidents) for one in policies.fallen()] == [(1001, ("a", "b"))]
    both = a_set({NAN: (WrongHalt("a", 1001), WrongHalt("b"))})
    assert (modes(both, 1001), modes(both, 1002)) == ([Mode.OBSERVE], [Mode.ENFORCE])


def test_a_ceiling_and_a_gate_never_fall_back_nor_any_rule_with_zero() -> None:
    wrong = {NAN: (WrongHalt("a"), WrongHalt("b"))}
    assert modes(a_set(wrong), 0) == [Mode.OBSERVE]
    for trigger in ("budget", "gate"):
        assert (modes(a_set(wrong, trigger), 0), a_set(wrong, trigger).fallen()) == ([Mode.ENFORCE], [])
    assert (modes(a_set(wrong, wrong_max=0), 0), a_set(wrong, wrong_max=0).fallen()) == ([Mode.ENFORCE], [])
    assert modes(a_set(wrong, wrong_max=3), 0) == [Mode.ENFORCE]


UIDS = st.sampled_from([1001, 1002])
ENTRY = st.one_of(
    st.builds(
        lambda number, said, owner, for_all, limit: mark(
            number, said, owner=owner, uid=owner, for_all=for_all, wrong_max=limit
        ),
        st.integers(1, 4), st.sampled_from(Said), UIDS, st.booleans(), st.sampled_from([None, 0, 1, 5]),
    ),
    st.builds(lambda uid, for_all: rearm(uid, for_all=for_all), UIDS, st.booleans()),
)  # fmt: skip


@given(st.lists(ENTRY, max_size=8), st.integers(0, 3), st.sampled_from(["nonfinite", "budget", "gate"]))
def test_what_is_told_to_have_fallen_back_is_what_only_observes(
    entries: list[HaltMark | Rearm], wrong_max: int, trigger: str
) -> None:
    marks = HaltMarks.of(entries)
    standing = Standing.of(a_set({}, trigger, wrong_max=wrong_max), marks)
    told = {one.owner for one in standing.fallen(NAN)}
    in_force = a_set(dict(marks.wrong()), trigger, wrong_max=wrong_max)
    for uid in (1001, 1002, 1003):
        observes = modes(in_force, uid) == [Mode.OBSERVE]
        assert observes is (not told.isdisjoint({None, uid}))
        assert standing.wrong_max(NAN) or not observes


def test_of_a_policy_that_nobody_has_the_last_marked_halt_decides() -> None:
    marks = HaltMarks.of([mark(1, wrong_max=2), mark(2, wrong_max=5)])
    assert Standing.of(PolicySet((), ""), marks).fallen() == []
    marks.add(mark(1, wrong_max=2))
    assert [one.wrong_max for one in Standing.of(PolicySet((), ""), marks).fallen()] == [2]
    by_hand = HaltMarks.of([mark(number, trigger="operator", wrong_max=None) for number in (1, 2)])
    assert Standing.of(PolicySet((), ""), by_hand).fallen() == []
    assert Standing.of(a_set({}, wrong_max=3), marks).wrong_max(NAN) == 3
    assert Standing.of(replace(a_set({}), policies=(Policy("p"),)), marks).fallen() == [], "it has no such rule"


def test_a_row_is_read_back_as_it_was() -> None:
    for entry in (mark(1, note='\x1b[2J"\ud800'), mark(2, wrong_max=None, lost_usd_micros=7), rearm()):
        assert entry_of(json.loads(json.dumps(row_of(entry)))) == entry


@pytest.mark.parametrize(
    "change",
    [
        {"act": "other"}, {"said": "maybe"}, {"said": ["false"]}, {"note": "x" * 513}, {"uid": "0"}, {"uid": True},
        {"wall": 2**80}, {"run": None}, {"rule": 1}, {"for_all": 1}, {"owner": 1.0}, {"wrong_max": "2"},
        {"incident_id": "x" * 257}, {"act": []}, {"act": {}},
    ],
)  # fmt: skip
def test_a_row_of_somebody_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        entry_of({**row_of(mark(1)), **change})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
ROW = st.sampled_from([row_of(mark(1, lost_usd_micros=7)), row_of(rearm())])


@given(
    JSON
    | st.builds(lambda row, change: row | change, ROW, st.dictionaries(st.sampled_from(sorted(row_of(mark(1)))), JSON))
)
def test_a_row_is_ours_or_none_of_ours_whatever_it_has(row: object) -> None:
    try:
        entry = entry_of(row)
    except ValueError:
        return
    marks = HaltMarks.of([entry, entry])
    assert entry_of(json.loads(json.dumps(row_of(entry)))) == entry
    assert len(marks.wrong()) <= 1


def test_a_row_that_lacks_a_key_is_refused() -> None:
    row = row_of(mark(1))
    for key in row.keys() - {"wrong_max"}:
        with pytest.raises(ValueError):
            entry_of({name: value for name, value in row.items() if name != key})
