"""Three real governors and a real etcd: a budget that they share, an etcd that goes, a governor that is killed."""

from __future__ import annotations

import contextlib

from governor.core.fleet.scopes import ScopeRow
from tests.contract.fleet.etcd_server import Member as Etcd
from tests.drills.fleet.conftest import MakeMember
from tests.drills.fleet.members import TEAM
from tests.drills.fleet.shared import opened, scope_in


def scope_of(etcd: Etcd) -> ScopeRow:
    with contextlib.closing(opened(etcd.url)) as store:
        return scope_in(store, TEAM)


def test_three_governors_cannot_overshoot_a_budget_that_they_share(etcd: Etcd, member: MakeMember) -> None:
    ceiling = 4.0  # $98.32/h: 146 s of one run, less what three halts may cost.
    members = [member(name, ceiling) for name in "abc"]
    for one in members:
        one.train()
    incidents = [one.until_stage("HALTED") for one in members]
    for incident in incidents:
        assert (incident["trigger"], incident["evidence"]["scope"]) == ("budget", f"shared:{TEAM}")
    members[0].until(lambda: scope_of(etcd).holders == 0, "every grant is given back")
    row = scope_of(etcd)
    spent = sum(one.spent_usd() for one in members)
    assert row.held_usd_micros == 0
    denied = [one for one, its in zip(members, incidents, strict=True) if not its["evidence"]["ceiling_usd_micros"]]
    beyond = sum(one.spent_usd() for one in denied)
    assert len(denied) < len(members)
    assert abs(row.over_usd_micros / 1e6 - beyond) < 0.01, "only who was let in without a grant has spent beyond one"
    assert row.settled_usd_micros <= ceiling * 1e6
    tick_usd = 98.32 / 3600 / 4
    # A grant counts from the first tick that sees the run.
    assert abs(row.settled_usd_micros / 1e6 - spent) < (len(members) + 1) * tick_usd
    assert spent > ceiling / 4, "they were halted because the money was used up"
