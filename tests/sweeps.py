"""How much of a sweep is played: the gate plays two fifths of its seeds and examples, `COSTGOV_SWEEP=1` all of them."""

from __future__ import annotations

import os

_SHARE = float(os.environ.get("COSTGOV_SWEEP", "0.4"))


def share_of(count: int) -> int:
    """So many of `count` cases. The same ones each time: what fails on one machine fails on all."""
    return max(1, round(count * _SHARE))
