"""PipelineEngine: every instruction of the schedule passes through `_INSTRUCTION_MAP`, and train_batch() is the step.

The map is copied onto the instance: other engines keep theirs. On this engine micro_steps stays 0, forward, backward
and step raise, and wall_clock_breakdown crashes. None of them is used.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List
from weakref import ref

from trainer_shim import timing
from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter

from . import hooks
from .deepspeed_engine import DeepSpeedFacts, DeepSpeedKind, instrument_modes_and_checkpoints

PARTS_BY_INSTRUCTION = {
    "LoadMicroBatch": timing.DATA,
    "ForwardPass": timing.FORWARD,
    "BackwardPass": timing.BACKWARD,
    "OptimizerStep": timing.OPTIMIZER,
    "ReduceGrads": timing.OPTIMIZER,
    "ReduceTiedGrads": timing.OPTIMIZER,
    # A stage that is early waits in these, and in the collectives of all stages.
    "SendActivation": timing.BUBBLE,
    "RecvActivation": timing.BUBBLE,
    "SendGrad": timing.BUBBLE,
    "RecvGrad": timing.BUBBLE,
}


class PipelineKind(DeepSpeedKind):
    """A PipelineEngine."""

    def hello_fields(self) -> Dict[str, Any]:
        fields = super().hello_fields()
        fields["framework"] = "pipeline"
        del fields["parameters"]  # This stage's share only.
        return fields

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        return instrument(self._engine, meter, meter.boundary)


def instrument(engine: Any, meter: StepMeter, at_boundary: Callable[[], None]) -> hooks.Undo:
    """Hook `engine`; `at_boundary` is called after each train_batch(), on the training thread."""
    undo = hooks.Undo()
    facts = DeepSpeedFacts(engine)
    own = vars(engine).get("_INSTRUCTION_MAP")
    engine._INSTRUCTION_MAP = {
        instruction: _timed(meter, instruction.__name__, execute)
        for instruction, execute in engine._INSTRUCTION_MAP.items()
    }
    known = ref(engine)
    undo.add(lambda: _restore_map(known(), own))
    hooks.replace(undo, engine, "train_batch", hooks.around(_train_batch, engine, meter, facts, at_boundary))
    hooks.replace(undo, engine, "eval_batch", hooks.around(_eval_batch, meter))
    instrument_modes_and_checkpoints(engine, meter, facts, undo, _groups_of_stages(engine))
    meter.time_loader()  # LoadMicroBatch times the wait exactly.
    return undo


def _groups_of_stages(engine: Any) -> List[Any]:
    """Return the process groups in which a stage waits for other stages: at its loss, its norm and tied weights."""
    found = [getattr(engine.grid, name, None) for name in ("pp_proc_group", "ds_model_proc_group")]
    found.extend(tied.get("group") for tied in getattr(engine.module, "tied_comms", {}).values())
    return [group for group in found if group is not None]


def _restore_map(engine: Any, own: Any) -> None:
    if engine is None:
        return  # The script has dropped it.
    if own is None:
        del engine._INSTRUCTION_MAP
    else:
        engine._INSTRUCTION_MAP = own


def _timed(meter: StepMeter, name: str, execute: Callable[..., Any]) -> Callable[..., Any]:
    part = PARTS_BY_INSTRUCTION.get(name, timing.OTHER)
    hook = "pipe:" + name
    is_load = name == "LoadMicroBatch"

    @functools.wraps(execute)
    def timed(engine: Any, *args: Any, **kwargs: Any) -> Any:
        left = meter.enter_instruction(hook, part)
        try:
            return execute(engine, *args, **kwargs)
        finally:
            meter.exit_instruction(hook, left)
            if is_load:
                _count_tokens(engine, meter, kwargs)

    return timed


@guarded()
def _count_tokens(engine: Any, meter: StepMeter, kwargs: Dict[str, Any]) -> None:
    if meter.evaluating:
        return
    # The first stage loads inputs and the last one labels; stages between see no tokens.
    buffers = engine.pipe_buffers
    kind = "inputs" if engine.is_first_stage() else "labels" if engine.is_last_stage() else None
    if kind is not None:
        meter.count.add((buffers[kind][kwargs["buffer_id"]],), {})


def _train_batch(
    engine: Any,
    meter: StepMeter,
    facts: DeepSpeedFacts,
    at_boundary: Callable[[], None],
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    before = engine.global_steps
    meter.begin_step()
    loss = original(*args, **kwargs)
    if engine.global_steps != before:
        _end_step(meter, facts, loss)
        at_boundary()
    return loss


@guarded()
def _end_step(meter: StepMeter, facts: DeepSpeedFacts, loss: Any) -> None:
    meter.note_loss(loss)
    meter.end_step(facts.read())


def _eval_batch(meter: StepMeter, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    meter.set_training(False)
    try:
        return original(*args, **kwargs)
    finally:
        meter.set_training(True)
