"""The causes of lost time. Every second of a run, and every micro-dollar, is of one of them or productive.

Named after the field's badput types (Google's ML Goodput Measurement, NVIDIA's ETTR), and finer where frames say more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class When(Enum):
    """When the time of a cause passes. Who treats some causes unlike others asks this, and keeps no list of them."""

    STEPS = "in steps"  # It grows with them: of two runs its share of the time in steps is compared.
    CHOSEN = "in steps, as the configuration asks"  # The same, and nothing that somebody has to be called for.
    LAUNCH = "once a launch"
    EVENT = "now and then"  # And what nobody knows.


class Cause(Enum):
    """What a stretch of time went to. All but PRODUCTIVE is badput."""

    _value_: str
    when: When

    def __new__(cls, name: str, when: When | None = None) -> Cause:
        if when is None:  # The default is there for Cause(name), which looks one up.
            raise TypeError(f"the cause {name} without its When")
        cause = object.__new__(cls)
        cause._value_, cause.when = name, when
        return cause

    PRODUCTIVE = "productive", When.STEPS  # Forward, backward, optimizer, of steps that nobody had trained before.
    DATA = "data_starvation", When.STEPS  # A rank waited for its batch, or others waited for that rank.
    LOOP = "loop_code", When.STEPS  # The loop's own code between steps: logging, bookkeeping, sampling.
    STRAGGLER = "straggler", When.STEPS  # One rank computes longer than the others; all wait for it.
    IMBALANCE = "load_imbalance", When.STEPS  # A rank computes less than the usual one, and waits for it.
    COMMUNICATION = "exposed_communication", When.STEPS  # In collectives, beyond the wait for a late rank.
    BUBBLE = "pipeline_bubble", When.STEPS  # A stage waits for the others, beyond the wait for a slow one.
    OFFLOAD = "optimizer_offload", When.CHOSEN  # The optimizer's step runs on the CPU.
    RECOMPUTE = "recompute", When.CHOSEN  # Activation checkpointing's second forward pass.
    CHECKPOINT = "checkpoint_stall", When.STEPS
    EVALUATION = "evaluation", When.STEPS
    COMPILE = "compile_and_warm_up", When.LAUNCH  # What an attempt's first step took beyond an ordinary one.
    START_UP = "start_up", When.LAUNCH  # Launch, imports, model and data, until the first step.
    RESTART = "restart", When.EVENT  # The same, after an attempt that had trained.
    LOST_STEPS = "lost_steps", When.EVENT  # Steps that were trained before, and lost.
    THROTTLING = "throttling", When.STEPS  # The GPU's clock was held down by heat or power.
    OTHER_TENANTS = "other_tenants", When.STEPS  # A rank waited for a processor that others used.
    HARDWARE = "hardware", When.EVENT  # After a GPU of the run broke, until the halt or the next attempt's first step.
    HANG = "hang", When.EVENT  # No progress, until the halt.
    HALT = "halt", When.EVENT  # From the verdict until the halt is closed.
    SHUT_DOWN = "shut_down", When.LAUNCH  # After the last step, until the run lets go of the node.
    IDLE = "idle", When.EVENT  # The trainer says that it does nothing.
    NOT_TOLD = "not_told_yet", When.EVENT  # Of a run that lives: the step under way. It is attributed when it ends.
    UNKNOWN = "unknown", When.EVENT

    @property
    def is_in_steps(self) -> bool:
        return self.when in (When.STEPS, When.CHOSEN)


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


def divide(into: dict[Cause, Amount], ns: int, usd_micros: int, weights: Shares) -> dict[Cause, int]:
    """Add time and money by these weights, and return the parts of the time."""
    time, money = apportion(ns, weights), apportion(usd_micros, weights)
    for cause in time.keys() | money.keys():
        if time.get(cause) or money.get(cause):
            into.setdefault(cause, Amount()).add(time.get(cause, 0), money.get(cause, 0))
    return time


_ORDER: Final = {cause: place for place, cause in enumerate(Cause)}
