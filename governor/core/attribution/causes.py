"""The causes of lost time. Every second of a run, and every micro-dollar, is of one of them or productive.

Named after the field's badput types (Google's ML Goodput Measurement, NVIDIA's ETTR), and finer where frames say more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Cause(Enum):
    """What a stretch of time went to. All but PRODUCTIVE is badput."""

    PRODUCTIVE = "productive"  # Forward, backward, optimizer, of steps that nobody had trained before.
    DATA = "data_starvation"  # A rank waited for its batch, or others waited for that rank.
    LOOP = "loop_code"  # The loop's own code between steps: logging, bookkeeping, sampling.
    STRAGGLER = "straggler"  # One rank computes longer than the others; all wait for it.
    IMBALANCE = "load_imbalance"  # A rank computes less than the usual one, and waits for it.
    COMMUNICATION = "exposed_communication"  # In collectives, beyond the wait for a late rank.
    BUBBLE = "pipeline_bubble"  # A stage waits for the others, beyond the wait for a slow one.
    OFFLOAD = "optimizer_offload"  # The optimizer's step runs on the CPU.
    RECOMPUTE = "recompute"  # Activation checkpointing's second forward pass.
    CHECKPOINT = "checkpoint_stall"
    EVALUATION = "evaluation"
    COMPILE = "compile_and_warm_up"  # What an attempt's first step took beyond an ordinary one.
    START_UP = "start_up"  # Launch, imports, model and data, until the first step.
    RESTART = "restart"  # The same, after an attempt that had trained.
    LOST_STEPS = "lost_steps"  # Steps that were trained before, and lost.
    THROTTLING = "throttling"  # The GPU's clock was held down by heat or power.
    OTHER_TENANTS = "other_tenants"  # A rank waited for a processor that others used.
    HARDWARE = "hardware"  # After a GPU of the run broke, until the halt or the next attempt's first step.
    HANG = "hang"  # No progress, until the halt.
    HALT = "halt"  # From the verdict until the halt is closed.
    SHUT_DOWN = "shut_down"  # After the last step, until the run lets go of the node.
    IDLE = "idle"  # The trainer says that it does nothing.
    NOT_TOLD = "not_told_yet"  # Of a run that lives: the step under way. It is attributed when it ends.
    UNKNOWN = "unknown"


LOST: Final = tuple(cause for cause in Cause if cause is not Cause.PRODUCTIVE)

Shares = Mapping[Cause, int]


@dataclass(slots=True)
class Amount:
    """Of one cause."""

    ns: int = 0
    usd_micros: int = 0

    def add(self, ns: int, usd_micros: int) -> None:
        self.ns += ns
        self.usd_micros += usd_micros


def apportion(amount: int, weights: Shares) -> dict[Cause, int]:
    """Divide a whole amount by weights; the parts add up to it. Largest remainder, ties by the causes' order.

    A negative amount is divided as its opposite is. Without any weight all of it is UNKNOWN.
    """
    if amount < 0:
        return {cause: -part for cause, part in apportion(-amount, weights).items()}
    total = sum(weights.values())
    if total <= 0:
        return {Cause.UNKNOWN: amount}
    parts = {cause: amount * weight // total for cause, weight in weights.items() if weight}
    rest = amount - sum(parts.values())
    largest = sorted(parts, key=lambda cause: (-(amount * weights[cause] % total), _ORDER[cause]))
    for cause in largest[:rest]:
        parts[cause] += 1
    return parts


_ORDER: Final = {cause: place for place, cause in enumerate(Cause)}
