"""Whose collectives count, what DDP's logger is believed, and what is recomputed: without torch."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim import timing
from trainer_shim.engines import hooks
from trainer_shim.engines.waits import torch_comm
from trainer_shim.engines.waits.ddp_comm import READS_MIN, STEPS_BETWEEN_MAX, DdpComm
from trainer_shim.engines.waits.recompute import Recompute
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.tokens import TokenCount

LONG_NS = 10**12  # A step in which no cost shows.


def make_meter() -> StepMeter:
    return StepMeter(Progress(threading.get_ident()), TokenCount(512, None, 1))


def make_comm(meter: StepMeter, graph_task: int = -1, ddp: Any = None) -> torch_comm.TorchComm:
    torch = SimpleNamespace(_C=SimpleNamespace(_current_graph_task_id=lambda: graph_task))
    return torch_comm.TorchComm(torch, meter, ddp)


def in_thread(call: Any) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def told(source: Any, comm_ns: int = 0, step_ns: int = LONG_NS) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    source.put(fields, timing.StepTimes(step_ns, [0] * timing.PARTS_TOTAL, comm_ns))
    return fields


def test_a_collective_counts_once_and_is_where_the_thread_is() -> None:
    meter = make_meter()
    comm = make_comm(meter)
    me = threading.get_ident()

    def outer() -> str:
        assert not comm.counts(me), "what one collective calls is a part of it"
        assert meter.progress.collective is not None
        assert meter.progress.collective[::2] == ("all_reduce", False)
        return "reduced"

    assert comm.call(me, "all_reduce", outer, (), {}) == "reduced"
    assert meter.progress.collectives_total == 1
    assert meter.clock.comm_ns > 0
    assert told(comm, 4_000) == {"comm_s": 4e-6}
    assert told(comm) == {"comm_s": 0.0}, "it was looked for, and there was none"


def test_steps_without_a_collective_say_so_once_one_was_seen() -> None:
    """Weights that are averaged each tenth step: what the others tell is that they had none."""
    comm = make_comm(make_meter())
    assert told(comm) == {}, "perhaps nothing of this training can be seen"
    comm.call(threading.get_ident(), "all_reduce", int, (), {})
    assert told(comm, 4_000) == {}, "the steps before told nothing, and are none like it"
    assert told(comm) == {"comm_s": 0.0}
    comm.call(threading.get_ident(), "all_reduce", int, (), {})
    assert told(comm, 4_000) == {"comm_s": 4e-6}


def test_what_is_between_the_passes_is_told_as_that() -> None:
    comm, fields = make_comm(make_meter()), {"forward_s": 1.0}
    comm.call(threading.get_ident(), "all_reduce", int, (), {})
    comm.put(fields, timing.StepTimes(LONG_NS, [0] * timing.PARTS_TOTAL, 9_000, 5_000))
    assert fields == {"forward_s": 1.0, "comm_s": 9e-6, "comm_between_s": 5e-6}


def test_the_error_of_a_collective_is_the_scripts_own() -> None:
    comm = make_comm(make_meter())

    def fail() -> None:
        raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        comm.call(threading.get_ident(), "barrier", fail, (), {})
    assert comm.counts(threading.get_ident())


@pytest.mark.parametrize(("graph_task", "counts"), [(-1, False), (3, True)])
def test_of_other_threads_those_of_a_backward_pass_count(graph_task: int, counts: bool) -> None:
    comm, found = make_comm(make_meter(), graph_task), []
    in_thread(lambda: found.append(comm.counts(threading.get_ident())))
    assert found == [counts]


def test_once_closed_nothing_counts() -> None:
    comm = make_comm(make_meter())
    comm.close()
    assert not comm.counts(threading.get_ident())


def test_no_more_is_told_than_the_step_has_taken() -> None:
    comm = make_comm(make_meter())
    comm.call(threading.get_ident(), "barrier", int, (), {})
    assert told(comm, comm_ns=9_000, step_ns=5_000) == {"comm_s": 5e-6}


class Ddp:
    """The part of DistributedDataParallel that is asked; `wait()` plays a pass whose gradients were reduced."""

    reducer = "C++"

    def __init__(self) -> None:
        self.require_backward_grad_sync = True
        self.rates: list[int] = []
        self.hooks: list[Any] = []
        self.reads = 0
        self._now: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self.logger = self

    def modules(self) -> list[Any]:
        return [self]

    def register_forward_pre_hook(self, hook: Any) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rates.append(rate)

    def set_runtime_stats_and_log(self) -> None:
        self._shown = dict(self._now)

    def _get_ddp_logging_data(self) -> Any:
        self.reads += 1
        return SimpleNamespace(ints_map=self._shown)

    def run(self, exposed_ns: int) -> None:
        for hook in self.hooks:
            hook(self, ())
        self._now = {
            "backward_comm_time": exposed_ns + 50,
            "backward_compute_comm_overlap_time": 50,
            "backward_comm_time_end": self._now.get("backward_comm_time_end", 0) + 1_000,
        }


def make_ddp() -> tuple[Ddp, DdpComm, hooks.Undo]:
    torch = SimpleNamespace(nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=Ddp)))
    ddp, undo = Ddp(), hooks.Undo()
    return ddp, DdpComm(torch, ddp, make_meter(), undo), undo


def test_each_pass_of_ddp_is_read_once() -> None:
    ddp, comm, _ = make_ddp()
    ddp.run(700)
    assert comm.take(LONG_NS) == 700
    ddp.run(300)
    ddp.run(400)
    assert comm.take(LONG_NS) == 700, "two micro-steps that are both reduced"
    assert comm.take(LONG_NS) == 0, "no pass began"
    for hook in ddp.hooks:
        hook(ddp, ())
    assert comm.take(LONG_NS) is None, "a pass, and the figures of the last one again"


def test_a_micro_step_that_is_not_reduced_is_not_read() -> None:
    ddp, comm, _ = make_ddp()
    ddp.require_backward_grad_sync = False
    for hook in ddp.hooks:
        hook(ddp, ())
    reads, ddp.require_backward_grad_sync = ddp.reads, True
    ddp.run(300)
    assert ddp.reads == reads
    assert comm.take(LONG_NS) == 300


def test_a_step_of_no_sync_has_read_that_there_was_none() -> None:
    ddp, comm, _ = make_ddp()
    ddp.require_backward_grad_sync = False
    for hook in ddp.hooks:
        hook(ddp, ())
    assert comm.take(LONG_NS) == 0, "so it is before the first one that was reduced"
    ddp.require_backward_grad_sync = True
    ddp.run(300)
    assert comm.take(LONG_NS) == 300
    ddp.require_backward_grad_sync = False
    for hook in ddp.hooks:
        hook(ddp, ())
    assert comm.take(LONG_NS) == 0


def test_a_pass_in_which_it_was_found_may_not_be_timed_any_more() -> None:
    ddp, model = Ddp(), Ddp()
    of_ddp = type("OfDdp", (Ddp,), {"_active_ddp_module": ddp})
    torch = SimpleNamespace(nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=of_ddp)))
    ddp.modules = lambda: [ddp, model]  # type: ignore[method-assign]
    comm = DdpComm(torch, model, make_meter(), hooks.Undo())
    for hook in model.hooks:
        hook(model, ())
    assert (comm.is_there, comm.take(LONG_NS)) == (True, None)
    ddp.run(300)
    assert comm.take(LONG_NS) == 300


def test_where_reading_costs_more_than_a_hundredth_only_some_steps_are_read() -> None:
    ddp, comm, undo = make_ddp()
    for _ in range(READS_MIN):
        assert ddp.rates == [1]
        ddp.run(1)
        assert comm.take(1) == 1  # Of a nanosecond: each costs more. The first ones tell how much.
    for _ in range(STEPS_BETWEEN_MAX - 1):
        assert ddp.rates == [1, 100]
        ddp.run(1)
        assert comm.take(1) is None
    assert ddp.rates == [1, 100, 1]
    ddp.run(7)
    assert comm.take(1) == 7
    undo()
    assert ddp.rates[-1] == 100
    assert ddp.hooks == []


def test_a_step_whose_gradients_were_not_timed_has_no_figure_whatever_else_was_seen() -> None:
    ddp, reads, _ = make_ddp()
    comm = make_comm(make_meter(), ddp=reads)
    comm.call(threading.get_ident(), "barrier", int, (), {})
    for hook in ddp.hooks:
        hook(ddp, ())
    assert told(comm, 4_000) == {}
    comm.call(threading.get_ident(), "barrier", int, (), {})
    ddp.run(3_000)
    assert told(comm, 4_000) == {"comm_s": 7e-6}


def test_a_recomputation_counts_without_the_collectives_in_it() -> None:
    meter = make_meter()
    found = Recompute(meter)
    meter.clock.switch(timing.BACKWARD)
    assert told(found) == {}, "nothing was seen yet"

    def stop() -> None:
        meter.clock.add_comm(LONG_NS)
        raise StopIteration  # As torch ends it once all is there that is needed.

    with pytest.raises(StopIteration):
        found.timed(stop)()
    assert told(found) == {"recompute_s": 0.0}
    inner = found.timed(int)
    assert found.timed(inner)() == 0
    assert 0 <= told(found)["recompute_s"] < 1


def test_what_an_evaluation_computes_again_is_none_of_the_training() -> None:
    meter = make_meter()
    found = Recompute(meter)
    meter.clock.switch(timing.EVAL)
    found.timed(int)()
    assert told(found) == {}
