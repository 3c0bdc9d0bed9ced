"""In the service: what another user's trainer says of bytes and launches is not charged before somebody has looked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.shares import UidRange
from governor.core.base.units import BootNs, usd
from governor.core.engine import step as engine
from governor.core.engine.charging import AT_ONCE_MAX
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.checkpoints import CheckpointWeighed, SavedCheckpoint
from governor.core.events.effects import Alarm, Effect, PersistRuns, WeighCheckpoint
from governor.core.events.inputs import Ack, Disconnected, Hello, TrainerExited
from governor.core.events.machine import UidRangesSeen
from governor.core.events.operators import OperatorHalt
from governor.core.money.budgets import by_scope
from governor.core.money.lines import Lines
from tests.unit.billed import LAUNCH, UPLOAD
from tests.unit.core.engine.test_budgeting import budget
from tests.unit.core.engine.test_launched_command import launched
from tests.unit.core.engine.test_step import PRICE, at, hello, make_node, only, peer, play, rule, tick

STRANGER = 12345
LINK = ConnectionId(50)
TB = 10**12
CEILING = usd(500)
TIMES = 10  # What is seen costs at most so many times what the run's time has cost.


def service() -> Node:
    """Two users train, each with one rank. Day, node and a label that both have are held to $500."""
    node = make_node(rule("budget"), cloud="none", lines=Lines((), (), (UPLOAD,)))
    node.budgets.configured = by_scope([budget(scope, 500) for scope in ("day", "node", "label:team=a")])
    play(node, tick(0), hello(0, 0, world_size=1, labels={"team": "a"}), of_stranger(0), tick(1))
    return node


def of_stranger(when: float, **changes: object) -> Hello:
    said = {"run": "x", "world_size": 1, "connection": LINK, "peer": peer(900, STRANGER), "labels": {"team": "a"}}
    return hello(0, when, **(said | changes))


def saved(when: float, step: int = 3, size: int = 10 * TB, path: str = "/nowhere/cg_3", incident: str = "none") -> Ack:
    said = SavedCheckpoint(path=path, manifest="m", kind="good", bytes=size)
    return Ack(at(when), LINK, "x", 0, 2, incident, "saved", step=step, checkpoint=said)


def answer(look: WeighCheckpoint, when: float, size: int | None) -> CheckpointWeighed:
    return CheckpointWeighed(at(when), look.run, look.name, size, "" if size is not None else "not visible here")


def pass_time(node: Node, until: float, since: float, each: float = 10.0) -> list[Effect]:
    effects: list[Effect] = []
    while since < until:
        since = min(since + each, until)
        effects += play(node, tick(since))
    return effects


def words_of(node: Node, run: str = "x") -> int:
    """What the run has paid for its checkpoints."""
    return node.runs[run].history.one_offs.checkpoints_usd_micros


def of_time(seconds: float) -> int:
    """What half of the machine costs in so many seconds."""
    return round(PRICE * seconds / 3600 / 2)


def looked_at(node: Node, acks: Sequence[Ack], when: float, size: int | None) -> list[Effect]:
    """Play what is said, and answer each look until none is asked for."""
    effects = play(node, *acks)
    for effect in effects:  # Grows meanwhile.
        if isinstance(effect, WeighCheckpoint):
            effects.extend(engine.step(node, answer(effect, when, size)))
    return effects


def test_what_is_said_costs_nothing_until_somebody_has_looked() -> None:
    node = service()
    asked = only(play(node, saved(2)), WeighCheckpoint)
    assert (asked.path, asked.uid, words_of(node)) == ("/nowhere/cg_3", STRANGER, 0)
    assert node.runs["x"].money.checkpoint_bytes_max == 0, "nor is anything reserved for it"
    play(node, tick(3))
    assert {cap.scope: cap.spend_usd_micros < usd(1) for cap in node.budgets.caps} == {
        "day": True, "node": True, "label:team=a": True,
    }  # fmt: skip


@pytest.mark.parametrize(("size", "charged_gb"), [(3 * 10**9, 3), (0, 0), (-5, 0), (10**30, 100), (10**11, 100)])
def test_the_smaller_of_what_is_said_and_what_is_there_is_charged(size: int, charged_gb: int) -> None:
    node = service()
    pass_time(node, 600, 1)
    looked_at(node, [saved(600, size=10**11)], 600, size)
    assert words_of(node) == charged_gb * UPLOAD.price_usd_micros


@pytest.mark.parametrize(("seen", "times"), [(None, 1), (10**13, TIMES)])
@pytest.mark.parametrize("count", [1, 40])
def test_however_much_it_says_and_how_often_its_time_bounds_what_it_costs(
    seen: int | None, times: int, count: int
) -> None:
    """Ten terabytes are $900, which would end everybody's run at once."""
    node = service()
    effects = pass_time(node, 60, 1)
    effects += looked_at(node, [saved(60, step) for step in range(count)], 60, seen)
    effects += pass_time(node, 62, 60, 0.25)
    assert words_of(node) <= times * of_time(60)
    assert words_of(node) == pytest.approx(times * of_time(60), rel=0.01), "and no less, where more was said"
    assert {name: managed.incident for name, managed in node.runs.items()} == {"llama": None, "x": None}
    told = [effect.text for effect in effects if isinstance(effect, Alarm) and effect.name == "checkpoint_capped"]
    assert len(told) == 1
    assert "run x says that it has saved 10,000.0 GB, of which" in told[0]


def test_patience_does_not_make_words_dearer_than_the_time_that_it_took() -> None:
    node = service()
    ends = 3600 * 8
    for when in range(600, ends, 600):
        pass_time(node, when, when - 600, 60)
        looked_at(node, [saved(when, when)], when, None)
    assert words_of(node) <= of_time(ends)
    incident = node.runs["llama"].incident
    assert incident is not None, "eight hours of the machine are beyond the ceiling by themselves"
    assert incident.opened_at > at(CEILING / (2 * PRICE) * 3600 * 0.9)


def test_an_honest_save_is_charged_in_full_and_once_however_many_ranks_tell_it() -> None:
    node = service()
    pass_time(node, 600, 1)
    effects = looked_at(node, [saved(600), replace(saved(600), rank=1), saved(601)], 600, 2 * 10**11)
    assert words_of(node) == 200 * UPLOAD.price_usd_micros
    assert len([effect for effect in effects if isinstance(effect, WeighCheckpoint)]) == 1
    assert node.runs["x"].money.checkpoint_bytes_max == 2 * 10**11


def test_one_look_at_a_time_is_asked_for_and_what_crowds_is_charged_as_unseen() -> None:
    node = service()
    pass_time(node, 600, 1)
    effects = play(node, *(saved(600, step, 10**9) for step in range(100)))
    first = only(effects, WeighCheckpoint)
    crowd = 100 - len(node.runs["x"].money.unweighed)
    assert (len(node.runs["x"].money.unweighed), words_of(node)) == (16, crowd * UPLOAD.price_usd_micros)
    second = only(play(node, answer(first, 601, 10**9)), WeighCheckpoint)
    assert first.name != second.name
    assert play(node, answer(first, 602, 10**9)) == [], "an answer that comes twice"


def test_a_users_checkpoints_are_looked_at_at_a_pace_over_all_its_runs() -> None:
    """A look is a process of the service."""
    node = service()
    looks = 0
    for second in range(1, 601):
        play(node, tick(second))
        for number in range(3):
            acks = [saved(second, 10 * second + number, 10**6)]
            looks += sum(isinstance(effect, WeighCheckpoint) for effect in looked_at(node, acks, second, 10**6))
    assert looks == AT_ONCE_MAX + 599 // 5
    assert words_of(node) == 600 * 3 * UPLOAD.price_usd_micros // 1000, "what is not looked at is charged as unseen"


def test_a_governor_that_is_killed_before_the_look_leaves_it_to_the_next_one() -> None:
    node = service()
    pass_time(node, 600, 1)
    kept = [effect for effect in play(node, saved(600)) if isinstance(effect, PersistRuns)][-1]
    after = make_node(cloud="none", lines=node.facts.lines, boot=601)
    asked = only(restore_runs(after, list(kept.runs.values()), BootNs(at(601)), at(601)), WeighCheckpoint)
    play(after, tick(602), answer(asked, 602, 10**11))
    assert words_of(after) == 100 * UPLOAD.price_usd_micros
    play(after, of_stranger(603))
    assert [type(effect) for effect in play(after, saved(604)) if isinstance(effect, WeighCheckpoint)] == []
    assert words_of(after) == 100 * UPLOAD.price_usd_micros, "reported again"


def test_the_last_save_is_charged_though_its_run_has_ended_meanwhile() -> None:
    node = service()
    pass_time(node, 600, 1)
    asked = only(play(node, saved(600)), WeighCheckpoint)
    play(node, Disconnected(at(600), LINK), TrainerExited(at(600), "x", 0))
    kept = only(play(node, answer(asked, 601, 10**11)), PersistRuns)
    assert words_of(node) == 100 * UPLOAD.price_usd_micros
    assert kept.runs["x"]["spend_usd_micros"] == node.ledger.spend("x")


def test_a_run_that_is_forgotten_and_comes_back_has_no_more_time_than_it_paid_for() -> None:
    """Else each return would count its checkpoints as time: ten times as much each time."""
    node = service()
    pass_time(node, 60, 1)
    looked_at(node, [saved(60)], 60, 10**13)
    own = node.runs["x"].history.one_offs
    play(node, Disconnected(at(60), LINK), TrainerExited(at(60), "x", 0))
    for number in range(100):  # Others push it out.
        other = ConnectionId(100 + number)
        play(node, hello(0, 61, run=f"o{number}", world_size=1, connection=other, peer=peer(2000 + number)))
        play(node, Disconnected(at(61), other), TrainerExited(at(61), f"o{number}", 0))
    assert "x" not in node.runs
    play(node, of_stranger(62, attempt="a2"))
    assert node.runs["x"].history.one_offs == own
    looked_at(node, [saved(62, 9)], 62, 10**13)
    assert words_of(node) <= TIMES * of_time(63)


def test_what_a_halt_has_saved_is_noted_when_it_is_charged() -> None:
    node = service()
    pass_time(node, 600, 1)
    play(node, OperatorHalt(at(601), "x", "enough", 0))
    incident = node.runs["x"].incident
    assert incident is not None
    looked_at(node, [saved(602, incident=incident.incident_id)], 602, 10**11)
    [noted] = [moment for moment in incident.timeline if moment["what"] == "egress"]
    assert (noted["detail"]["usd_micros"], noted["detail"]["reserved_usd_micros"]) == (100 * UPLOAD.price_usd_micros, 0)


@pytest.mark.parametrize("as_names", [False, True])
def test_a_user_cannot_launch_others_out_of_their_budget(as_names: bool) -> None:
    """Three hundred hellos of $1.50 each."""
    node = make_node(rule("budget"), cloud="none", lines=Lines((), (LAUNCH,), ()))
    node.budgets.configured = by_scope([budget("node", 300)])
    play(node, tick(0), hello(0, 0, world_size=1), UidRangesSeen(at(0), (UidRange(100_000, 65_536, STRANGER),)))
    for number in range(300):
        link, when = ConnectionId(1000 + number), number / 100
        uid = (STRANGER, 100_000 + number)[number % 2]  # In a container of its own.
        run, attempt = (f"y{number}", "a1") if as_names else (f"y{number % 2}", f"a{number}")
        uid = uid if as_names else (STRANGER, 100_000)[number % 2]
        said = hello(0, when, run=run, attempt=attempt, world_size=1, connection=link, peer=peer(5000 + number, uid))
        play(node, said, Disconnected(at(when), link), TrainerExited(at(when), run, 1), tick(when))
    whole = node.ledger.groups.node_usd_micros
    assert whole < (1 + AT_ONCE_MAX + 1) * LAUNCH.price_usd_micros + usd(1)
    assert node.runs["llama"].incident is None


def test_a_launch_a_minute_is_always_charged_and_each_users_own_are() -> None:
    node = make_node(cloud="none", price_usd_micros_per_hour=None, lines=Lines((), (LAUNCH,), ()))
    for minute in range(100):
        when = minute * 60.0
        for user in (1, 2):
            link, who = ConnectionId(user), peer(100 * minute + user + 1, user)
            said = hello(0, when, run=f"u{user}", attempt=f"a{minute}", world_size=1, connection=link, peer=who)
            play(node, said, tick(when))
    assert {run: node.ledger.spend(run) for run in ("u1", "u2")} == dict.fromkeys(
        ("u1", "u2"), 100 * LAUNCH.price_usd_micros
    )
    assert len(node.launches_until) == 2
    play(node, hello(0, 9e3, run="u3", world_size=1, connection=ConnectionId(9), peer=peer(99_999, 3)))
    assert list(node.launches_until) == [3], "what is over is forgotten"


@pytest.mark.parametrize("seen", [None, 10**13])
def test_without_a_price_of_the_machine_words_cost_nothing_because_budgets_still_end_runs(seen: int | None) -> None:
    node = make_node(
        rule("budget"), cloud="none", price_usd_micros_per_hour=None, lines=Lines((), (), (UPLOAD,))
    )  # fmt: skip
    node.budgets.configured = by_scope([budget("node", 500)])
    play(node, tick(0), hello(0, 0, world_size=1), of_stranger(0))
    looked_at(node, [saved(1, step) for step in range(9)], 1, seen)
    play(node, tick(2), tick(3))
    assert (words_of(node), node.runs["llama"].incident) == (0, None)


def test_no_more_is_reserved_for_a_halts_checkpoint_than_it_may_cost() -> None:
    """A journal of an older version may hold what was only said."""
    node = service()
    kept = {**run_snapshot(node, node.runs["x"], at(1)), "checkpoint_bytes_max": 10 * TB}
    after = make_node(rule("budget"), cloud="none", lines=node.facts.lines, boot=1)
    after.budgets.configured = by_scope([budget("node", 500)])
    restore_runs(after, [kept, run_snapshot(node, node.runs["llama"], at(1))], BootNs(at(1)), at(1))
    play(after, tick(1), hello(0, 1, world_size=1), of_stranger(1), tick(2), tick(3))
    assert after.runs["x"].money.checkpoint_bytes_max == 10 * TB
    assert after.runs["x"].run.reserve_usd_micros is not None
    assert after.runs["x"].run.reserve_usd_micros < usd(5)
    assert after.runs["llama"].incident is None


@pytest.mark.parametrize(("uid", "charged_gb"), [(1000, 100), (STRANGER, 0)])
def test_under_a_command_its_own_user_is_believed_and_another_that_pays_is_not(uid: int, charged_gb: int) -> None:
    node = launched(ceiling=None)
    node.facts = replace(node.facts, lines=Lines((), (), (UPLOAD,)))
    play(node, of_stranger(1, peer=peer(900, uid), of_command=True))
    looked_at(node, [saved(1, size=10**11)], 1, None)
    assert (words_of(node), node.pays_nothing(node.runs["x"])) == (charged_gb * UPLOAD.price_usd_micros, False)
    node.facts = replace(node.facts, lines=Lines((), (LAUNCH,), ()))
    before = node.ledger.spend("x")
    for number in range(100):
        play(node, of_stranger(2, attempt=f"b{number}", peer=peer(901 + number, uid), of_command=True))
    launches = 100 if uid == 1000 else AT_ONCE_MAX
    assert node.ledger.spend("x") - before == launches * LAUNCH.price_usd_micros
    play(node, of_stranger(2, attempt="b99+1", peer=peer(1000, uid), of_command=True))
    assert node.ledger.spend("x") - before == launches * LAUNCH.price_usd_micros, "another training, and no launch"


def test_a_groups_ceiling_reserves_the_upload_that_its_halt_may_make() -> None:
    """100 GB at $0.09, of which the group's halt may write as many again."""
    node = service()
    pass_time(node, 300, 1)
    before = {cap.scope: cap.reserve_usd_micros for cap in node.budgets.caps}
    looked_at(node, [saved(300, size=TB // 10)], 300, TB // 10)
    play(node, tick(301))
    grown = {cap.scope: cap.reserve_usd_micros - before[cap.scope] for cap in node.budgets.caps}
    assert grown == dict.fromkeys(("day", "node", "label:team=a"), usd(9))
