"""The account that an export of costgov has of its run: the last point of its causes is that of all ranks, and whole.

Its steps are one rank's. They tell neither for whom that rank waited nor what came behind the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from governor.core.attribution.causes import Amount, Cause, apportion
from governor.core.attribution.rows import Whole
from governor.core.base.units import COUNT_MAX, NS_PER_HOUR, NS_PER_S, UsdMicros, utc_text
from governor.wire.cause_series import BESIDE, PREFIX, amounts_of, goes_on_of
from governor.wire.jsonl import EPOCH_BOUND_S, EPOCH_MIN_S, SECONDS_BOUND, time_of

FIELDS: Final[Mapping[str, Sequence[str]]] = {"causes": (PREFIX,)}  # As an event file's reader is asked for its tags.
MISSING: Final = "how sure each cause is, and which rank it is of: `costgov report` says so"
CHANGED: Final = "its file is not as it was exported"
# Points come every ten seconds, and at the end. Steps that go on behind the last one are of an export that was cut.
BEHIND_MAX_S: Final = 30.0
UNSURE: Final = (
    "whether this is all of the account: its last point does not say that it is the last one, and no "
    ".costgov-export.json beside it says how it was exported"
)
_EVENTS: Final = "events/"  # They are told as they happened, also after the run.
_NUMBERS: Final = ("step", "_step")  # A point of causes is no step.


class Retold:
    """Show it the records of a log in order; `by_cause` is what its last point told.

    A fault behind that point may have been another: then nothing is retold, and `why_not` says so in one line.
    """

    def __init__(self) -> None:
        self.by_cause: dict[Cause, Amount] | None = None
        self.has_usd = False
        self.step = 0  # The furthest that a point tells.
        self.why_not: str | None = None
        self._told_s: float | None = None
        self._goes_on: bool | None = None

    def take(self, record: Mapping[str, Any], prefix: str = PREFIX) -> dict[str, Any] | None:
        """Else than None: it is a point of causes, and this is what others may read of it, its time.

        `prefix`: "" of a file that has such points alone. An export's point has nothing else: what has is somebody's.
        """
        is_point = any(key.startswith(prefix) for key in record)
        if not is_point or not all(key.startswith(prefix) or key in BESIDE for key in record):
            self._see(record)
            return None
        found = amounts_of(record, prefix)
        if isinstance(found, str):
            self.by_cause, self.why_not = None, found
            return None
        self.by_cause, self.has_usd = found
        self.why_not, self._told_s, self._goes_on = None, _seconds(record), goes_on_of(record, prefix)
        step = record.get("step")
        self.step = max(self.step, step) if type(step) is int and step <= COUNT_MAX else self.step
        return {name: value for name, value in record.items() if name in BESIDE and name not in _NUMBERS}

    def lose(self, why: str) -> None:
        """Something cannot be read. Without a point before it nothing is lost by that.

        Of an export that was cut (`CHANGED`) all points may be gone.
        """
        if self.by_cause is not None or (why == CHANGED and self.why_not is None):
            self.by_cause, self.why_not = None, why

    def missing(self, *, is_changed: bool | None) -> tuple[str, ...]:
        """What the account does not tell, in sentences. `is_changed`: as `exports.owned` says it of its file."""
        if self._goes_on:
            at_s = self._told_s or 0.0
            is_dated = EPOCH_MIN_S <= at_s < EPOCH_BOUND_S
            last = utc_text(int(at_s) * NS_PER_S) if is_dated else "the last point of its account"
            return f"what came after {last}: the run went on when it was exported", MISSING
        return (UNSURE, MISSING) if self._goes_on is None and is_changed is None else (MISSING,)

    def whole(self, price: UsdMicros | None, steps: int) -> Whole | None:
        if self.by_cause is None:
            return None
        by_cause = self.by_cause
        if price is not None:
            wall_ns = sum(amount.ns for amount in by_cause.values())
            parts = apportion(price * wall_ns // NS_PER_HOUR, {cause: one.ns for cause, one in by_cause.items()})
            by_cause = {cause: Amount(one.ns, parts.get(cause, 0)) for cause, one in by_cause.items()}
        return Whole(by_cause, steps, {}, retold=frozenset(by_cause))

    def _see(self, record: Mapping[str, Any]) -> None:
        at_s = _seconds(record)
        if self._told_s is None or at_s is None or at_s - self._told_s <= BEHIND_MAX_S:
            return
        if not any(key.startswith(_EVENTS) for key in record):
            self.lose("it goes on behind the last point of its causes")


def _seconds(record: Mapping[str, Any]) -> float | None:
    """None of what is no time, as one that is not finite."""
    at_s = time_of(record)
    return at_s if at_s is not None and abs(at_s) < SECONDS_BOUND else None
