"""How often a run saves and what that takes, as its own steps tell; and what another interval would be worth.

Every save that stands in the trainer's way is in a step's checkpoint time, whoever asked for it. The failure rate is
not to be seen in one run: it is assumed (HOURS_PER_FAILURE), of machines alone, and said wherever a figure rests on it.
A spot machine is taken away more often than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from governor.core.base.checkpoint_economics import CheckpointEconomics, economics
from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros
from governor.core.base.windows import Reservoir

SAVES_REMEMBERED: Final = 8  # The median of an odd one or two does not move it; of yesterday's rhythm it knows nothing.
SAVE_S_MIN: Final = 0.01  # Shorter ones write nothing that a restart could use.
SAVE_S_MAX: Final = 24 * 3600.0  # Longer is a broken clock or a hostile frame.
# GPU hours per unexpected interruption: 419 in 54 days on 16,384 H100 (Meta, "The Llama 3 Herd of Models", 2024, on
# reliability and operational challenges).
HOURS_PER_FAILURE: Final = 54 * 24 * 16_384 / 419


@dataclass(slots=True)
class Saves:
    """Of one run. Between two saves is the time from the end of one to the begin of the next."""

    took_s: Reservoir = field(default_factory=lambda: Reservoir(SAVES_REMEMBERED))
    between_s: Reservoir = field(default_factory=lambda: Reservoir(SAVES_REMEMBERED))
    ended_at: MonoNs | None = None  # The last one of this attempt.

    def new_attempt(self) -> None:
        """What passed since the last save was not all training."""
        self.ended_at = None

    def observe(self, at: MonoNs, checkpoint_s: float | None) -> None:
        """A step ended that was stopped by saves for so long."""
        if checkpoint_s is None or not SAVE_S_MIN <= checkpoint_s <= SAVE_S_MAX:
            return
        if self.ended_at is not None:
            between_s = (at - self.ended_at) / NS_PER_S - checkpoint_s
            if between_s > 0:
                self.between_s.add(between_s)
        self.ended_at = at
        self.took_s.add(checkpoint_s)


def mtbf_s(gpus: int) -> float:
    """The assumed mean time between failures of a job on so many GPUs."""
    return HOURS_PER_FAILURE * 3600 / max(1, gpus)


def advice(
    saves: Saves, *, gpus: int, restart_s: float, rate_usd_micros_per_hour: UsdMicros | None
) -> CheckpointEconomics | None:
    """None until two saves were seen."""
    took_s, between_s = saves.took_s.median(), saves.between_s.median()
    if took_s is None or between_s is None:
        return None
    return economics(
        interval_s=between_s,
        save_s=took_s,
        mtbf_s=mtbf_s(gpus),
        restart_s=restart_s,
        rate_usd_micros_per_hour=rate_usd_micros_per_hour,
    )
