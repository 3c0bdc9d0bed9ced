"""Looks at ranks: whose are kept, how long, and how often a rank is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.events.shown import RankShowed
from governor.daemon import rank_looks
from governor.daemon.rank_looks import Look, RankLooks


def a_run(name: str, uid: int, ranks: int = 1) -> Any:
    of = {
        rank: SimpleNamespace(rank=rank, connection=ConnectionId(uid * 100 + rank), capabilities={"show"})
        for rank in range(ranks)
    }
    return SimpleNamespace(run=SimpleNamespace(run=name, uid=uid, ranks=of))


def asked(of: RankLooks, run: Any, what: str, at: int) -> Look:
    look = of.begin(run, what, MonoNs(at), 3 if what == "profile" else 0)
    assert look is not None
    return look


def showed(look: Look, at: int, *entries: str, rank: int = 0) -> RankShowed:
    (connection,) = [one for one, of in look.asked.items() if of == rank]
    return RankShowed(MonoNs(at), connection, look.run, look.look_id, look.what, entries)


def test_a_look_that_is_waited_for_outlives_looks_of_others_and_of_its_run() -> None:
    looks, mine = RankLooks(lambda *_: True), a_run("mine", 1)
    waited = asked(looks, mine, "profile", NS_PER_S)
    for second in range(2, 60):
        at = second * NS_PER_S
        for number in range(4):
            asked(looks, a_run(f"other-{second}-{number}", 2), "profile", at)
        more = asked(looks, mine, "profile", at)
        looks.take(showed(more, at))
        assert looks.of(waited.look_id, MonoNs(at + 1)) is waited
    assert len(looks._looks) <= rank_looks.LOOKS_PER_RUN_MAX + rank_looks.LOOKS_PER_UID_MAX


def test_a_look_that_nobody_reads_is_forgotten() -> None:
    looks = RankLooks(lambda *_: True)
    look = asked(looks, a_run("mine", 1), "profile", NS_PER_S)
    looks.take(showed(look, 2 * NS_PER_S, "x"))
    looks.forget(MonoNs(70 * NS_PER_S))
    assert looks._looks == {}


def test_what_ranks_show_is_bounded_in_bytes() -> None:
    """One character outside the plane makes four bytes of each."""
    looks, run, most = RankLooks(lambda *_: True), a_run("mine", 1, 64), 0
    for second in range(1, 10):
        look = asked(looks, run, "collectives", second * 20 * NS_PER_S)
        for rank in range(64):
            looks.take(showed(look, second * 20 * NS_PER_S, *("\U0001f600" + "x" * 1000 for _ in range(63)), rank=rank))
        most = max(most, sum(one.bytes for one in looks._looks.values()))
        assert (look.answers[63].problem or "").endswith("8 MB")
        assert look.answers[0].entries
    assert 1 << 20 < most <= rank_looks.BYTES_PER_RUN_MAX


def test_ranks_are_asked_for_collectives_once_in_ten_seconds() -> None:
    """Each dump stops the training thread: in between the last answer is shown again."""
    sent: list[bytes] = []

    def send(_connection: ConnectionId, data: bytes) -> bool:
        sent.append(data)
        return True

    looks, run = RankLooks(send), a_run("mine", 1)
    first = asked(looks, run, "collectives", NS_PER_S)
    looks.take(showed(first, NS_PER_S + NS_PER_MS, "a"))
    for tenth in range(10, 110):
        assert asked(looks, run, "collectives", tenth * NS_PER_S // 10) is first
    assert len(sent) == 1
    assert looks.begin(run, "collectives", MonoNs(5 * NS_PER_S), only=0) is first, "it shows that rank as well"
    assert asked(looks, run, "collectives", 11 * NS_PER_S) is not first
    assert len(sent) == 2


def test_a_look_at_one_rank_answers_for_no_other() -> None:
    looks, run = RankLooks(lambda *_: True), a_run("mine", 1, 2)
    first = looks.begin(run, "collectives", MonoNs(NS_PER_S), only=0)
    assert first is not None
    for second, only in ((2, 1), (3, None)):
        look = looks.begin(run, "collectives", MonoNs(second * NS_PER_S), only=only)
        assert look is not None
        assert look is not first, "rank 0 alone was asked"
    assert looks.begin(run, "collectives", MonoNs(4 * NS_PER_S), only=0) is look, "all were asked since"


def test_what_halts_have_asked_is_gone_when_they_are_over() -> None:
    """Forty halts, one after the other. A person's look of before outlives them all."""
    looks, mine = RankLooks(lambda *_: True), a_run("mine", 1)
    mine_at = asked(looks, mine, "profile", NS_PER_S)
    looks.take(showed(mine_at, NS_PER_S, "x"))
    for number in range(40):
        look = looks.begin_of_halt(a_run(f"hung-{number}", 1), "collectives", MonoNs(number * NS_PER_S))
        looks.take(showed(look, number * NS_PER_S, "y" * 1000))
        looks.halt_is_over(look)
    assert list(looks._looks.values()) == [mine_at]


def test_a_halts_look_that_a_person_reads_is_forgotten_as_any_other() -> None:
    looks, run = RankLooks(lambda *_: True), a_run("mine", 1)
    look = looks.begin_of_halt(run, "collectives", MonoNs(NS_PER_S))
    assert looks.begin(run, "collectives", MonoNs(2 * NS_PER_S)) is look
    looks.halt_is_over(look)
    assert looks.of(look.look_id, MonoNs(3 * NS_PER_S)) is look
    assert looks.of(look.look_id, MonoNs(70 * NS_PER_S)) is None
