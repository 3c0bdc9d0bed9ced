"""What the machine shows reaches the run that it concerns, and no other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from governor.core.base.findings import Reading
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.model_speed import NO_NAME, SLICED, Peak
from governor.core.base.units import NS_PER_S, DurationNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node
from governor.core.engine.on_sources import own_places
from governor.core.events.effects import Alarm
from governor.core.events.hardware import UNTOLD, GpuFigures
from governor.core.events.inputs import Bye, Disconnected, PhaseChange, Step
from governor.core.events.machine import GpuSample, HostMemory, HostSample, NodeUse, SpotNotice
from governor.core.events.streams import StreamOpened
from governor.core.views.board import take_board
from governor.core.views.machines import machine_status
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick, training

GIB = 1 << 30
IDLE, BUSY = 0.01, 0.97


def sample(**changes: object) -> GpuSample:
    """Two GPUs of the node: nobody is named, both are in use."""
    made = GpuSample(at(9), None, (BUSY, IDLE), ("GPU-a", "GPU-b"), (9 * GIB, 9 * GIB), (80 * GIB, 80 * GIB))
    return replace(made, **changes)  # type: ignore[arg-type]


def uuids(node: Node, run: str = "llama") -> tuple[str, ...] | None:
    gpus = node.runs[run].run.gpus
    return gpus.uuids if gpus is not None else None


def fracs(node: Node) -> tuple[float | None, ...]:
    gpus = node.runs["llama"].run.gpus
    assert gpus is not None
    return gpus.busy_frac


def test_a_run_is_shown_the_gpus_on_which_its_processes_compute() -> None:
    node = make_node()
    engine.step(node, hello())
    engine.step(node, sample(pids=(frozenset({999}), frozenset({100}))))
    assert uuids(node) == ("GPU-b",)
    gpus = node.runs["llama"].run.gpus
    assert gpus is not None
    assert (gpus.run, gpus.busy_frac, gpus.memory_used_bytes) == ("llama", (IDLE,), (9 * GIB,))


def test_a_run_is_told_of_cut_looks_below_its_own_ranks_alone() -> None:
    """Another user's many processes do not make this run's look a cut one."""
    node = make_node()
    engine.step(node, hello())
    own, (other,) = node.runs["llama"].processes()[0], (ProcessId(999, 1, "boot"),)
    for cut, shown in (({own, other}, {own}), ({other}, set())):
        engine.step(node, HostSample(at(9), NodeUse(), cut=frozenset(cut)))
        used = node.runs["llama"].run.host_use
        assert used is not None
        assert used.cut == shown
    engine.step(node, HostSample(at(10), NodeUse(), run="llama", cut=frozenset({other})))  # Replayed.
    used = node.runs["llama"].run.host_use
    assert used is not None
    assert used.cut == {other}


def test_or_those_that_its_ranks_announced() -> None:
    node = make_node()
    engine.step(node, hello(gpu_uuids=("GPU-a",)))
    engine.step(node, sample())
    assert uuids(node) == ("GPU-a",)


def test_a_gpu_that_fell_off_the_bus_stays_with_the_run_that_had_it() -> None:
    """Its processes are seen no more, so nothing else ties it to the run whose fault it explains."""
    node = make_node()
    engine.step(node, hello())
    both = frozenset({100})
    engine.step(node, sample(pids=(both, both), figures=(UNTOLD, UNTOLD)))
    lost = sample(
        at=at(10), busy_frac=(BUSY, None), memory_used_bytes=(9 * GIB, None), pids=(both, None),
        figures=(UNTOLD, GpuFigures(is_lost=True)),
    )  # fmt: skip
    for second in (10, 11):
        engine.step(node, replace(lost, at=at(second)))
        assert uuids(node) == ("GPU-a", "GPU-b")
    gpus = node.runs["llama"].run.gpus
    assert gpus is not None
    assert gpus.is_lost(1)


def test_a_strangers_gpu_that_fell_off_the_bus_is_not_the_runs() -> None:
    node = make_node()
    engine.step(node, hello())
    engine.step(node, sample(pids=(frozenset({100}), frozenset({999})), figures=(UNTOLD, UNTOLD)))
    engine.step(node, sample(pids=(frozenset({100}), None), figures=(UNTOLD, GpuFigures(is_lost=True))))
    assert uuids(node) == ("GPU-a",)


def test_or_all_that_are_in_use_where_it_is_the_only_run() -> None:
    node = make_node()
    engine.step(node, hello())
    engine.step(node, sample(memory_used_bytes=(9 * GIB, GIB // 2)))
    assert fracs(node) == (BUSY,), "an unused GPU is nobody's: it does not starve"
    engine.step(node, sample(pids=(frozenset({999}), frozenset())))
    assert fracs(node) == (IDLE,), "the first is a stranger's"


def test_what_is_only_likely_its_own_is_not_named_as_such() -> None:
    """Beside an idle notebook in another container: of GPUs without names the busiest is judged, as in a log."""
    node = make_node(rule("gpu_starvation", params={"window": 60 * NS_PER_S}))
    engine.step(node, hello())
    engine.step(node, PhaseChange(at(0), ConnectionId(1), "llama", 0, "train", 0))
    for second in range(1, 200):
        engine.step(node, a_step(second))
        engine.step(node, sample(at=at(second)))
        engine.step(node, tick(second))
    assert uuids(node) == ()
    assert node.runs["llama"].rules.findings["r-gpu_starvation"].reading is Reading.QUIET


def test_two_runs_that_nobody_can_tell_apart_are_shown_none() -> None:
    node = make_node()
    engine.step(node, hello())
    engine.step(node, hello(1, run="other", peer=peer(200)))
    engine.step(node, sample())
    assert uuids(node) is uuids(node, "other") is None


def test_a_log_speaks_of_its_own_run_and_has_record_by_it() -> None:
    node = make_node()
    engine.step(node, hello())
    engine.step(node, hello(1, run="other", peer=peer(200)))
    engine.step(node, sample(run="other"))
    assert uuids(node) is None
    assert uuids(node, "other") == ("GPU-a", "GPU-b")
    assert node.runs["other"].run.last_frame_at == at(9)


def test_where_the_driver_is_asked_a_logs_own_word_on_its_gpus_is_not_mixed_with_it() -> None:
    """Both name the same GPUs differently: each would seem idle while the other one spoke."""
    node = make_node(rule("gpu_starvation", params={"window": 60 * NS_PER_S}))
    engine.step(node, StreamOpened(at(0), "log", 1000, processes=(ProcessId(7, 1, "boot-1"),)))
    for second in range(2, 300, 2):
        if second % 20 == 10:
            engine.step(node, GpuSample(at(second - 1), "log", (BUSY, BUSY)))
        if second % 20 == 0:
            engine.step(node, Step(at(second), None, "log", 0, step=second, loss=2.0))
        engine.step(node, sample(at=at(second), busy_frac=(BUSY, BUSY), pids=(frozenset({7}), frozenset({7}))))
        engine.step(node, tick(second))
    assert uuids(node, "log") == ("GPU-a", "GPU-b")
    assert node.runs["log"].rules.findings["r-gpu_starvation"].reading is Reading.QUIET
    engine.step(node, GpuSample(at(500), "log", (IDLE, IDLE)))
    assert uuids(node, "log") == (), "the driver is away"
    assert node.runs["log"].run.last_frame_at == at(500)


def test_a_control_groups_memory_stands_beside_the_machines() -> None:
    node = make_node()
    engine.step(node, hello())
    host, group = HostMemory(at(1), 60 * GIB, 64 * GIB), HostMemory(at(1), GIB, 8 * GIB, "llama", "/job")
    engine.step(node, host)
    engine.step(node, group)
    engine.step(node, replace(group, run="other"))
    run = node.runs["llama"].run
    assert (run.host_memory, run.group_memory) == (host, group)


def test_a_notice_is_said_once_however_often_the_provider_repeats_it() -> None:
    node = make_node()
    engine.step(node, hello())
    said = [
        effect
        for second, action in ((0, None), (5, "terminate"), (10, "terminate"))
        for effect in engine.step(node, SpotNotice(at(second), action, DurationNs((120 - second) * NS_PER_S)))
    ]
    assert [e.text for e in said if isinstance(e, Alarm)] == [
        "the provider takes this spot machine back in 1m 55s (terminate)"
    ]
    notice = node.runs["llama"].run.spot_notice
    assert notice is not None
    assert notice.at == at(10)


def test_what_computes_below_a_command_that_nobody_speaks_for_is_its_own() -> None:
    node = make_node()
    engine.step(node, hello(peer=peer(7)))
    managed = node.runs["llama"]
    managed.launch.named = (ProcessId(7, 1, "boot-1"),)
    shown = sample(pids=(frozenset({8}), frozenset({9})))
    assert own_places(shown, managed, frozenset({9}), is_alone=True) == ([1], True)


def test_attempts_that_trained_to_the_end_are_no_loop() -> None:
    """Short jobs under one name, such as evaluations: each ends well after a step or none."""
    node = make_node(rule("restart_loop"))
    for number in range(5):
        engine.step(node, hello(when=number * 60.0, attempt=f"a{number}", connection=ConnectionId(number + 1)))
        engine.step(node, tick(number * 60.0 + 1))
        end = Bye(at(number * 60.0 + 30), ConnectionId(number + 1), "llama", 0, 2, completed=number != 4)
        engine.step(node, end)
        engine.step(node, Disconnected(at(number * 60.0 + 31), ConnectionId(number + 1)))
    assert node.runs["llama"].rules.findings["r-restart_loop"].reading is Reading.QUIET


def test_the_status_tells_which_gpus_are_taken_for_the_runs_and_nothing_that_is_old() -> None:
    node = make_node()
    engine.step(node, hello(gpu_uuids=("GPU-b",)))
    engine.step(node, sample())
    engine.step(node, HostMemory(at(9), 16 * GIB, 64 * GIB))
    engine.step(node, HostMemory(at(9), GIB, 8 * GIB, "llama", "/job"))
    engine.step(node, SpotNotice(at(9), "stop"))
    run = node.runs["llama"].run
    assert machine_status(run, at(69)) == {
        "gpus": [{"gpu": "GPU-b", "busy_frac": IDLE, "memory_used_bytes": 9 * GIB, "hardware": None}],
        "memory_left_frac": 0.125,
        "memory_of": "/job",
        "taken_back": "stop",
    }
    assert set(machine_status(run, at(69.25)).values()) == {None}


def test_a_log_of_a_run_whose_ranks_speak_counts_nothing_and_judges_nothing() -> None:
    """The command's own output (--log-format) tells the steps that its ranks tell."""
    node = make_node(rule())
    play(node, StreamOpened(at(0), "llama", 1000))
    training(node)
    run = node.runs["llama"].run
    before = run.step, run.tokens_total, node.frames_total, run.stream.phase
    beside = a_step(31, connection=None, when=31, loss=math.nan, tokens=10**6)
    assert play(node, beside, PhaseChange(at(31), None, "llama", None, "eval")) == []
    assert (run.step, run.tokens_total, node.frames_total, run.stream.phase) == before


@pytest.mark.parametrize("goes", ["says nothing", "is lost", "leaves"])
def test_a_rank_that_tells_no_step_or_has_gone_does_not_mute_the_log(goes: str) -> None:
    node = make_node(rule())
    play(node, StreamOpened(at(0), "llama", 1000))
    if goes == "says nothing":
        play(node, hello())
    else:
        training(node)
    ranks = [(rank.rank, rank.connection) for rank in node.runs["llama"].run.ranks.values()]
    step = node.runs["llama"].run.step or 0
    for rank, connection in ranks if goes != "says nothing" else ():
        assert connection is not None
        if goes == "leaves":
            play(node, Bye(at(30.5), connection, "llama", rank, 9))
        play(node, Disconnected(at(30.6), connection))
    tokens = node.runs["llama"].run.tokens_total
    if goes != "says nothing":
        play(node, a_step(step, connection=None, when=30.7, loss=1.0, tokens=10**6))
        assert node.runs["llama"].run.tokens_total == tokens, "its last lines come late"
    play(node, *(a_step(step + n, connection=None, when=31 + n, loss=1.0) for n in range(1, 30)))
    assert node.runs["llama"].run.step == step + 29
    play(node, a_step(step + 30, connection=None, when=61, loss=math.nan))
    assert node.runs["llama"].incident is not None


def test_a_process_without_ranks_that_goes_back_is_judged() -> None:
    """Ranks have gone, and another process goes on from a checkpoint: its lines come long behind them."""
    node = make_node(rule())
    play(node, StreamOpened(at(0), "llama", 1000))
    training(node)
    run = node.runs["llama"].run
    for rank in list(run.ranks.values()):
        assert rank.connection is not None
        play(node, Disconnected(at(30.6), rank.connection))
    first = (run.step or 0) - 10
    play(node, *(a_step(first + n, connection=None, when=60 + n, loss=1.0) for n in range(5)))
    play(node, a_step(first + 5, connection=None, when=66, loss=math.nan))
    assert node.runs["llama"].incident is not None


PEAKS = {"H100": Peak("H100-SXM-80GB", 1_000_000.0)}


def test_status_and_metrics_tell_one_mfu_by_the_names_of_its_gpus() -> None:
    """2 ranks, 1,000 tokens a second, 100 parameters: 600,000 of 2,000,000 operations a second."""
    node = make_node(gpu_peaks=PEAKS)
    play(node, tick(0), *(hello(rank, parameters=100, gpu_uuids=(f"GPU-{'ab'[rank]}",)) for rank in (0, 1)))
    told = run_status(node.runs["llama"], at(0))
    assert (told["mfu"], told["mfu_absent"], told["tokens_per_s_per_gpu"]) == (None, NO_NAME, None)
    play(node, *(PhaseChange(at(0), ConnectionId(rank + 1), "llama", rank, "train") for rank in (0, 1)))
    for number in range(1, 31):
        play(node, a_step(number, 0, tokens=1000), a_step(number, 1), tick(number))
    engine.step(node, sample(at=at(30), names=("H100", "H100")))
    told = run_status(node.runs["llama"], at(30))
    assert told["tokens_per_s"] == pytest.approx(1000)
    assert told["mfu"] == pytest.approx(0.3)
    assert told["mfu_absent"] is None
    assert told["model_flops_per_s"] == pytest.approx(600_000)
    assert told["tokens_per_s_per_gpu"] == pytest.approx(500)
    [metric] = take_snapshot(node, at(30), GovernorHealth(), LagReading(), "").runs
    assert metric.speed._asdict() == {name: told[name] for name in metric.speed._asdict()}
    board = take_board(node, at(30))["runs"][0]
    assert board["mfu"] == told["mfu"]
    engine.step(node, sample(at=at(31), names=("H100", "H100"), figures=(UNTOLD, GpuFigures(is_mig=True))))
    told = run_status(node.runs["llama"], at(31))
    assert (told["mfu"], told["mfu_absent"]) == (None, SLICED)
    assert told["model_flops_per_s"] is not None
