"""Beside the command of `costgov run`: what another user announces on its socket has no part in its affairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.run_names import names_of
from governor.core.base.units import BootNs, WallNs
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.names import release
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm, Kill, Refuse
from governor.core.events.ends import CommandEndSeen
from governor.core.events.inputs import (
    CommandExited,
    CommandLaunched,
    Disconnected,
    Hello,
    LauncherExited,
    TrainerExited,
)
from governor.core.events.operators import OperatorHalt
from governor.core.halt.state import StopTarget
from tests.unit.core.engine.test_launched_command import COMMAND, PRICE, launched, pass_time, stream, terms
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick

STRANGER = 12345


def strangers(node: Node, count: int, when: int = 0) -> None:
    for number in range(count):
        link = ConnectionId(50 + number)
        said = {"run": f"o{number}", "world_size": 1, "connection": link, "peer": peer(900 + number, STRANGER)}
        play(node, hello(0, when, **said))


def ended_at(node: Node) -> list[int]:
    """At which seconds somebody was ended. Each one is played where the ceiling of ten minutes is near."""
    return [second for second in (*range(1, 540, 10), *range(540, 700)) if terms(play(node, tick(second)))]


def test_what_another_user_announces_pays_nothing_and_dilutes_no_ceiling() -> None:
    (alone,) = ended_at(launched())
    for count in (1, 31):
        node = launched()
        strangers(node, count)
        assert ended_at(node) == [alone]
        assert node.ledger.spend("job") == node.ledger.total()
        shown = node.runs["o0"].run
        assert (shown.alive, shown.spend_usd_micros, shown.spend_rate_usd_micros_per_hour) == (True, 0, 0)


def test_beside_strangers_two_trainers_of_the_commands_user_share_the_machine_as_before() -> None:
    node = launched()
    for number, name in enumerate(("a", "b")):
        link, whose = ConnectionId(2 + number), peer(200 + number)
        play(node, hello(0, 0, run=name, world_size=1, connection=link, peer=whose))
    strangers(node, 3)
    pass_time(node, 100)
    assert (node.ledger.spend("a"), node.ledger.spend("b"), node.ledger.total()) == (
        50_000_000,
        50_000_000,
        100_000_000,
    )


def test_a_stranger_that_comes_when_the_command_has_exited_is_none_of_its_ranks() -> None:
    node = launched()
    play(node, hello(0, 1, run="job", world_size=1), LauncherExited(at(2)))
    strangers(node, 1, when=3)
    pass_time(node, 103, 3)
    assert node.runs["o0"].is_strangers
    assert (node.ledger.spend("job"), node.ledger.spend("o0")) == (103_000_000, 0)


def test_a_stranger_stays_one_over_a_restart_until_it_says_hello_again() -> None:
    node = launched()
    strangers(node, 1)
    pass_time(node, 10)
    kept = [run_snapshot(node, managed, at(10)) for managed in node.runs.values()]
    for exclusive in (True, False):
        again = make_node(cloud="none", exclusive=exclusive, price_usd_micros_per_hour=PRICE, boot=10)
        restore_runs(again, kept, BootNs(at(10)), at(10))
        assert again.runs["o0"].is_strangers is exclusive, "a service of the same journal lets it pay"
        pass_time(again, 20, 11)
        assert (again.ledger.spend("o0") > 0) is not exclusive


def test_a_strangers_halt_stops_no_machine_and_no_halt_stops_one_that_a_stranger_uses() -> None:
    for stop in ("instance", "auto"):
        for name, count, expected in (
            ("o0", 1, StopTarget.PROCESSES),
            ("job", 0, StopTarget.INSTANCE),
            ("job", 1, StopTarget.INSTANCE if stop == "instance" else StopTarget.PROCESSES),
        ):
            node = make_node(exclusive=True)
            policy = replace(node.policies.policies[0], halt=replace(node.policies.policies[0].halt, stop=stop))
            node.policies = replace(node.policies, policies=(policy,))
            play(node, CommandLaunched(at(0), "job", 1000, (COMMAND,)), tick(0))
            strangers(node, count)
            play(node, tick(1), OperatorHalt(at(2), name, "enough", 0))
            incident = node.runs[name].incident
            assert incident is not None
            assert incident.plan.stop is expected


def test_a_strangers_hello_under_the_name_of_a_log_takes_nothing_of_the_log() -> None:
    node = launched()
    node.facts = replace(node.facts, streams=frozenset({"log"}))
    play(node, hello(0, 1, run="log", world_size=1, peer=peer(900, STRANGER)))
    assert node.runs[f"log@{STRANGER}"].is_strangers
    stream(node, "log", 2, COMMAND)
    pass_time(node, 10, 2)
    assert node.ledger.spend("log") == node.ledger.total() == 10_000_000


def test_a_command_that_has_ended_well_stops_its_machine_whatever_became_of_a_strangers_run() -> None:
    node = make_node(exclusive=True, survives_stop=True)
    node.policies = replace(node.policies, policies=(replace(node.policies.policies[0], run_on_finish="stop"),))
    play(node, CommandLaunched(at(0), "job", 1000, (COMMAND,)), tick(0))
    strangers(node, 1)
    play(node, tick(1), OperatorHalt(at(2), "o0", "enough", 0), tick(3))
    play(node, LauncherExited(at(4)), TrainerExited(at(4), "job", 0), CommandExited(at(4), "job", 0))
    assert node.idle.finish is not None
    assert node.idle.finish.run == "job"


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_command_whose_name_a_stranger_has_had_begins_without_anything_of_its_run(boot: str) -> None:
    """Beside a command of another name, whose journal this one goes on with."""
    node = launched()
    said = {"run": "next", "world_size": 1, "connection": ConnectionId(50), "peer": peer(900, STRANGER)}
    play(node, hello(0, 1, **said), a_step(900, run="next", when=2, connection=ConnectionId(50)))
    node.runs["next"].run.name_last_good(NamedCheckpoint(900, "/data/evil"), at(2))
    kept = [run_snapshot(node, managed, at(10)) for managed in node.runs.values()]
    again = make_node(cloud="none", exclusive=True, boot_id=boot, price_usd_micros_per_hour=PRICE, boot=10)
    restore_runs(again, kept, BootNs(at(10)), at(10))
    play(again, CommandLaunched(at(10), "next", 1000, (COMMAND,)), tick(10))
    run = again.runs["next"].run
    assert (run.uid, run.last_good, run.step, again.runs["next"].is_unattached) == (1000, None, None, True)
    play(again, hello(0, 11, **said))
    assert again.runs[f"next@{STRANGER}"].is_strangers


@pytest.mark.parametrize("how", ["its name is idle", "its name is nobody's", "a second rank of the attempt"])
def test_a_visit_under_the_scripts_name_does_not_begin_its_ceiling_anew(how: str) -> None:
    """A stranger holds the name, leaves it, and the next attempt of the command's run says it again."""
    node = launched()
    play(node, hello(0, 1, run="exp", world_size=1, connection=ConnectionId(50), peer=peer(900, STRANGER)))
    play(node, hello(0, 2, run="exp", world_size=2), a_step(1, run="exp", when=3))
    pass_time(node, 12, 3)
    assert node.ledger.spend("exp@1000") == 12_000_000
    play(node, Disconnected(at(13), ConnectionId(50)), TrainerExited(at(13), "exp", None))
    if how != "a second rank of the attempt":
        play(node, Disconnected(at(13), ConnectionId(1)), TrainerExited(at(13), "exp@1000", None), tick(13))
    if how == "its name is nobody's":
        release(node, "exp")
    attempt = "a1" if how == "a second rank of the attempt" else "a2"
    effects = play(node, hello(1, 14, run="exp", world_size=2, attempt=attempt, connection=ConnectionId(2)))
    pass_time(node, 20, 14)
    assert "exp" not in node.runs or not node.runs["exp"].run.alive
    assert node.ledger.spend("exp@1000") == node.ledger.total() == 20_000_000
    assert [effect.name for effect in effects if isinstance(effect, Alarm)] == []


def after_its_launcher() -> Node:
    """The launcher has exited, and a trainer that it left imports: nobody has said the command's name yet."""
    node = launched()
    play(node, tick(0.5), LauncherExited(at(0.6)), TrainerExited(at(0.6), "job", None))
    return node


def says_job(when: float, uid: int = STRANGER) -> Hello:
    pid = 900 if uid == STRANGER else 200
    return hello(0, when, run="job", world_size=1, connection=ConnectionId(pid), peer=peer(pid, uid))


def test_a_stranger_does_not_have_the_name_of_a_command_whose_launcher_has_exited() -> None:
    node = after_its_launcher()
    play(node, says_job(0.8), tick(1))
    assert (node.runs["job"].run.uid, node.runs["job"].is_strangers) == (1000, False)
    assert node.runs[f"job@{STRANGER}"].is_strangers
    effects = play(node, says_job(1.2, uid=1000), tick(2))
    assert [e.text for e in effects if isinstance(e, Alarm)] == []
    assert (list(node.runs["job"].run.ranks), "job@1000" in node.runs) == ([0], False)


def test_nor_after_a_run_of_another_name_has_taken_the_commands_time_over() -> None:
    """The stand-in has made way: the command's name is nobody's in memory."""
    node = launched()
    play(node, hello(0, 0.5, run="own", world_size=1), tick(1))
    assert "job" not in node.runs
    play(node, says_job(1.5), Disconnected(at(2), ConnectionId(2)), TrainerExited(at(2), "own", None), tick(3))
    assert node.runs[f"job@{STRANGER}"].is_strangers
    assert "job" not in node.runs


def test_a_commands_end_is_told_of_no_strangers_run_of_its_name() -> None:
    node = after_its_launcher()
    play(node, says_job(0.8))
    (stranger,) = (managed for managed in node.runs.values() if managed.is_strangers)
    del node.runs[stranger.run.run]
    node.runs["job"], stranger.run.run = stranger, "job"  # As an older journal has it.
    effects = play(node, CommandEndSeen(at(2), "job", (COMMAND,), 1))
    assert (effects, node.runs["job"].run.end) == ([], None)


def test_no_stranger_takes_the_name_that_a_rank_of_the_command_falls_back_to() -> None:
    """Five hellos of its were enough: the trainer was refused, and its NaN never judged."""
    node = launched()
    for number, name in enumerate(names_of("exp", 1000)):
        said = {"run": name, "world_size": 1, "connection": ConnectionId(50 + number)}
        play(node, hello(0, 1, **said, peer=peer(900 + number, STRANGER)))
    effects = play(node, hello(0, 2, run="exp", world_size=1), a_step(5, run="exp", when=3, loss=float("nan")))
    assert [e.text for e in effects if isinstance(e, Alarm) and e.name == "hello_refused"] == []
    own = node.runs["exp@1000"]
    assert (own.run.uid, own.is_strangers, own.incident is not None) == (1000, False, True)


def test_the_commands_own_names_may_end_in_any_number() -> None:
    node = launched()
    play(node, hello(0, 1, run=f"exp@{STRANGER}", world_size=1))
    assert not node.runs[f"exp@{STRANGER}"].is_strangers
    play(node, hello(0, 2, run=f"exp@{STRANGER}", world_size=1, connection=ConnectionId(9), peer=peer(9, STRANGER)))
    assert node.runs[f"exp@{STRANGER}@{STRANGER}"].is_strangers


# What the command has made another user's, and what that user has outside of it.
def of_trainers_user(rank: int, *, tied: bool, attempt: str = "a1", run: str = "job") -> Hello:
    whose = peer(800 + rank + 10 * (not tied), STRANGER)
    link = ConnectionId(60 + rank + 10 * (not tied))
    return hello(rank, 1, run=run, world_size=2, attempt=attempt, connection=link, peer=whose, of_command=tied)


@pytest.mark.parametrize("attempt", ["a1", "a2"])
def test_no_process_outside_of_the_command_joins_its_run_though_it_is_of_the_trainers_user(attempt: str) -> None:
    node = launched()
    play(node, of_trainers_user(0, tied=True))
    effects = play(node, of_trainers_user(1, tied=False, attempt=attempt))
    assert [e.text.partition(" (")[0] for e in effects if isinstance(e, Alarm)] == [
        f"run job is the command's; the run of uid {STRANGER} is watched as job@{STRANGER}, and pays nothing"
    ]
    play(node, tick(2))
    assert (list(node.runs["job"].run.ranks), node.runs["job"].is_separate) == ([0], False)
    assert node.runs[f"job@{STRANGER}"].is_strangers
    play(node, a_step(1, run="job", connection=ConnectionId(60), when=3, loss=float("nan")))
    assert node.runs["job"].incident is not None


def test_nor_does_it_take_the_name_when_the_run_has_ended_and_the_command_goes_on() -> None:
    node = launched()
    play(node, of_trainers_user(0, tied=True), Disconnected(at(2), ConnectionId(60)), TrainerExited(at(2), "job", None))
    play(node, of_trainers_user(1, tied=False), tick(3))
    assert node.runs["job"].is_unattached
    assert list(node.runs[f"job@{STRANGER}"].run.ranks) == [1]


def test_a_rank_of_the_command_does_not_join_what_its_user_has_outside_of_it() -> None:
    node = launched()
    play(node, of_trainers_user(0, tied=False, run="own"), of_trainers_user(0, tied=True, run="own"))
    assert node.runs["own"].is_strangers
    assert not node.runs[f"own@{STRANGER}"].is_strangers


def test_it_is_refused_aloud_where_that_user_has_taken_all_its_names() -> None:
    node = launched()
    for number, name in enumerate(names_of("own", STRANGER)):
        said = {"run": name, "world_size": 1, "connection": ConnectionId(80 + number)}
        play(node, hello(0, 1, **said, peer=peer(900 + number, STRANGER)))
    effects = play(node, of_trainers_user(1, tied=True, run="own"))
    assert [e.name for e in effects if isinstance(e, Alarm)] == ["hello_refused"]
    assert all(managed.is_strangers for name, managed in node.runs.items() if name != "job")


def test_a_rank_of_the_command_stays_one_when_it_comes_again_and_cannot_be_looked_at() -> None:
    node = launched()
    play(node, of_trainers_user(0, tied=True))
    play(node, replace(of_trainers_user(0, tied=True), of_command=False))
    assert (f"job@{STRANGER}" in node.runs, node.runs["job"].is_separate) == (False, False)


def test_so_does_one_whose_run_is_watched_under_another_name_than_it_says() -> None:
    node = launched()
    play(node, of_trainers_user(0, tied=False, run="own"), of_trainers_user(0, tied=True, run="own"))
    again = replace(of_trainers_user(0, tied=True, run="own"), connection=ConnectionId(90), of_command=False)
    effects = play(node, again)
    assert [e for e in effects if isinstance(e, Alarm | Refuse)] == []
    own = node.runs[f"own@{STRANGER}"]
    assert (own.is_separate, own.run.ranks[0].connection) == (False, ConnectionId(90))


def test_a_stranger_that_comes_again_is_a_stranger_still() -> None:
    node = launched()
    strangers(node, 1)
    pass_time(node, 10)
    play(node, hello(0, 11, run="o0", world_size=1, connection=ConnectionId(70), peer=peer(900, STRANGER)))
    pass_time(node, 20, 11)
    assert node.runs["o0"].is_strangers
    assert (node.ledger.spend("o0"), node.runs["job"].is_unattached) == (0, True)


def test_of_a_strangers_ranks_the_one_that_is_seen_to_be_the_commands_makes_none_of_the_others_its() -> None:
    node = launched()
    ranks = [
        hello(n, 1, run="o", world_size=2, connection=ConnectionId(50 + n), peer=peer(900 + n, STRANGER))
        for n in (0, 1)
    ]
    play(node, *ranks, replace(ranks[0], connection=ConnectionId(52), of_command=True))
    of = {name: [rank.peer.process.pid for rank in t.run.ranks.values()] for name, t in node.runs.items()}
    assert (of["o"], of[f"o@{STRANGER}"]) == ([901], [900])
    assert (node.runs["o"].is_strangers, node.runs[f"o@{STRANGER}"].is_strangers) == (True, False)
    assert list(node.holders()) == [f"o@{STRANGER}"]


def test_a_strangers_only_rank_that_is_seen_to_be_the_commands_brings_its_run_along() -> None:
    node = launched()
    said = hello(0, 1, run="o", world_size=1, connection=ConnectionId(50), peer=peer(900, STRANGER))
    play(node, said)
    assert node.runs["o"].is_strangers
    play(node, replace(said, connection=ConnectionId(52), of_command=True))
    assert (node.runs["o"].is_strangers, f"o@{STRANGER}" in node.runs) == (False, False)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_strangers_halt_goes_on_when_a_command_of_its_runs_name_is_launched_and_is_none_of_the_commands(
    is_late: bool,
) -> None:
    node = make_node(cloud="none", exclusive=True)
    said = {"run": "next", "world_size": 1, "connection": ConnectionId(50), "peer": peer(900, STRANGER)}
    play(node, CommandLaunched(at(0), "job", 1000, (COMMAND,)), tick(0), hello(0, 1, **said))
    play(node, OperatorHalt(at(2), "next", "enough", 0), tick(3))
    incident = node.runs["next"].incident
    assert incident is not None
    for second in (4, 9):  # The governor that launches the next command, and one that goes on after its failure.
        kept = [run_snapshot(node, managed, at(second)) for managed in node.runs.values()]
        halt = incident_snapshot(node, incident)
        halt["run"] = "next" if is_late else halt["run"]  # Its row was not written again yet.
        node = make_node(cloud="none", exclusive=True, boot=second)
        restore_runs(node, kept, BootNs(at(second)), at(second))
        restore_incidents(node, [halt], at(second), WallNs(at(second)))
        play(node, CommandLaunched(at(second), "next", 1000, (COMMAND,)), tick(second))
        own = node.runs[f"next@{STRANGER}"]
        assert (node.runs["next"].is_unattached, node.runs["next"].incident, own.is_strangers) == (True, None, True)
        assert own.incident is not None
        incident = own.incident
        assert (incident.incident_id, incident.run) == (halt["incident_id"], f"next@{STRANGER}")
    killed = [e for second in range(10, 400) for e in play(node, tick(second)) if isinstance(e, Kill)]
    assert {effect.incident_id for effect in killed} == {incident.incident_id}
    play(node, hello(0, 400, **said))
    assert [rank.peer.process.pid for rank in own.run.ranks.values()] == [900]
