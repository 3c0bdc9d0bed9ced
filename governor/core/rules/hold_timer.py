"""How long a rule's condition has lasted: the `for` of a rule."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from governor.core.base.findings import Finding, Reading
from governor.core.base.policy import Hold, HoldKind
from governor.core.base.units import MonoNs
from governor.core.events.events import Event, Step
from governor.core.runs.run_state import Run


class HoldTimer:
    """Counts how long a rule's trigger has been firing.

    UNKNOWN neither counts nor resets: time and tokens are added only between two neighbouring FIRING readings, and a
    step without a known reading is not a step of the window.
    """

    __slots__ = ("_counted", "_fired", "_hold", "_last_at", "_last_tokens", "_steps")

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        # The last `of` steps with a known reading, and whether any rank's fired; how many of them did.
        self._steps: OrderedDict[int, bool] = OrderedDict()
        self._fired = 0
        self._counted = 0  # Nanoseconds or tokens.
        self._last_at: MonoNs | None = None  # Of the newest reading, if that was FIRING.
        self._last_tokens: int | None = None

    def add(self, finding: Finding, at: MonoNs, event: Event | None, run: Run) -> bool:
        """Take one finding; return whether the condition has now lasted long enough.

        A finding whose evidence names its "step" counts for that one: another rank's frame of the next step finds the
        first rank still broken, which makes the next step no broken one.
        """
        reading = finding.reading
        if self._hold.kind is HoldKind.STEPS:
            if isinstance(event, Step) and reading is not Reading.UNKNOWN:
                fired = reading is Reading.FIRING
                self._add_step(finding.evidence.get("step", event.step) if fired else event.step, fired)
            return self._fired >= self._hold.need
        if reading is Reading.QUIET:
            if self._counted or self._last_at is not None or self._last_tokens is not None:
                self.reset()  # Seldom: most readings of most rules are quiet, and so were those before.
            return False
        if reading is Reading.UNKNOWN:
            # What was counted stays: missing data is no recovery, and no evidence either.
            self._last_at = self._last_tokens = None
            return False
        self._count(at, run)
        return self._counted >= self._hold.need

    @property
    def is_empty(self) -> bool:
        """Nothing that fired is counted: a reading that does not fire would leave it so."""
        return not self._fired and not self._counted and self._last_at is None and self._last_tokens is None

    def _add_step(self, step: int, fired: bool) -> None:
        known = self._steps.get(step)
        if known is None:
            if len(self._steps) == self._hold.of:
                self._fired -= self._steps.popitem(last=False)[1]
            self._steps[step] = fired
            self._fired += fired
        elif fired and not known:
            self._steps[step] = True
            self._fired += 1

    def _count(self, at: MonoNs, run: Run) -> None:
        if self._hold.kind is HoldKind.DURATION:
            if self._last_at is not None:
                self._counted += max(0, at - self._last_at)  # A frame may have been stamped before a tick judged first.
            self._last_at = at if self._last_at is None else max(at, self._last_at)
            return
        tokens = run.tokens_total
        if tokens is not None:
            if self._last_tokens is not None:
                self._counted += max(0, tokens - self._last_tokens)
            self._last_tokens = tokens

    def reset(self) -> None:
        self._steps.clear()
        self._fired = 0
        self._counted = 0
        self._last_at = self._last_tokens = None

    def snapshot(self) -> Mapping[str, Any]:
        return {"counted": self._counted, "steps": [[step, fired] for step, fired in self._steps.items()]}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on counting. The time in which nobody watched is not added."""
        self.reset()
        self._counted = int(snapshot["counted"])
        for step, fired in snapshot["steps"]:
            self._add_step(int(step), bool(fired))
