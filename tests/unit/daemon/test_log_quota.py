"""One user's lines are bounded by kind, counted, and take no room from anybody else's."""

from __future__ import annotations

from governor.core.base.units import NS_PER_S, MonoNs
from governor.daemon.log_quota import ALL_AT_ONCE, KEYS_MAX, LINE_PERIOD_NS, LINES_AT_ONCE, LogQuota, more_like_it


def test_what_is_beyond_a_users_lines_is_counted_and_said_with_the_next() -> None:
    quota, at = LogQuota(), MonoNs(NS_PER_S)
    assert [quota.take(1, "a", at) for _ in range(LINES_AT_ONCE)] == [0] * LINES_AT_ONCE
    assert [quota.take(1, "a", at) for _ in range(5)] == [None] * 5
    assert quota.take(1, "b", at) == quota.take(2, "a", at) == 0
    assert quota.take(1, "a", MonoNs(at + LINE_PERIOD_NS)) == 5
    assert more_like_it(5) == {"more_like_this": 5}
    assert more_like_it(0) == {}


def test_what_was_left_out_is_told_once_when_it_is_quiet() -> None:
    quota, at = LogQuota(), MonoNs(NS_PER_S)
    for _ in range(LINES_AT_ONCE + 3):
        quota.take(7, "bad_frame", at)
    assert list(quota.left_out(at)) == []
    later = MonoNs(at + 60 * NS_PER_S)
    assert list(quota.left_out(later)) == [(7, "bad_frame", 3)]
    assert list(quota.left_out(later)) == []


def test_any_number_of_uids_leaves_room_for_a_halts_lines() -> None:
    quota = LogQuota()
    told = [quota.take(uid, "hello_refused", MonoNs(1)) for uid in range(2 * KEYS_MAX) for _ in range(2)]
    assert told.count(0) == ALL_AT_ONCE
    assert len(quota._by_key) == KEYS_MAX
