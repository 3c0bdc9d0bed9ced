"""Histories of a fleet keep its money, and each planted bug is caught by what they demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from governor.core.base.units import NS_PER_MINUTE, MonoNs
from governor.core.events.fleet_store import Answer, AskStore, Transaction
from governor.core.fleet.grant import Grant
from governor.core.fleet.reservations import Reservations
from governor.remote_ports import FleetReply, FleetStore
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.sim.fleet.history import draw
from tests.sim.fleet.judge import BrokenError
from tests.sim.fleet.world import EVENTS_MAX, MakeGovernor, World

SEEDS = 12
HUNTED = 60
CUT_OFF = (4216, 20249)  # Half of the fleet is cut off until after the seventieth minute, and asks all the time.


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_fleet_keeps_to_what_was_granted(seed: int) -> None:
    judge = World(draw(seed), FakeFleetStore()).play()
    assert judge.transactions > 100


@pytest.mark.parametrize("seed", CUT_OFF)
def test_a_fleet_that_is_cut_off_for_an_hour_settles_when_it_is_not_any_more(seed: int) -> None:
    history = draw(seed)
    assert history.healed_ns > 70 * NS_PER_MINUTE
    world = World(history, FakeFleetStore())
    world.play()
    assert world.events_total > 2 * EVENTS_MAX


def test_a_governor_in_two_cuts_at_once_is_cut_off_once() -> None:
    cuts = (10, 40, frozenset({3, 4})), (0, 20, frozenset({3})), (30, 35, frozenset({3})), (50, 60, frozenset({3}))
    history = replace(draw(0), partitions=cuts, kills=((70, 3, 9),), vanishes=((5, 4, 60, 75),))
    assert history.cut_ns == (40 + 10) + 30
    assert history.healed_ns == 79


class NoCompare(FakeFleetStore):
    """The store takes every transaction as it comes: compare-and-set is lost."""

    def transact(self, transaction: Transaction) -> FleetReply:
        return super().transact(replace(transaction, compares=()))


class AppliedTwice(FakeFleetStore):
    """Deletes are not compared: a grant that is given back is given back with each copy."""

    def transact(self, transaction: Transaction) -> FleetReply:
        if transaction.deletes:
            transaction = replace(transaction, compares=())
        return super().transact(transaction)


class Forgetful(Reservations):
    """A transaction whose answer is lost counts as not applied."""

    def answered(self, request: str, answer, rows=(), revision: int = 0, *, at: MonoNs) -> None:  # type: ignore[no-untyped-def]
        super().answered(request, answer, rows, revision, at=at)
        for grant in self.grants.values():
            if grant.sent is not None and not grant.is_waiting and grant.row is None:
                grant.sent = None
                if grant.final_usd_micros is not None:
                    grant.is_over = True


class Generous(Grant):
    """A run goes on beyond its grant while the store is silent."""

    __slots__ = ()

    @property
    def must_halt(self) -> bool:
        return self.silent_since is None and super().must_halt


class SpendsInSilence(Reservations):
    def _opened(self, scope: str, run: str, base_usd_micros: int) -> Grant:
        made = super()._opened(scope, run, base_usd_micros)
        made.__class__ = Generous
        return made


class NoReserve(Reservations):
    """Its own halt is not counted."""

    def cover(self, scope, run, use) -> bool:  # type: ignore[no-untyped-def]
        return super().cover(scope, run, replace(use, reserve_usd_micros=0))


class NeverGivesBack(Reservations):
    def end(self, scope: str, run: str, spent_usd_micros: int) -> None: ...


class DropsSettling(Reservations):
    """What is given back is sent once and forgotten."""

    def next(self, at, wall) -> list[AskStore]:  # type: ignore[no-untyped-def]
        asks = super().next(at, wall)
        for grant in self.grants.values():
            if grant.sent is not None and grant.sent.after is None:
                grant.is_over = True
        return asks


class Remembers(Reservations):
    """A grant that is settled stays with its governor."""

    def forget_over(self) -> list[tuple[str, str]]:
        return []


class Impatient(Reservations):
    """A transaction is sent again before its answer has come."""

    def next(self, at, wall) -> list[AskStore]:  # type: ignore[no-untyped-def]
        for grant in self.grants.values():
            grant.is_waiting = False
        return super().next(at, wall)


class Hasty(Grant):
    """In silence it asks again at once."""

    __slots__ = ()

    def _failed(self, answer: Answer, at: MonoNs) -> None:
        super()._failed(answer, at)
        self.not_before = at


class NeverBacksOff(Reservations):
    def _opened(self, scope: str, run: str, base_usd_micros: int) -> Grant:
        made = super()._opened(scope, run, base_usd_micros)
        made.__class__ = Hasty
        return made


class ReadsOnAndOn(Reservations):
    """Rows that have just been read are read again."""

    def next_read(self) -> MonoNs | None:
        return MonoNs(0)


BUGS: dict[str, tuple[MakeGovernor, Callable[[], FleetStore]]] = {
    "compare-and-set is lost": (Reservations, NoCompare),
    "a grant is given back with each copy": (Reservations, AppliedTwice),
    "a lost answer counts as no": (Forgetful, FakeFleetStore),
    "a run spends beyond its grant in silence": (SpendsInSilence, FakeFleetStore),
    "a halt is not reserved": (NoReserve, FakeFleetStore),
    "nothing is given back": (NeverGivesBack, FakeFleetStore),
    "what is given back is sent once": (DropsSettling, FakeFleetStore),
    "what is settled is not forgotten": (Remembers, FakeFleetStore),
    "nobody waits for an answer": (Impatient, FakeFleetStore),
    "nobody backs off in silence": (NeverBacksOff, FakeFleetStore),
    "the rows are read on and on": (ReadsOnAndOn, FakeFleetStore),
}


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught(bug: str) -> None:
    kind, store = BUGS[bug]
    for seed in range(HUNTED):
        try:
            World(draw(seed), store(), kind).play()
        except (BrokenError, AssertionError):
            World(draw(seed), FakeFleetStore()).play()  # It was the bug: without it the same history passes.
            return
    pytest.fail(f"survived {HUNTED} histories")
