"""The short way of building a step's packet says, byte for byte, what the plain one says; and that is strict JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trainer_shim import wire

FIELDS: list[dict[str, Any]] = [
    {"step": 1},
    {"step": 2**62, "loss": 0.1, "applied": True, "lr": None, "dropped": {"step": 3, "beat": 0, "phase": 0}},
    {"loss": math.nan, "grad_norm": math.inf, "lr": -math.inf, "stack": ["a.py:f:1", "b"]},
    {"phase": 'fr\u00fch "x" \\ \n \ud800 \U0001f4b8'},
    {"loss": 1e300, "lr": 5e-324, "data_s": 0.000001},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_a_posted_frame_is_head_and_fields(fields: dict[str, Any]) -> None:
    frame = {**wire.head("step", 3, 123456789), **fields}
    posted = wire.encode_post("step", 3, 123456789, fields)

    assert posted == wire.encode(frame)
    strict = json.dumps(wire.worded(frame), allow_nan=False, separators=(",", ":"))
    assert posted.decode("ascii") == strict


def test_what_no_packet_holds_is_refused_either_way() -> None:
    large = {"detail": "x" * wire.FRAME_BYTES_MAX}
    with pytest.raises(ValueError, match="exceeds"):
        wire.encode_post("phase", 0, 1, large)
    with pytest.raises(ValueError, match="exceeds"):
        wire.encode({**wire.head("phase", 0, 1), **large})
