"""Budgets of a fleet on one node, through the engine: asks out, answers in, and no store but rows in memory.

$98.32/h. A halt that can save nothing takes 1 s of grace, 20 s of ending and 1 s of ticks; 15 s are allowed beside it.
"""

from __future__ import annotations

import pytest

from governor.core.base.units import NS_PER_DAY, NS_PER_S, BootNs, WallNs, format_usd, usd
from governor.core.engine import step as engine
from governor.core.engine.halt_plan import shortest_ns
from governor.core.engine.node import new_node
from governor.core.engine.node_journal import node_snapshot
from governor.core.events.effects import Alarm, Effect, PersistRuns, Term
from governor.core.events.fleet_store import Answer, AskStore, Kept, StoreAnswered
from governor.core.events.inputs import BillingAnswer, BillingRead, ProcessesSeen, StopAnswer, StopReplied
from governor.core.fleet.scopes import Holder, ceiling_change, checked_row, checked_scope, scope_key, scope_row
from governor.core.fleet.shared import Shared, SharedBudget
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.unit.core.engine.test_step import at, hello, make_node, tick

TEAM = "label:team=nlp"


class World:
    """A node whose asks are answered by a store in memory, at once, or never while `is_cut`."""

    def __init__(self, ceiling_usd: float = 100, scope: str = TEAM, *, has_row: bool = True) -> None:
        self.store = FakeFleetStore()
        if has_row:
            change = ceiling_change(Kept(scope_key(scope)), usd(ceiling_usd))
            assert change is not None
            self.store.transact(change)
        self.scope, self.is_cut = scope, False
        plain = make_node()
        self.budget = SharedBudget(scope.partition(":2")[0] if scope.startswith("day") else scope, usd(ceiling_usd))
        self.node = new_node(plain.facts, plain.policies, BootNs(0), WallNs(0), (), shared(self.budget))
        self.effects: list[Effect] = []

    def play(self, *events: object) -> list[Effect]:
        found: list[Effect] = []
        waiting = list(events)
        while waiting:
            event = waiting.pop(0)
            effects = engine.step(self.node, event)  # type: ignore[arg-type]
            found += effects
            waiting[:0] = [self.answer(one, event.at) for one in effects if isinstance(one, AskStore)]  # type: ignore[attr-defined]
        self.effects += found
        return found

    def answer(self, ask: AskStore, when: object) -> StoreAnswered:
        if self.is_cut:
            return StoreAnswered(when, ask.request, Answer.UNREACHABLE)  # type: ignore[arg-type]
        if ask.transaction is not None:
            reply = self.store.transact(ask.transaction)
        else:
            reply = self.store.range(ask.prefix, 100) if ask.prefix else self.store.read(ask.keys)
        return StoreAnswered(when, ask.request, reply.answer, reply.rows, reply.revision)  # type: ignore[arg-type]

    def until(self, end: float, begin: float = 0.0) -> list[Effect]:
        found: list[Effect] = []
        for quarter in range(round(begin * 4) + 1, round(end * 4) + 1):
            found += self.play(tick(quarter / 4))
        return found

    def join(self, when: float = 0.0) -> None:
        self.play(tick(when), hello(0, when=when, labels={"team": "nlp"}, world_size=1, capabilities=frozenset()))

    @property
    def row(self):  # type: ignore[no-untyped-def]
        row = scope_row(self.store.read([scope_key(self.scope)]).rows[0])
        assert row is not None
        return row


def shared(budget: SharedBudget, boot: str = "boot-1", machine: str | None = None, start: str = "start-1") -> Shared:
    return Shared((budget,), Holder("n1", boot, "ledger"), start, machine)


def alarms(effects: list[Effect]) -> list[str]:
    return [one.name for one in effects if isinstance(one, Alarm) and one.name.startswith("shared")]


def end_billing(world: World, incident_id: str, when: float) -> None:
    world.play(ProcessesSeen(at(when), incident_id, ()))
    world.play(StopReplied(at(when), incident_id, StopAnswer.ACCEPTED, False, "accepted"))
    world.play(BillingRead(at(when), incident_id, BillingAnswer.ENDED, "stopped"))


def halted(effects: list[Effect]) -> bool:
    return any(isinstance(one, Term) for one in effects)


def test_a_run_of_the_scope_is_granted_minutes_and_the_halt_s_time_is_not_that_of_the_grant() -> None:
    world = World(1_000)
    world.join()
    world.until(2)
    [cap] = world.node.runs["llama"].run.caps
    assert cap.scope == f"shared:{TEAM}"
    assert usd(8) < cap.ceiling_usd_micros < usd(12), "five minutes at $98.32/h, and what a halt costs"
    lasts = shortest_ns(world.node.runs["llama"])
    assert lasts is not None
    assert lasts > 36_000 * NS_PER_S, "as long as the scope's own ceiling lasts"
    assert alarms(world.effects) == []


def test_the_run_is_halted_when_its_grant_is_used_up_and_gives_back_the_rest_once_it_has_ended() -> None:
    world = World(3)
    world.join()
    ended = next(second for second in range(1, 150) if halted(world.until(second, second - 1)))
    incident = world.node.runs["llama"].incident
    assert incident is not None
    assert incident.evidence["scope"] == f"shared:{TEAM}"
    assert "shared_low" in alarms(world.effects), "whoever watches is told before"
    assert world.row.holders == 1, "while the halt is open the grant stays"
    end_billing(world, incident.incident_id, ended + 5)
    world.until(ended + 8, ended + 5)
    row = world.row
    assert (row.holders, row.held_usd_micros, row.over_usd_micros) == (0, 0, 0)
    assert row.settled_usd_micros <= usd(3)
    assert abs(row.settled_usd_micros - world.node.ledger.spend("llama")) < usd(0.02)


def test_a_halt_by_a_grant_says_what_was_granted_of_which_ceiling() -> None:
    """Else whoever reads it sets the team's ceiling to one run's grant."""
    world = World(1_000)
    world.join()
    world.until(2)
    world.is_cut = True
    assert any(halted(world.until(second, second - 1)) for second in range(3, 600))
    incident = world.node.runs["llama"].incident
    assert incident is not None
    granted = incident.evidence["ceiling_usd_micros"]
    assert usd(8) < granted < usd(12)
    assert incident.evidence["whole_usd_micros"] == usd(1_000)
    assert f"reaches the {format_usd(granted)} that it was granted of $1,000.00" in incident.text
    assert "the ceiling" not in incident.text


def test_a_run_without_a_first_grant_lives_for_as_long_as_the_store_may_take_and_no_longer() -> None:
    world = World()
    world.is_cut = True
    world.join()
    assert not halted(world.until(29))
    assert "shared_silent" in alarms(world.effects)
    assert halted(world.until(32, 29))


def test_a_run_that_is_denied_its_first_grant_is_halted_at_once_and_what_it_spent_is_booked() -> None:
    world = World(0.2)
    world.join()
    assert halted(world.until(1))
    assert "shared_denied" in alarms(world.effects)
    incident = world.node.runs["llama"].incident
    assert incident is not None
    world.until(4, 1)
    end_billing(world, incident.incident_id, 4.1)
    world.until(8, 4)
    row = world.row
    assert row.holders == 0
    assert row.settled_usd_micros == row.over_usd_micros > 0, "beyond every grant, and still counted"


def test_a_scope_without_a_row_grants_nothing() -> None:
    world = World(has_row=False)
    world.join()
    assert halted(world.until(32))


def test_a_silent_store_is_told_with_what_is_left_and_the_run_lives_on_its_grant() -> None:
    world = World(1_000)
    world.join()
    world.until(2)
    world.is_cut = True
    effects = world.until(280, 2)
    assert "shared_silent" in alarms(effects)
    assert not halted(effects)
    assert halted(world.until(420, 280)), "the grant is used up, and nobody gives more"


def test_a_silence_that_ends_is_told_and_halts_nobody() -> None:
    world = World(1_000)
    world.join()
    world.until(2)
    world.is_cut = True
    world.until(280, 2)
    world.is_cut = False
    effects = world.until(420, 280)
    assert "shared_again" in alarms(effects)
    assert not halted(effects)


def test_a_grant_that_cannot_be_given_back_is_told_and_shown_until_it_is() -> None:
    world = World(3)
    world.join()
    ended = next(second for second in range(1, 150) if halted(world.until(second, second - 1)))
    incident = world.node.runs["llama"].incident
    assert incident is not None
    assert world.node.shared is not None
    held = world.row.held_usd_micros
    world.is_cut = True
    end_billing(world, incident.incident_id, ended + 5)
    effects = world.until(ended + 40, ended + 5)
    assert alarms(effects) == ["shared_unreturned"], "told once"
    (standing,) = world.node.shared.reservations.standings(at(ended + 40))
    assert (standing.has_ended, standing.must_halt) == (True, False)
    assert standing.granted_usd_micros == held, "as etcd has it"
    assert standing.used_usd_micros < held
    world.is_cut = False
    effects = world.until(ended + 60, ended + 40)
    assert alarms(effects) == ["shared_again"]
    assert world.node.shared.reservations.standings(at(ended + 60)) == []
    assert world.row.held_usd_micros == 0


def test_the_journal_has_a_grant_before_less_is_asked_for() -> None:
    world = World(1_000)
    world.join()
    effects = world.until(2)
    first = next(place for place, one in enumerate(world.effects) if isinstance(one, AskStore))
    assert any(isinstance(one, PersistRuns) and one.durable for one in world.effects[:first])
    assert not any(isinstance(one, AskStore) and one.lowers for one in effects)
    engine.step(world.node, hello(0, when=2.1, labels={"team": "vision"}, world_size=1, capabilities=frozenset()))
    world.effects.clear()
    world.until(6, 2)
    lowering = [place for place, one in enumerate(world.effects) if isinstance(one, AskStore) and one.lowers]
    for place in lowering:
        before = world.effects[place - 1]
        assert isinstance(before, PersistRuns | AskStore)


def test_a_later_start_goes_on_with_its_grant_while_the_store_is_silent() -> None:
    world = World(1_000)
    world.join()
    world.until(2)
    kept = dict(node_snapshot(world.node))["shared"]
    again = shared(world.budget, start="start-2")
    again.restore(kept)
    grant = again.reservations.grants[TEAM, "llama"]
    assert grant.sure_usd_micros == world.node.runs["llama"].run.caps[0].ceiling_usd_micros
    assert again.holder == shared(world.budget).holder
    asks = again.asks(at(3), WallNs(0))
    assert any(ask.prefix for ask in asks), "and it reads what it has in the store"


def test_after_a_reboot_the_grants_are_ours_only_on_the_same_machine() -> None:
    kept = {"holder": ["n1", "boot-1", "ledger"], "machine": "i-1", "grants": [[TEAM, "llama", 0, 5, True]]}
    budget = SharedBudget(TEAM, usd(10))
    same, copy = shared(budget, "boot-2", "i-1"), shared(budget, "boot-2", "i-2")
    same.restore(kept)
    copy.restore(kept)
    assert same.holder.boot_id == "boot-1"
    assert same.take_left_behind() is None
    assert copy.holder.boot_id == "boot-2"
    assert copy.reservations.grants == {}
    assert copy.take_left_behind() == "n1~boot-1~ledger"


def test_a_day_is_a_scope_of_its_own_and_the_next_one_is_opened_before_midnight() -> None:
    budget = SharedBudget("day", usd(10))
    assert budget.rows_at(WallNs(0)) == ["day:1970-01-01"]
    assert budget.rows_at(WallNs(NS_PER_DAY - 30 * NS_PER_S)) == ["day:1970-01-01", "day:1970-01-02"]


def test_a_person_s_day_is_the_row_that_governors_ask_for_now_or_of_a_date() -> None:
    for wall in (WallNs(0), WallNs(NS_PER_DAY - 1), WallNs(20_000 * NS_PER_DAY)):
        assert checked_row("day", wall) == SharedBudget("day", usd(10)).rows_at(wall)[0]
    assert checked_row("day:2028-02-29", WallNs(0)) == "day:2028-02-29"
    for text in ("day:2027-02-29", "day:2026-00-10", "day:2026-1-1", "day:today", "day:"):
        with pytest.raises(ValueError, match="is no scope of a fleet"):
            checked_row(text, WallNs(0))


def test_scopes_that_a_fleet_cannot_share_are_refused_in_one_line() -> None:
    for text in ("node", "run:llama", "label:team", "", "stage:" + "x" * 500, "label:a=\n"):
        with pytest.raises(ValueError, match="is no scope of a fleet") as refused:
            checked_scope(text)
        assert "\n" not in str(refused.value)
    assert checked_scope("fleet") == "fleet"


def test_a_run_of_another_team_asks_for_nothing() -> None:
    world = World(1_000)
    world.play(tick(0), hello(0, labels={"team": "vision"}, world_size=1, capabilities=frozenset()))
    world.until(2)
    assert not world.node.runs["llama"].run.caps
    assert not any(isinstance(one, AskStore) and one.transaction for one in world.effects)
