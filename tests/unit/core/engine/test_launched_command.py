"""A command of which nobody says hello costs money from its start, and its ceiling holds."""

from __future__ import annotations

import json

from governor.core.base.findings import Response
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.policy import Budget, Mode, Rule
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.launched_command import ATTACH_EXPECTED_NS
from governor.core.engine.node import Node
from governor.core.engine.node_journal import node_snapshot, restore_node, run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Alarm, Effect, Kill, PersistRuns, Term
from governor.core.events.ends import CommandLeft
from governor.core.events.inputs import CommandLaunched, Disconnected, LauncherExited, ProcessesSeen, TrainerExited
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.events.streams import StreamOpened
from governor.core.halt.left_launch import Below, LeftLaunch
from governor.core.halt.table import HaltState
from governor.core.money.charges import UNALLOCATED, UNALLOCATED_MAX
from governor.core.views.status import run_status
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick

COMMAND = ProcessId(4321, 1, "boot-1")
PRICE = UsdMicros(3_600_000_000)  # $1 a second.
CEILING = UsdMicros(600_000_000)


def launched(budget: Rule | None = None, *, ceiling: UsdMicros | None = CEILING) -> Node:
    node = make_node(
        rule(),
        budget or rule("budget"),
        budget=Budget(ceiling_usd_micros=ceiling),
        cloud="none",
        exclusive=True,
        price_usd_micros_per_hour=PRICE,
    )
    play(
        node,
        CommandLaunched(
            at(0),
            "job",
            1000,
            (COMMAND,),
            ("costgov", "run", "--", "python", "train.py"),
            cwd="/data/my run/token=abcdef",
        ),
    )
    play(node, tick(0))
    return node


def pass_time(node: Node, until: int, since: int = 1) -> list[Effect]:
    return [effect for second in range(since, until + 1) for effect in play(node, tick(second))]


def test_the_ceiling_ends_a_command_that_never_attaches_and_says_that_no_checkpoint_was_possible() -> None:
    node = launched()
    effects = pass_time(node, 700)
    (term,) = [effect for effect in effects if isinstance(effect, Term)]
    incident = node.runs["job"].incident
    assert incident is not None
    assert term.incident_id == incident.incident_id
    assert incident.reason == "ceiling_reached"
    assert incident.rank_processes == incident.launchers == (COMMAND,)
    assert [target["role"] for target in incident.targets] == ["launcher"]
    (said,) = [entry["detail"]["reason"] for entry in incident.timeline if entry["what"] == "save_failed"]
    assert "no rank has attached" in said
    assert [effect for effect in effects if isinstance(effect, Kill)] != []
    assert incident.resume == "cd '/data/my run/token=<redacted>' && costgov run -- python train.py"
    # What it had cost before the verdict counts, and with the price of its end it stays below the ceiling.
    play(node, ProcessesSeen(at(701), incident.incident_id, ()))
    assert incident.halt.stage is HaltState.HALTED
    assert 0 < incident.spend_at_verdict_usd_micros < CEILING
    assert node.ledger.spend(UNALLOCATED) == 0
    rows = node.ledger.uncommitted + node.ledger.book.open_charges()
    assert node.ledger.spend("job") == sum(charge.usd_micros for charge in rows)


def test_another_users_rank_that_says_the_commands_name_is_a_run_of_its_own() -> None:
    node = launched()
    pass_time(node, 10)
    effects = play(node, hello(when=11, run="job", peer=peer(900, uid=12345)), tick(12))
    assert [e.name for e in effects if isinstance(e, Alarm)] == ["name_taken"]
    assert (node.runs["job"].is_unattached, node.runs["job"].run.uid) == (True, 1000)
    stranger = node.runs["job@12345"]
    assert (stranger.is_separate, stranger.launch.launchers, stranger.launch.cgroups) == (True, (), ())
    assert node.ledger.spend("job") + node.ledger.spend(UNALLOCATED) >= 10 * PRICE * NS_PER_S // NS_PER_HOUR


def test_a_command_that_has_become_another_user_is_reported_for_by_that_users_rank() -> None:
    node = launched()
    pass_time(node, 10)
    play(node, hello(when=11, run="job", peer=peer(900, uid=12345), of_command=True), tick(12))
    assert (node.runs["job"].is_unattached, node.runs["job"].run.uid) == (False, 12345)
    assert node.ledger.spend("job") == 12 * PRICE * NS_PER_S // NS_PER_HOUR


def test_what_nobody_speaks_for_is_shown_and_said_once() -> None:
    node = launched()
    effects = pass_time(node, ATTACH_EXPECTED_NS // NS_PER_S + 60)
    (alarm,) = [effect for effect in effects if isinstance(effect, Alarm)]
    assert alarm.name == "nobody_attached"
    for said in ("for 1m", "only the ceiling $600.00", "trainer_shim.attach(engine)"):
        assert said in alarm.text
    run = node.runs["job"].run
    assert run.spend_usd_micros == 120_000_000
    assert run.spend_rate_usd_micros_per_hour == PRICE


def test_a_command_that_ends_before_the_first_tick_is_shown_and_has_its_money() -> None:
    node = make_node(rule(), cloud="none", exclusive=True, price_usd_micros_per_hour=PRICE)
    play(node, CommandLaunched(at(0), "job", 1000, (COMMAND,)))
    play(node, LauncherExited(at(1)))
    play(node, tick(1))
    play(node, TrainerExited(at(1), "job", 0))
    assert run_status(node.runs["job"], at(1))["state"] == "finished"
    assert node.ledger.spend("job") == PRICE * NS_PER_S // NS_PER_HOUR


def test_a_command_whose_end_is_seen_before_the_first_tick_has_its_money_all_the_same() -> None:
    """Beside busy neighbours a short command is over when the loop looks for the first time."""
    node = make_node(rule(), cloud="none", exclusive=True, price_usd_micros_per_hour=PRICE)
    play(node, CommandLaunched(at(0), "job", 1000, (COMMAND,)))
    play(node, LauncherExited(at(1)), TrainerExited(at(1), "job", None))
    play(node, tick(1))
    play(node, TrainerExited(at(1), "job", 0))
    assert run_status(node.runs["job"], at(1))["state"] == "finished"
    assert node.ledger.spend("job") == PRICE * NS_PER_S // NS_PER_HOUR
    assert node.ledger.spend(UNALLOCATED) == 0


def test_without_a_ceiling_the_line_says_that_nothing_protects_the_run() -> None:
    (alarm,) = [e for e in pass_time(launched(ceiling=None), 100) if isinstance(e, Alarm)]
    assert "nothing protects this run" in alarm.text


def test_a_ceiling_that_is_only_observed_is_not_said_to_protect_anybody() -> None:
    for enforced in (Mode.OBSERVE, Mode.ENFORCE):
        node = launched(rule("budget", mode=enforced))
        (alarm,) = [e for e in pass_time(node, 100) if isinstance(e, Alarm)]
        is_protected = enforced is Mode.ENFORCE
        assert ("only the ceiling $600.00 protects this run" in alarm.text) is is_protected
        assert ("nothing protects this run (the ceiling $600.00 is only observed)" in alarm.text) is not is_protected
    # What a share of it leads to is a warning, whatever its mode.
    node = launched(rule("budget", response=Response.WARN))
    (alarm,) = [e for e in pass_time(node, 100) if isinstance(e, Alarm)]
    assert "nothing protects this run" in alarm.text


def test_a_relaunch_shows_nothing_of_the_last_attempt_until_its_own_first_step() -> None:
    node = launched()
    play(node, hello(0, 1, run="job", world_size=1), a_step(500, run="job", when=2, loss=2.5, tokens_total=500_000))
    play(node, hello(0, 3, run="job", attempt="a2", world_size=1, peer=peer(300)))
    shown = run_status(node.runs["job"], at(3))
    assert (shown["step"], shown["loss"], shown["tokens_total"]) == (None, None, 500_000)
    play(node, a_step(501, run="job", when=4, loss=2.25))
    assert run_status(node.runs["job"], at(4))["step"] == 501


def test_a_rank_that_says_hello_takes_the_account_over_once_under_either_name() -> None:
    for name in ("job", "named-by-the-script"):
        node = launched()
        pass_time(node, 30)
        play(node, hello(0, 30, run=name, world_size=1))
        effects = pass_time(node, 120, 31)
        assert [effect for effect in effects if isinstance(effect, Alarm)] == []
        assert list(node.runs) == [name]
        assert node.runs[name].processes() == (hello(0).peer.process,)
        assert (node.ledger.spend(name), node.ledger.total()) == (120_000_000, 120_000_000)


def test_the_command_may_have_become_another_user_before_it_attached() -> None:
    node = launched()
    play(node, hello(0, 1, run="job", world_size=1, peer=peer(100, uid=2000), of_command=True))
    assert node.runs["job"].run.uid == 2000


def test_a_second_launch_under_one_name_goes_on_with_its_budget_and_misses_no_rank() -> None:
    node = launched()
    play(node, hello(0, 1, run="job", world_size=1))
    pass_time(node, 100, 2)
    play(node, Disconnected(at(100), ConnectionId(1)), TrainerExited(at(100), "job", None))
    again = make_node(
        rule(), rule("budget"), budget=Budget(ceiling_usd_micros=CEILING), cloud="none", exclusive=True,
        price_usd_micros_per_hour=PRICE, boot=100,
    )  # fmt: skip
    kept = {name: run_snapshot(node, managed, at(100)) for name, managed in node.runs.items()}
    restore_runs(again, kept.values(), BootNs(at(100)), at(100))
    play(again, CommandLaunched(at(101), "job", 1000, (COMMAND,)))
    effects = pass_time(again, 300, 101)
    assert [effect.name for effect in effects if isinstance(effect, Alarm)] == [
        "nobody_attached",
        "ceiling_ahead",
    ]  # Ten minutes are half used.
    assert again.runs["job"].run.spend_usd_micros == 300_000_000
    assert [effect for effect in pass_time(again, 600, 301) if isinstance(effect, Term)]


def test_a_command_that_ends_unheard_has_cost_what_it_has_cost_under_its_own_name() -> None:
    node = launched()
    pass_time(node, 10)
    play(node, TrainerExited(at(10), "job", None))
    pass_time(node, 20, 11)
    assert not node.runs["job"].run.alive
    assert node.ledger.spend("job") == 10_000_000
    assert node.ledger.spend(UNALLOCATED) == 10_000_000, "the governor outlived it"


def test_an_operators_hold_before_the_first_attach_protects_the_loading_and_goes_on_to_the_run() -> None:
    node = launched()
    play(node, OperatorHold(at(1), "job", DurationNs(1_000 * NS_PER_S), "loading", 0))
    effects = pass_time(node, 700, 2)
    assert not [effect for effect in effects if isinstance(effect, Term)]
    assert "halt_held" in [effect.name for effect in effects if isinstance(effect, Alarm)]
    play(node, hello(0, 700, run="other", world_size=1))
    assert node.runs["other"].history.hold_reason == "loading"
    assert node.runs["other"].history.hold_until == at(1_001)


HOUR_S = NS_PER_HOUR // NS_PER_S
STREAMED = ProcessId(999, 1, "boot-1")


def stream(node: Node, run: str, when: int, *processes: ProcessId) -> None:
    play(node, StreamOpened(at(when), run, 1000, None, {}, processes))


def terms(effects: list[Effect]) -> list[str]:
    return [effect.run for effect in effects if isinstance(effect, Term)]


def charged(node: Node, run: str) -> int:
    """By the rows that still grow or that the journal has yet to be given: a tick takes closed ones away."""
    return sum(
        row.usd_micros for row in node.ledger.uncommitted + node.ledger.book.open_charges() if row.payer.run == run
    )


def test_a_ceiling_of_more_hours_than_a_hand_over_may_move_ends_the_command_all_the_same() -> None:
    hours = 2 * UNALLOCATED_MAX
    node = launched(ceiling=UsdMicros(hours * HOUR_S * 1_000_000))
    for hour in range(1, hours - 1):
        assert terms(play(node, tick(hour * HOUR_S))) == []
        assert node.runs["job"].run.spend_usd_micros == hour * HOUR_S * 1_000_000
    assert terms([e for hour in (hours - 1, hours) for e in play(node, tick(hour * HOUR_S))]) == ["job"]


def test_a_stream_of_another_run_pays_for_itself_and_the_command_goes_on_to_its_ceiling() -> None:
    node = launched()
    pass_time(node, 100)
    stream(node, "other", 100, STREAMED)
    assert pass_time(node, 110, 101) != []
    assert set(node.runs) == {"job", "other"}
    assert node.runs["job"].run.spend_usd_micros == 105_000_000, "its first 100 s, and half of the rest"
    assert node.runs["job"].run.spend_rate_usd_micros_per_hour == PRICE // 2
    assert node.ledger.spend("other") == charged(node, "other") == 5_000_000
    assert terms(pass_time(node, 1_200, 111)) == ["job"]
    incident = node.runs["job"].incident
    assert incident is not None
    assert incident.rank_processes == (COMMAND,)
    assert node.ledger.spend(UNALLOCATED) == 0


def test_a_stream_beside_that_is_halted_first_leaves_the_command_its_account() -> None:
    node = launched()
    stream(node, "other", 0, STREAMED)
    pass_time(node, 100)
    play(node, OperatorHalt(at(100), "other", "by hand", 0))
    play(node, tick(101))
    assert node.runs["other"].incident is not None
    assert node.runs["job"].is_unattached
    assert node.ledger.spend("other") == charged(node, "other") < 51_000_000


def test_a_stream_under_the_commands_name_or_of_its_process_is_the_command() -> None:
    for name, processes in (("job", ()), ("other", (STREAMED, COMMAND))):
        node = launched()
        pass_time(node, 30)
        stream(node, name, 30, *processes)
        pass_time(node, 60, 31)
        assert list(node.runs) == [name]
        assert (node.ledger.spend(name), charged(node, name)) == (60_000_000, 60_000_000)


def test_a_run_that_paid_beside_the_command_takes_its_account_once_it_says_that_it_is_the_command() -> None:
    for says_hello in (True, False):
        node = launched()
        stream(node, "other", 0)
        pass_time(node, 30)
        if says_hello:
            play(node, hello(0, 30, run="other", world_size=1))
        else:
            stream(node, "other", 30, COMMAND)  # Its pidfile is written by now.
        assert (node.ledger.spend("other"), charged(node, "other")) == (30_000_000, 30_000_000)
        pass_time(node, 60, 31)
        assert list(node.runs) == ["other"]
        assert (node.ledger.spend("other"), node.ledger.spend(UNALLOCATED)) == (60_000_000, 0)


def test_a_halt_of_the_command_has_its_launch_in_the_journal_for_whoever_goes_on_with_it() -> None:
    node, trainer = launched(), ProcessId(4322, 2, "boot-1")
    play(node, OperatorHalt(at(1), "job", "enough", 0))
    incident = node.runs["job"].incident
    assert incident is not None
    incident.note_below(Below((trainer,), (trainer,), unlisted=64))
    below = Below((trainer,), (trainer,), missed=64)  # Nobody knows them any more.
    again = make_node(cloud="none", exclusive=True)
    for _ in range(2):  # Who goes on may be killed too, and has no command of its own.
        restore_incidents(again, [json.loads(json.dumps(incident_snapshot(node, incident)))], at(2), WallNs(at(2)))
        node, incident = again, again.runs["job"].incident
        assert incident is not None
        assert incident.launch == LeftLaunch("job", 1000, (COMMAND,), 0, (), below)
        assert incident.below == below
        again = make_node(cloud="none", exclusive=True)


def test_by_what_all_of_the_command_is_known_is_in_the_journal_until_its_end_is_seen() -> None:
    node, mark = make_node(exclusive=True), 0x9ABCDEF012
    play(node, CommandLaunched(at(0), "job", 1000, (COMMAND,), marks=(mark,), cgroups=("/unit/costgov-job",)), tick(0))
    again = make_node(exclusive=True)
    restore_node(again, json.loads(json.dumps(node_snapshot(node))))
    assert again.previous_command is not None
    assert again.previous_command.launch == LeftLaunch("job", 1000, (COMMAND,), mark, ("/unit/costgov-job",))
    play(node, LauncherExited(at(2)))
    for _ in range(2):  # Who goes on may be killed too.
        again = make_node(exclusive=True)
        restore_node(again, json.loads(json.dumps(node_snapshot(node))))
        assert again.previous_command is None, "its time is over"
        assert again.left == LeftLaunch("job", 1000, (COMMAND,), mark, ("/unit/costgov-job",)), (
            "what it has left is not"
        )
        node = again
    (kept,) = play(node, CommandLeft(at(3), lock=7))
    assert isinstance(kept, PersistRuns)
    assert "left" not in kept.runs[UNALLOCATED]
    assert play(node, CommandLeft(at(4), lock=7)) == []
    again = make_node(exclusive=True)
    for lock in (7, None):
        restore_node(again, json.loads(json.dumps(node_snapshot(node))))
        assert again.ended_lock == lock
        play(node, CommandLeft(at(5)))  # Of a launch whose end was not seen.


def test_a_journal_without_the_mark_and_the_groups_of_its_command_is_read() -> None:
    node = launched()
    snapshot = json.loads(json.dumps(node_snapshot(node)))
    for key in ("uid", "mark", "cgroups"):
        del snapshot["launched"][key]
    restore_node(node, snapshot)
    assert node.previous_command is not None
    assert (node.previous_command.processes, node.previous_command.launch) == ((COMMAND,), None)


def test_the_halt_of_a_run_beside_the_command_has_no_launch() -> None:
    node = launched()
    play(node, hello(0, run="other"), tick(1))
    node.runs["other"].launch.launchers = ()
    play(node, OperatorHalt(at(1), "other", "enough", 0))
    incident = node.runs["other"].incident
    assert incident is not None
    assert "launch" not in incident_snapshot(node, incident)
