"""Compares policies on labelled logs: false halts, delays, dollars."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, MonoNs, UsdMicros
from governor.replay.play import Replay, ReplayVerdict
from governor.wire.jsonl import EPOCH_MIN_S, seconds_of

RUN_HOURS: Final = 1_000  # The unit of the false-halt rate: a month and a half of one run.


def halts(verdicts: Iterable[ReplayVerdict], policy: str) -> list[ReplayVerdict]:
    """The halts of one policy in order, including those that it would only have recorded."""
    return [one for one in verdicts if one.response == "halt" and one.policy == policy]


_COUNTS: Final = (
    "logs", "halted", "halted_enforced", "healthy", "healthy_ns", "false_halts", "troubled", "caught", "early",
)  # fmt: skip


@dataclass
class LabelTally:
    """One policy over many logs. A log without a label counts only in `logs` and `halted`."""

    policy: str
    price: UsdMicros | None  # of a node, per hour
    logs: int = 0
    halted: int = 0
    halted_enforced: int = 0  # by a rule in enforce mode
    healthy: int = 0
    healthy_ns: int = 0
    false_halts: int = 0
    troubled: int = 0
    caught: int = 0
    early: int = 0  # Halted before the trouble began. This is not a catch.
    delays_s: list[float] = field(default_factory=list)  # From onset to halt, for caught runs with times.
    # Of troubled runs, from the halt to the end of the log. None: of one of them nobody knows, so of their sum either.
    saved_ns: int | None = 0
    cut_ns: int | None = 0  # The same of healthy runs: training to repeat, or lost.

    def add(self, replay: Replay, end_ns: int, role: str | None = None) -> None:
        """Count one log of length `end_ns`. Time that its clock ran on after that does not count.

        `role`: "healthy" or "troubled". Default: what the log's own meta line says.
        """
        found = halts(replay.verdicts, self.policy)
        first = found[0] if found else None
        end_s = replay.clock.own_s(MonoNs(replay.clock.began + end_ns))
        self.logs += 1
        self.halted += first is not None
        self.halted_enforced += any(one.mode == "enforce" for one in found)
        role = role or replay.meta.get("role")
        if role == "healthy":
            self.healthy += 1
            self.healthy_ns += end_ns
            if first is not None:
                self.false_halts += 1
                self.cut_ns = _plus(self.cut_ns, _left_ns(first, end_s))
        elif role == "troubled":
            self.troubled += 1
            if first is not None:
                self._caught(first, replay, end_s)

    def _caught(self, first: ReplayVerdict, replay: Replay, end_s: float) -> None:
        onset_s = seconds_of(replay.meta.get("onset_t"))
        if onset_s is not None and onset_s >= EPOCH_MIN_S:
            onset_s -= replay.clock.first_s
        if first.t is None or onset_s is None or not math.isfinite(onset_s):
            self.caught += 1
            self.saved_ns = None
            return
        # Logs round their times to milliseconds. Labels do not.
        if first.t < onset_s - 0.001:
            self.early += 1
            return
        self.caught += 1
        self.delays_s.append(max(0.0, first.t - onset_s))
        self.saved_ns = _plus(self.saved_ns, _left_ns(first, end_s))

    def plus(self, more: LabelTally) -> LabelTally:
        """Both together, of the same policy at the same price."""
        sums = {name: getattr(self, name) + getattr(more, name) for name in _COUNTS}
        return replace(
            self, **sums, delays_s=self.delays_s + more.delays_s,
            saved_ns=_plus(self.saved_ns, more.saved_ns), cut_ns=_plus(self.cut_ns, more.cut_ns),
        )  # fmt: skip

    @property
    def false_per_run_hours(self) -> float | None:
        """False halts per RUN_HOURS of healthy training. None when no healthy log has times."""
        return self.false_halts * RUN_HOURS * NS_PER_HOUR / self.healthy_ns if self.healthy_ns else None

    def usd(self, span_ns: int | None) -> UsdMicros | None:
        return None if self.price is None or span_ns is None else UsdMicros(self.price * span_ns // NS_PER_HOUR)

    def row(self) -> dict[str, Any]:
        """The row for --json."""
        return {
            "policy": self.policy,
            "logs": self.logs,
            "halted": self.halted,
            "halted_enforced": self.halted_enforced,
            "healthy": self.healthy,
            "healthy_hours": self.healthy_ns / NS_PER_HOUR,
            "false_halts": self.false_halts,
            "false_halts_per_1000_run_hours": self.false_per_run_hours,
            "troubled": self.troubled,
            "caught": self.caught,
            "early": self.early,
            "delay_median_s": median(self.delays_s) if self.delays_s else None,
            "delay_max_s": max(self.delays_s, default=None),
            "saved_usd_micros": self.usd(self.saved_ns) if self.troubled else None,
            "wrongly_cut_usd_micros": self.usd(self.cut_ns) if self.healthy else None,
        }


def _left_ns(halt: ReplayVerdict, end_s: float) -> int | None:
    """None: the log has no times."""
    return None if halt.t is None else max(0, round((end_s - halt.t) * NS_PER_S))


def _plus(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more
