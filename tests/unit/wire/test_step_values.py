"""What a step says arrives: each field of the wire's table is kept, or is named as one that is not."""

from __future__ import annotations

import dataclasses
from typing import Any

from governor.core.events.inputs import Step
from governor.core.events.step_parts import OF_WHICH_FIELDS, PART_FIELDS
from governor.wire.step_values import NOT_KEPT, step_values
from trainer_shim.wire import FRAMES

# `governor/wire/frames.py` reads these itself.
READ_BESIDE = {"v", "kind", "rank", "mono_ns", "dropped", "step"}
OF_KIND: dict[str, Any] = {"int": 3, "num": 0.5, "bool": True, "str": "a"}
FIELDS = FRAMES["step"]


def test_every_field_of_a_step_is_kept_or_named_as_not_kept() -> None:
    frame = {name: OF_KIND[field.kind] for name, field in FIELDS.items() if name not in READ_BESIDE}
    values = step_values(frame)
    dropped = frame.keys() - values.keys()
    assert dropped == NOT_KEPT, f"governor/wire/step_values.py drops {sorted(dropped - NOT_KEPT)} without saying so"
    assert values == {name: frame[name] for name in values}
    assert values.keys() <= {field.name for field in dataclasses.fields(Step)}, "governor/core/events/inputs.py"


def test_every_time_of_a_step_is_a_part_of_it_or_lies_within_one() -> None:
    times = {name for name in FIELDS if name.endswith("_s")} - {"step_s"}
    assert times == {*PART_FIELDS, *OF_WHICH_FIELDS}, "governor/core/events/step_parts.py"
    assert len(times) == len(PART_FIELDS) + len(OF_WHICH_FIELDS)
