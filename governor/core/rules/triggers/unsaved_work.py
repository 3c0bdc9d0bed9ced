"""Too much work would be lost if the machine went away now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import (
    MICROS_PER_USD,
    NS_PER_HOUR,
    NS_PER_S,
    DurationNs,
    MonoNs,
    format_duration,
    format_usd,
)
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.runs.state import Run

NOT_ASKABLE: Final = unknown("nobody_to_ask")


class UnsavedWork(Trigger):
    """Training since the last good checkpoint, in time or in what it has cost, is more than a failure may take.

    Meant for the response `checkpoint`, above all on spot machines, which can go away at any moment. Counted from the
    first step of the attempt, or from the last checkpoint that the trainer reported (each one that DeepSpeed or the
    Trainer wrote, and each that costgov requested); never from before this attempt began. Fires until a checkpoint has
    been saved, and requests one only once: after a failed request there is no other until a checkpoint succeeds.

    UNKNOWN before the first step, for a log (it cannot be asked to save), while no rank is connected, and for the money
    while the price is unknown. Misses what a trainer saves without a report. Resets at each attempt, because an attempt
    begins from what was saved.
    """

    KIND: ClassVar[str] = "unsaved_work"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # 419 failures in 54 days on 16,384 GPUs (Llama 3) are one in 50 h on 1,024, and one in 265 days on 8. An hour
        # suits machines that can be taken away at will, and is what a person can bear to train again.
        Key("time", "duration", "1h", "Fires with so much unsaved training.", "1m"),
        Key("usd", "number", 0, "Fires with unsaved training that has cost so many dollars; 0: time alone counts."),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset()
    MEANING: ClassVar[tuple[str, ...]] = (
        "{time} of training, or what has cost {usd} dollars of it (0: time alone), are not in a good checkpoint",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._time_ns: DurationNs = params["time"]
        self._usd_micros = round(params["usd"] * MICROS_PER_USD)

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if run.jsonl_only:
            return NOT_ASKABLE
        if run.is_cut_off():
            return unknown("no_connection")
        if run.working_since is None:
            return unknown("no_step")
        unsaved_ns = run.unsaved_ns(at)
        rate = run.spend_rate_usd_micros_per_hour
        cost = None if rate is None else rate * unsaved_ns // NS_PER_HOUR
        is_dear = bool(self._usd_micros) and cost is not None and cost >= self._usd_micros
        if unsaved_ns < self._time_ns and not is_dear:
            return unknown("price_unknown") if self._usd_micros and cost is None else QUIET
        worth = "" if cost is None else f", worth {format_usd(cost)},"
        saved = run.last_good if run.last_good is not None and run.last_good.is_fit else None
        since = f"step {saved.step}" if saved is not None else "the attempt's begin"
        return firing(
            "unsaved_work",
            f"{format_duration(unsaved_ns)} of training{worth} since {since} are not saved",
            {
                "unsaved_s": unsaved_ns / NS_PER_S,
                "unsaved_usd_micros": cost,
                "time_s": self._time_ns / NS_PER_S,
                "limit_usd_micros": self._usd_micros or None,
                "last_good_step": saved.step if saved is not None else None,
            },
        )

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        if run.jsonl_only or run.is_cut_off() or run.working_since is None:
            return FOREVER
        if self._usd_micros and run.spend_rate_usd_micros_per_hour is not None:
            return at
        late_at = MonoNs(at + self._time_ns - run.unsaved_ns(at))
        return late_at if at < late_at else FOREVER
