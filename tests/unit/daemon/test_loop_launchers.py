"""Who started a rank is looked for in the process table, however often ranks say hello."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from governor.core.base.identity import ConnectionId, Peer, ProcessFacts
from governor.core.base.units import NS_PER_MS, MonoNs
from governor.core.events.inputs import Ack, Hello
from governor.core.events.operators import OperatorHalt
from governor.core.events.streams import StreamOpened
from governor.core.halt.table import HaltState
from governor.daemon.launches import LOOKS_WAITED_FOR_MAX, SPEAKERS_MAX, LaunchLooks, SupervisedCommand
from tests.contract.fakes import FakeProcesses
from tests.fuzz.rig import Rig, default_policies
from trainer_shim import wire

SAFETY_S = 30.0


class CountedProcesses(FakeProcesses):
    looks = 0

    def table(self) -> Mapping[int, ProcessFacts]:
        self.looks += 1
        return super().table()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path, default_policies())
    one.processes = one.daemon.performer.processes = CountedProcesses()
    yield one
    one.end()


def hello(run: str, rank: int = 0) -> bytes:
    frame = {**wire.head("hello", rank, 1), "seq": 1, "run": run, "attempt": "a", "local_rank": rank, "world_size": 8}
    return json.dumps({**frame, "signal": 0}).encode()


def test_a_thousand_hellos_between_two_ticks_cost_one_look_and_one_at_the_tick(rig: Rig) -> None:
    rig.go_on()
    trainers = [rig.inbox.connect(rig.peer(Random(1))) for _ in range(10)]
    for _ in range(100):
        for place, trainer in enumerate(trainers):
            trainer.send(hello(f"run-{place}"))
        rig.go_on()
    assert rig.processes.looks == 1
    rig.clock.advance(300 * NS_PER_MS)
    rig.go_on()
    assert rig.processes.looks == 2


def test_beside_a_crowd_no_frame_waits_for_a_look(rig: Rig) -> None:
    """Whoever says hello in a loop makes the table be read at every tick. It is read beside the loop then."""
    rig.go_on()
    crowd = rig.inbox.connect(rig.peer(Random(1)))
    crowd.send(hello("crowd"))
    rig.go_on()
    looked_by: list[str] = []
    look = rig.processes.table

    def slow() -> Mapping[int, ProcessFacts]:
        looked_by.append(threading.current_thread().name)
        return look()

    rig.processes.table = slow  # type: ignore[method-assign]
    for _ in range(2 * LOOKS_WAITED_FOR_MAX):
        rig.clock.advance(300 * NS_PER_MS)
        crowd.send(hello("crowd"))
        rig.go_on()
        rig.settle()
    waited, beside = looked_by[: LOOKS_WAITED_FOR_MAX - 1], looked_by[LOOKS_WAITED_FOR_MAX - 1 :]
    assert (set(waited), set(beside)) == ({"MainThread"}, {"launchers"})
    assert len(looked_by) == 2 * LOOKS_WAITED_FOR_MAX
    rig.clock.advance(2_000 * NS_PER_MS)
    crowd.send(hello("crowd"))
    rig.go_on()
    assert looked_by[-1] == "MainThread", "the crowd has gone"


def test_the_launcher_of_a_rank_that_came_between_two_looks_is_known_after_the_tick(rig: Rig) -> None:
    rig.go_on()
    first = rig.inbox.connect(rig.peer(Random(1)))
    first.send(hello("first"))
    rig.go_on()
    launcher = rig.processes.add(400, argv=("/usr/bin/torchrun", "train.py"), uid=1000)
    rank = rig.processes.add(401, ppid=400, uid=1000)
    second = rig.inbox.connect(rig.peer(Random(1)).__class__(rank, 1000, 1000))
    second.send(hello("second"))
    rig.go_on()
    assert rig.node.runs["second"].launch.launchers == ()
    rig.clock.advance(300 * NS_PER_MS)
    rig.go_on()
    assert rig.node.runs["second"].launch.launchers == (launcher,)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_who_is_ended_before_a_look_has_ended_is_looked_after_first(rig: Rig, is_under_way: bool) -> None:
    """A NaN behind the hello: its halt may be over within the period. Its marks and strays are known before SIGTERM."""
    rig.go_on()
    first = rig.inbox.connect(rig.peer(Random(1)))
    first.send(hello("first"))
    rig.go_on()
    rank = rig.processes.add(401, uid=1000)
    orphan = rig.processes.add(402, ppid=1, uid=1000)
    second = rig.inbox.connect(rig.peer(Random(1)).__class__(rank, 1000, 1000))
    second.send(hello("second"))
    rig.go_on()
    launch = rig.node.runs["second"].launch
    assert launch.unsure == ()
    released = threading.Event()
    if is_under_way:
        rig.daemon.looks._looks = LOOKS_WAITED_FOR_MAX  # Beside a crowd.
        look, main = rig.processes.table, threading.current_thread()
        rig.processes.table = lambda: look() if threading.current_thread() is main else wait(released)  # type: ignore[method-assign]
        rig.clock.advance(300 * NS_PER_MS)
        rig.daemon.looks.tick()
        assert launch.unsure == ()
    at = rig.clock.mono()
    rig.daemon.apply(OperatorHalt(at, "second", "broken", 1000))
    incident = rig.node.runs["second"].incident
    assert incident is not None
    rig.daemon.apply(Ack(at, second.connection, "second", 0, 2, incident.incident_id, "failed", reason="no engine"))
    assert incident.halt.stage is HaltState.TERMED
    assert orphan in launch.unsure
    released.set()
    rig.settle()


@pytest.fixture
def no_thread() -> Iterator[None]:
    """Each needs a stack of a size that no machine has."""
    before = threading.stack_size(1 << 62)
    yield
    threading.stack_size(before)


@pytest.mark.usefixtures("no_thread")
def test_without_a_thread_the_loop_looks_itself_also_beside_a_crowd(rig: Rig) -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threading.Thread(target=print).start()
    rig.go_on()
    launcher = rig.processes.add(400, argv=("/usr/bin/torchrun", "train.py"), uid=1000)
    rank = rig.processes.add(401, ppid=400, uid=1000)
    trainer = rig.inbox.connect(rig.peer(Random(1)).__class__(rank, 1000, 1000))
    rig.daemon.looks._looks = LOOKS_WAITED_FOR_MAX
    rig.daemon.looks._looked_at = rig.clock.mono()
    trainer.send(hello("one"))
    rig.go_on()
    rig.clock.advance(300 * NS_PER_MS)
    rig.go_on()
    assert rig.node.runs["one"].launch.launchers == (launcher,)


def test_so_many_ranks_of_other_users_are_remembered_and_each_is_judged(rig: Rig) -> None:
    """Whoever connects, says hello and leaves, again and again, makes no list of ours grow."""
    command = rig.processes.add(200, argv=["sh", "job.sh"], uid=0)
    looks = LaunchLooks(
        rig.daemon.performer, lambda: SupervisedCommand("job", (), (command,), uid=0), lambda call: call(),
        lambda *_: None,
    )  # fmt: skip
    introduced = []
    for number in range(SPEAKERS_MAX + 8):
        rank = rig.processes.add(10_000 + number, ppid=200 if number % 2 else 1, uid=1000)
        said = Hello(MonoNs(1), ConnectionId(number), Peer(rank, 1000), 1, "job", "a", 0, 0, 1)
        introduced.append(looks.introduced(said).of_command)
        assert len(looks._of_command) <= SPEAKERS_MAX
        assert looks.introduced(said).of_command is introduced[-1]
    assert introduced == [bool(number % 2) for number in range(SPEAKERS_MAX + 8)]


def test_a_log_that_opens_is_the_commands_where_the_process_table_says_so(rig: Rig) -> None:
    command = rig.processes.add(200, argv=["sh", "job.sh"], uid=1000)
    below, stranger = rig.processes.add(201, ppid=200, uid=1000), rig.processes.add(300, uid=1000)
    supervised: list[SupervisedCommand | None] = [SupervisedCommand("job", (), (command,), uid=1000)]
    looks = LaunchLooks(rig.daemon.performer, lambda: supervised[0], lambda call: call(), lambda *_: None)
    for process, expected in ((below, True), (stranger, False)):
        opened = StreamOpened(MonoNs(1), "log", 1000, None, {}, (process,), of_command=not expected)
        assert looks.attributed(opened).of_command is expected
    supervised[0] = None
    assert looks.attributed(opened) is opened, "under a service nobody is asked"


def wait(released: threading.Event) -> Mapping[int, ProcessFacts]:
    released.wait(SAFETY_S)
    return {}
