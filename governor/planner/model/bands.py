"""How far off a prediction of speed may be: an 80 % interval, from what is known to make predictions miss.

Doubts are independent, so they add in squares. Each is a standard deviation of the logarithm, fitted on sources that
the constants had not seen (`make bench-planner`): the interval is for the next machine, not for those of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from governor.planner.model.setup import Attention, Framework, Offload, Setup

Z80: Final = 1.2816  # standard normal: 80 % lie within


class Band(NamedTuple):
    """An estimate with the ends of its 80 % interval."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class Doubts:
    """Standard deviations of log(measured / predicted)."""

    always: float = 0.10  # machines, clocks and networks of one name differ
    framework: float = 0.25  # outside the Megatron class: fewer sources, more ways to configure one name
    mixture: float = 0.30  # experts: releases of one framework differ by up to twice
    fp4: float = 0.10
    assumed: float = 0.03  # for each thing that the row did not say
    offload: float = 0.5  # the host's part: threads, memory channels, other GPUs of the host
    sparse: float = 0.3  # attention that no published table has


USUAL: Final = Doubts()


def spread_of(setup: Setup, assumed: Sequence[str] = (), doubts: Doubts = USUAL) -> float:
    """Standard deviation of the logarithm of the speed."""
    parts = [doubts.always, doubts.assumed * math.sqrt(len(assumed))]
    if setup.framework is not Framework.MEGATRON:
        parts.append(doubts.framework)
    if setup.shape.is_moe:
        parts.append(doubts.mixture)
    if setup.precision.bits < 8:
        parts.append(doubts.fp4)
    if setup.offload is not Offload.NONE:
        parts.append(doubts.offload)
    if setup.attention in (Attention.SPARSE, Attention.NATIVE_SPARSE):
        parts.append(doubts.sparse)
    return math.hypot(*parts)


def band_of(mid: float, setup: Setup, assumed: Sequence[str] = (), doubts: Doubts = USUAL) -> Band:
    factor = math.exp(Z80 * spread_of(setup, assumed, doubts))
    return Band(mid / factor, mid, mid * factor)
