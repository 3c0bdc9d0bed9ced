"""What stands between a verdict and the bell: one commit, and nobody's report."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId, Peer, ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_S, DurationNs, WallNs
from governor.core.engine.incident_json import incident_snapshot
from governor.core.events.checkpoints import CheckpointLook, CheckpointSeen
from governor.core.events.effects import Ask, Kill, PersistIncident, PersistRuns, Record, Term
from governor.core.events.inputs import CommandLaunched, LaunchersSeen
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.halt.adopted import Adoption
from governor.core.halt.incident import OTHER_USER
from governor.core.halt.left_launch import process_row
from governor.daemon.observers import Observers
from governor.daemon.perform import Performer
from governor.daemon.process_killer import ProcessKiller
from governor.ports import Row, Sent
from governor.text.moments import moments
from tests.contract.fakes import FakeClock, FakeInbox, FakeJournal, FakeProcesses, FakeTrainer
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick


class Disk(FakeJournal):
    """Notes each wait for the disk, with the letters that had been sent by then."""

    def __init__(self, trainers: list[FakeTrainer]) -> None:
        super().__init__()
        self.waits: list[list[int]] = []
        self.halts: list[Mapping[str, Any]] = []
        self._trainers = trainers

    def save_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool:
        self.halts.append(snapshot)
        return super().save_incident(incident_id, snapshot, rows)

    def append(self, rows: Iterable[Row], *, full: bool) -> bool:
        if full:
            self.waits.append([len(trainer.letters) for trainer in self._trainers])
        return super().append(rows, full=full)


class Reader:
    """An observer that notes which trainers had their letter, and their bell, when it was told."""

    def __init__(self, trainers: list[FakeTrainer], processes: FakeProcesses) -> None:
        self._trainers = trainers
        self._processes = processes
        self.told: list[tuple[str, list[int], list[int]]] = []

    def tick(self, node: Any, at: Any) -> None:
        pass

    def alarm(self, name: str, run: str | None, text: str) -> None:
        pass

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        letters = [len(trainer.letters) for trainer in self._trainers]
        rings = [len(process.received) for process in self._processes.by_pid.values()]
        self.told.append((str(snapshot["halt_stage"]), letters, rings))


class NoFiles:
    def prepare(self) -> None:
        pass

    def weigh(self, path: str, *, uid: int, gid: int | None) -> tuple[int | None, str]:
        raise AssertionError("nobody charges for one")

    def find(self, paths: Sequence[str], *, uid: int, gid: int | None) -> list[CheckpointSeen]:
        raise AssertionError("nobody tells of one")

    def read(self, path: str, manifest: str, *, uid: int, gid: int | None) -> CheckpointLook:
        raise AssertionError("nobody has saved")


class Bench:
    """Hands over fakes, with two ranks that have said hello."""

    def __init__(self, cloud: str | None = None, processes: FakeProcesses | None = None) -> None:
        clock, self.processes, inbox = FakeClock(), processes or FakeProcesses(), FakeInbox()
        catches = frozenset((int(signal.SIGUSR1),))
        ranks = [self.processes.add(100 + rank, catches=catches, dies_of=frozenset()) for rank in range(2)]
        self.trainers = [inbox.connect(Peer(process, 1000)) for process in ranks]
        self.node = make_node() if cloud is None else make_node(cloud=cloud)
        self.journal = Disk(self.trainers)
        self.reader = Reader(self.trainers, self.processes)
        play(self.node, tick(0))
        for rank, trainer in enumerate(self.trainers):
            play(self.node, replace(hello(rank), connection=trainer.connection, peer=trainer.peer))
        self.performer = Performer(
            self.node, clock, inbox, self.processes, self.journal, NoFiles(), Observers([self.reader]),
            ProcessKiller(self.processes, 1), post=lambda _event: None,
        )  # fmt: skip


def test_a_verdict_waits_for_the_disk_once_and_before_the_first_letter() -> None:
    bench = Bench()
    play(bench.node, a_step(1), a_step(1, rank=1))
    effects = play(bench.node, a_step(2, loss=float("nan")))
    durable = [e for e in effects if isinstance(e, PersistIncident) or (isinstance(e, Record) and e.durable)]
    assert len(durable) > 1, "more than one thing of this halt must be on disk"
    bench.performer.perform(effects)
    assert bench.journal.waits == [[0, 0]]
    assert [row.kind for row in bench.journal.rows()] == ["verdict", "transition", "effect"]
    assert [json.loads(trainer.letters[0])["kind"] for trainer in bench.trainers] == ["letter", "letter"]
    assert bench.journal.open_incidents()[0]["halt_stage"] == "ASKED"


def test_the_audit_of_an_operators_halt_is_in_the_same_commit() -> None:
    bench = Bench()
    play(bench.node, a_step(1), a_step(1, rank=1))
    bench.performer.perform(play(bench.node, OperatorHalt(at(2), "llama", "enough", 0)))
    assert bench.journal.waits == [[0, 0]]
    assert [row.kind for row in bench.journal.rows()][:2] == ["operator", "transition"]


def test_observers_hear_of_a_halt_when_every_rank_has_been_rung() -> None:
    bench = Bench()
    play(bench.node, a_step(1), a_step(1, rank=1))
    bench.performer.perform(play(bench.node, a_step(2, loss=float("nan"))))
    assert bench.reader.told == [("ASKED", [1, 1], [1, 1])]


def test_what_was_signalled_is_on_disk_at_once() -> None:
    """A governor that resumes this halt ends it, and serves the halt before the name is launched again."""
    bench = Bench()
    child = bench.processes.add(200, ppid=100, uid=1000)
    play(bench.node, a_step(1), a_step(1, rank=1))
    bench.performer.perform(play(bench.node, a_step(2, loss=float("nan"))))
    incident = bench.node.runs["llama"].incident
    assert incident is not None
    bench.performer.perform([Term(incident.incident_id, "llama")])
    (kept,) = bench.journal.open_incidents()
    assert child.pid in [row["pid"] for row in kept["targets"]]


def test_what_stands_behind_an_act_is_not_committed_before_it() -> None:
    bench = Bench()
    ask = Ask("i-1", "llama", "good", at(9), False, "r")
    first, second = (Record("operator", "llama", None, {"n": n}, durable=True) for n in (1, 2))
    bench.performer.perform([first, ask, second])
    assert bench.journal.waits == [[0, 0], [1, 1]]


@pytest.mark.parametrize(("is_shared", "left"), [(True, True), (False, OTHER_USER)])
def test_a_launcher_of_another_user_is_left_for_that_alone_unless_another_run_stands_below(
    is_shared: bool, left: object
) -> None:
    bench = Bench()
    sudo = bench.processes.add(50, argv=["sudo", "job.sh"], start_ticks=1, uid=0)
    other = bench.processes.add(300, ppid=50, start_ticks=5_000)
    play(bench.node, replace(hello(0, run="other", connection=ConnectionId(900)), peer=Peer(other, 1000)))
    play(bench.node, LaunchersSeen(at(0), "llama", (sudo,)), a_step(1), a_step(1, rank=1))
    if is_shared:
        play(bench.node, LaunchersSeen(at(0), "other", (sudo,)))
    play(bench.node, OperatorHalt(at(2), "llama", "enough", 0))
    incident = bench.node.runs["llama"].incident
    assert incident is not None
    bench.performer.term(Term(incident.incident_id, "llama"))
    assert [row.get("left") for row in incident.targets if row["pid"] == 50] == [left]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_halt_notes_the_launcher_that_it_leaves_to_another_run_and_no_other(is_shared: bool) -> None:
    bench = Bench()
    launcher = bench.processes.add(50, argv=["sh", "job.sh"], start_ticks=1)
    other = bench.processes.add(300, ppid=50 if is_shared else 1, start_ticks=5_000)
    for pid in (100, 101):
        bench.processes.by_pid[pid].facts = replace(bench.processes.by_pid[pid].facts, ppid=50)
    whose = Peer(other, 1000)
    play(bench.node, replace(hello(0, run="other", connection=ConnectionId(900)), peer=whose))
    play(bench.node, LaunchersSeen(at(0), "llama", (launcher,)), a_step(1), a_step(1, rank=1))
    play(bench.node, OperatorHalt(at(2), "llama", "enough", 0))
    incident = bench.node.runs["llama"].incident
    assert incident is not None
    bench.performer.term(Term(incident.incident_id, "llama"))
    assert [row.get("left") for row in incident.targets if row["pid"] == 50] == [True if is_shared else None]
    incident.note_left([], [launcher])
    assert not any("left" in row for row in incident.targets)


def test_sigkill_is_told_of_those_alone_that_it_has_reached() -> None:
    """It named all that SIGTERM had ended before."""
    bench = Bench(cloud="none")
    play(bench.node, a_step(1), a_step(1, rank=1), OperatorHalt(at(2), "llama", "enough", 0))
    bench.processes.by_pid[100].dies_of = frozenset({signal.SIGTERM})
    incident = bench.node.runs["llama"].incident
    assert incident is not None
    incident.note(at(3), WallNs(0), "term")
    bench.performer.term(Term(incident.incident_id, "llama"))
    incident.note(at(4), WallNs(0), "kill")
    bench.performer.kill(Kill(incident.incident_id, "llama"))
    told = {moment.what: moment.text for moment in moments(incident_snapshot(bench.node, incident))}
    assert (told["term"], told["kill"]) == ("2 ranks", "rank")


def test_a_signal_that_was_not_sent_is_told_as_not_sent_until_it_is() -> None:
    """As without root, where `sudo` has made the rank another user's."""
    bench = Bench(cloud="none")
    play(bench.node, a_step(1), a_step(1, rank=1))
    for pid in (100, 101):
        bench.processes.by_pid[pid].deniable = True
    bench.performer.perform(play(bench.node, OperatorHalt(at(2), "llama", "enough", 0)))
    told: list[tuple[str, list[object]]] = []

    def pass_time(first: int, last: int) -> None:
        for second in range(first, last):
            bench.performer.perform(play(bench.node, tick(second)))
            (shown,) = bench.journal.open_incidents()
            signals = [entry["detail"].get("unsent") for entry in shown["timeline"] if entry["what"] == "kill"]
            told.append((shown["halt_stage"], signals))

    pass_time(3, 200)
    shown = [signals for stage, signals in told if stage == "NEEDS_HUMAN"]
    assert shown
    assert all(None not in signals for signals in shown)
    for pid in (100, 101):
        bench.processes.by_pid[pid].deniable = False
    pass_time(200, 800)
    signals = told[-1][1]
    assert (signals[-1], None in signals[:-1]) == (None, False), "the earlier ones were not sent"


def test_an_incident_that_is_not_durable_is_marked_and_its_halt_goes_on() -> None:
    bench = Bench()
    bench.journal.is_stuck = True
    play(bench.node, a_step(1), a_step(1, rank=1))
    bench.performer.perform(play(bench.node, a_step(2, loss=float("nan"))))
    incident = bench.node.runs["llama"].incident
    assert incident is not None
    assert incident.undurable
    assert [len(trainer.letters) for trainer in bench.trainers] == [1, 1]


def test_an_operators_hold_is_kept_as_durably_as_the_record_of_it() -> None:
    """As chatter it would be lost beside a disk that has been full for long."""
    bench = Bench()
    bench.performer.perform(play(bench.node, OperatorHold(at(1), "llama", DurationNs(100 * NS_PER_S), "debugging", 0)))
    assert len(bench.journal.waits) == 2
    assert bench.journal.runs()["llama"]["hold_until"] == at(101)


def test_a_window_is_kept_in_the_commit_of_its_meter() -> None:
    bench = Bench()
    record = Record("window", "llama", None, {"to_tokens": 7})
    bench.performer.perform([PersistRuns({"llama": {"tokens": 7}}, (), (record,))])
    assert bench.journal.runs() == {"llama": {"tokens": 7}}
    assert [(row.kind, row.run, row.data) for row in bench.journal.rows()] == [("window", "llama", {"to_tokens": 7})]


def with_helper(processes: FakeProcesses | None = None) -> tuple[Bench, ProcessId]:
    """A command with a helper of another user, which nothing but its place ties to the command."""
    bench = Bench(processes=processes)
    bench.processes.add(999, uid=0)
    command = bench.processes.add(700, ppid=999, sid=700, uid=0, mark=5)
    helper = bench.processes.add(701, ppid=700, uid=2002)
    adoption = Adoption(999, 700, 5, command.start_ticks, is_ours_alone=True, uid=0)
    bench.performer.process_killer.attend(None, None, adoption)
    play(bench.node, CommandLaunched(at(0), "llama", 0, (command,)), LaunchersSeen(at(0), "llama", (command,), ()))
    play(bench.node, a_step(1), a_step(1, rank=1))
    return bench, helper


class Watched(FakeProcesses):
    """Notes at each signal what the journal has of the halt, and cannot be read so many times."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: FakeJournal | None = None
        self.on_disk: list[Any] = []
        self.unreadable = 0

    def send(self, target: ProcessId, signum: signal.Signals) -> Sent:
        assert self.journal is not None
        self.on_disk.append(self.journal.open_incidents()[0]["launch"]["below"])
        return super().send(target, signum)

    def table(self) -> dict[int, ProcessFacts]:
        if self.unreadable:
            self.unreadable -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().table()


@pytest.mark.parametrize("unreadable", [0, 2, 3, 4])
def test_who_is_below_the_command_is_in_the_journal_before_the_first_signal_that_ends(unreadable: int) -> None:
    """costgov was killed behind its signals: an end of all was claimed with every process of another user alive.

    However often the table cannot be read: what is signalled was looked below, in the same table.
    """
    processes = Watched()
    bench, helper = with_helper(processes)
    processes.journal, processes.unreadable = bench.journal, unreadable
    bench.node.runs["llama"].run.ranks.clear()  # Nobody is asked: it begins with SIGTERM.
    bench.performer.perform(play(bench.node, OperatorHalt(at(2), "llama", "enough", 0)))
    assert bool(processes.on_disk) == (not unreadable)
    for second in range(3, 7):
        bench.performer.scan(at(second))
    assert bench.journal.halts[0]["halt_stage"] == "TERMED"
    assert bool(bench.journal.halts[0]["launch"].get("below_never_looked")) == bool(unreadable)
    assert processes.on_disk
    assert processes.on_disk[0] == [process_row(helper)]


def test_what_has_begun_since_is_in_the_journal_before_sigkill() -> None:
    bench, helper = with_helper()
    bench.performer.perform(play(bench.node, a_step(2, loss=float("nan"))))
    later = bench.processes.add(702, ppid=700, uid=2003)
    incident = bench.node.runs["llama"].incident
    assert incident is not None
    bench.journal.halts.clear()
    bench.performer.perform([Kill(incident.incident_id, "llama")])
    assert bench.journal.halts[0]["launch"]["below"] == [process_row(helper), process_row(later)]
    assert not any("sent" in row for row in bench.journal.halts[0]["targets"])


def test_who_is_below_the_command_is_in_the_journal_once_the_ranks_are_asked_to_save() -> None:
    """costgov may be killed while they do. What it has below it by then goes to init."""
    bench, helper = with_helper()
    bench.performer.perform(play(bench.node, a_step(2, loss=float("nan"))))
    assert bench.journal.waits == [[0, 0], [1, 1]], "the ranks do not wait for it"
    (kept,) = bench.journal.open_incidents()
    assert (kept["halt_stage"], kept["launch"]["below"]) == ("ASKED", [process_row(helper)])
