"""Who computes on the GPUs, and who of them stands below the launched command."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from governor.adapters.machine.gpu_watch import LOOK_PERIOD_NS, GpuWatch
from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.policy import Budget, PolicySet
from governor.core.base.units import MonoNs, UsdMicros
from governor.core.events.hardware import UNTOLD, GpuFigures
from governor.core.events.inputs import CommandLaunched
from governor.core.events.machine import GpuProcessesSeen, GpuSample
from governor.core.halt.table import StopTarget
from governor.ports import GpuReading
from tests.contract.fakes import FakeGpus, FakeProcesses
from tests.unit.core.engine.test_step import at, make_node, play, rule, tick

LAUNCHER, WORKER, ORPHAN, STRANGER, UNSEEN = 500_001, 500_003, 500_004, 500_005, 500_006


class Blind(FakeProcesses):
    def facts(self, pid: int) -> ProcessFacts | None:
        raise OSError(errno.EMFILE, "Too many open files")


def a_machine(processes: FakeProcesses | None = None) -> tuple[FakeProcesses, ProcessId]:
    """A launcher with a session of its own, a worker two below it, an orphan of its session; and somebody else."""
    known = processes or FakeProcesses()
    command = known.add(LAUNCHER, sid=LAUNCHER)
    known.add(500_002, LAUNCHER)
    known.add(WORKER, 500_002)
    known.add(ORPHAN, 1, sid=LAUNCHER)
    known.add(STRANGER, 1)
    return known, command


def seen(processes: FakeProcesses, *command: ProcessId) -> GpuProcessesSeen:
    gpus = FakeGpus()
    gpus.offer([GpuReading("GPU-1", "H100", 0.9, 1, (WORKER, ORPHAN, STRANGER, UNSEEN))])
    event, _ = GpuWatch(gpus, processes, lambda: command).poll(MonoNs(LOOK_PERIOD_NS))
    gpus.close()
    assert isinstance(event, GpuProcessesSeen)
    assert event.pids == {WORKER, ORPHAN, STRANGER, UNSEEN}
    return event


def test_whoever_stands_below_the_command_or_in_its_session_is_its_own() -> None:
    processes, command = a_machine()
    assert seen(processes, command).own == {WORKER, ORPHAN}


def test_a_service_has_no_command_and_nobody_is_its_own() -> None:
    assert seen(a_machine()[0]).own == frozenset()


def test_whom_we_cannot_look_at_belongs_to_somebody_else() -> None:
    processes, command = a_machine(Blind())
    assert seen(processes, command).own == frozenset()


def test_a_number_that_has_changed_hands_is_not_the_command() -> None:
    processes, command = a_machine()
    assert seen(processes, replace(command, start_ticks=command.start_ticks - 1)).own == frozenset()


@pytest.mark.parametrize(("own", "target"), [({WORKER}, StopTarget.INSTANCE), (set(), StopTarget.PROCESSES)])
def test_auto_stops_the_machine_of_a_command_whose_own_processes_compute_there(
    own: set[int], target: StopTarget
) -> None:
    budget = Budget(ceiling_usd_micros=UsdMicros(600_000_000))
    node = make_node(rule("budget"), budget=budget, exclusive=True, price_usd_micros_per_hour=UsdMicros(3_600_000_000))
    policy = node.policies.policies[0]
    node.policies = PolicySet((replace(policy, halt=replace(policy.halt, stop="auto")),), "digest")
    play(node, CommandLaunched(at(0), "job", 1000, (ProcessId(LAUNCHER, 1, "boot-1"),)), tick(0))
    play(node, GpuProcessesSeen(at(1), frozenset({WORKER}), own=frozenset(own)))
    play(node, *(tick(second) for second in range(1, 600)))
    incident = node.runs["job"].incident
    assert incident is not None
    assert incident.plan.stop is target
    assert node.unannounced_gpu_pids() == {WORKER}, "shown as unwatched in either case"


def test_who_has_left_is_a_tenant_no_more_where_the_kernel_does_not_list_the_devices() -> None:
    """A halt's `stop = "auto"` would leave the machine to a process that is gone."""
    gpus, node = FakeGpus(), make_node()
    watch = GpuWatch(gpus, FakeProcesses(), accelerators=lambda: None)
    for look, pids in enumerate([(STRANGER,), ()]):
        gpus.offer([GpuReading("GPU-1", "H100", 0.0, 1, pids)])
        play(node, watch.poll(MonoNs(LOOK_PERIOD_NS * (look + 1)))[0])
        assert node.foreign_gpu_pids() == set(pids)
        assert node.idle.gpus_problem is not None
    gpus.close()


def test_what_the_gpus_do_is_told_beside_who_computes_on_them() -> None:
    gpus = FakeGpus()
    lost = GpuFigures(is_lost=True)
    gpus.offer(
        [GpuReading("GPU-1", "H100", 0.9, 5, (7, 8), 80), GpuReading("GPU-2", "H100", None, 1, None, None, lost)]
    )
    _, sample = GpuWatch(gpus, FakeProcesses(), accelerators=list).poll(MonoNs(LOOK_PERIOD_NS))
    at = MonoNs(LOOK_PERIOD_NS)
    pids = (frozenset({7, 8}), None)
    assert sample == GpuSample(
        at, None, (0.9, None), ("GPU-1", "GPU-2"), (5, 1), (80, None), pids, (UNTOLD, lost), ("H100", "H100")
    )
    gpus.close()


def test_a_sampler_that_dies_is_told_once_and_that_it_is_back_once() -> None:
    gpus, told = FakeGpus(), list[str | None]()
    watch = GpuWatch(gpus, FakeProcesses(), tell=told.append)
    for number in range(1, 13):
        if number in (3, 9):
            gpus.offer([GpuReading("GPU-1", "H100", 0.9, 1, ())])
        if number == 6:
            gpus.silence("GPU sampler ended with code -9")
        watch.poll(MonoNs(number * LOOK_PERIOD_NS))
    gpus.close()
    assert told == ["GPU sampler ended with code -9", None]
    assert watch.unread is None
