"""What a recorded run's time and money went to, as its recording is read: the engine's own account, played again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.told import WINDOW_NS
from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros
from governor.exports.series import Causes
from governor.replay.goodput import LogTime
from governor.replay.launches import Launches

PERIOD_NS: Final = WINDOW_NS  # Causes move no faster. Where ranks are apart they stand still until that window ends.
STALE_NS: Final = 3 * WINDOW_NS  # A journal is behind a run that goes on.
Paid = Callable[[int], UsdMicros | None]


class OwnAccount(NamedTuple):
    """What a governor, or its journal, says of a run's time and money. Until `wall` it was counted. None: unknown.

    `is_live`: its governor tells it, and knows of all that is recorded. `goes_on`: the run was not over by then.
    `unasked`: one line, where its governor knows more and was not found.
    """

    by_cause: Mapping[Cause, Amount]
    wall: int | None
    is_live: bool = False
    goes_on: bool = False
    unasked: str | None = None


Ask = Callable[[], OwnAccount | None]


class RecordedCauses:
    """`paid`: what the run was charged until a wall time; None: unknown. Money before the recording is in no cause.

    `run`: asks for the account that the governor has kept of the whole run. That is told as the last one, unless it is
    behind. It is asked for when the recording is read: so it is the newest, of a run that goes on meanwhile too.
    """

    def __init__(self, paid: Paid, run: Ask = lambda: None) -> None:
        self.is_own: bool | None = None  # Whether the last point is the run's own account. None: there is no point.
        self.behind_s: float | None = None  # By so much that account ends before the recording.
        self.last: Causes | None = None  # The point of the whole: as of when it is, and whether the run goes on.
        self.unasked: str | None = None
        self._ask = run
        self._time = LogTime(paid=self._spent)
        self._launches = Launches(self._time)
        self._paid = paid
        self._ahead_ns = 0
        self._paid_before: UsdMicros | None = None
        self._told_at: MonoNs | None = None

    def begin(self, head: dict[str, Any]) -> None:
        """Read the recording's first line."""
        self._time.read(head)

    def hear(self, record: dict[str, Any], ahead_ns: int, step: int) -> Iterator[Causes]:
        """Count a frame or a note. `ahead_ns`: the wall clock minus the recording's."""
        self._ahead_ns = ahead_ns
        self._launches.read(record)
        now = self._time.clock.now
        if self._told_at is None:
            self._told_at = now
        if now - self._told_at >= PERIOD_NS and self._time.account.by_cause:
            self._told_at = now
            yield self._told(now, step, self._time.account.by_cause)

    def close(self, step: int) -> Iterator[Causes]:
        """The recording has ended. What no rank had told by then is as its phase says, or as its last step was."""
        if self._time.records:
            self._time.end()
            run = self._ask() or OwnAccount({}, None)
            now, self.unasked = self._time.clock.now, run.unasked
            by_cause = self._whole(self._time.whole.by_cause, run)
            if self.is_own and run.wall is not None:
                now = max(now, MonoNs(run.wall - self._ahead_ns))
            self.last = replace(self._told(now, step, by_cause), goes_on=run.goes_on)
            yield self.last

    def _whole(self, recorded: Mapping[Cause, Amount], run: OwnAccount) -> Mapping[Cause, Amount]:
        """The run's own account, which also knows other tenants and hardware, unless it ends before the recording.

        Until when each was counted decides. Their lengths do not: either may have launches that the other has not.
        """
        self.is_own = False
        if run.wall is None or not run.by_cause:
            return recorded
        behind_ns = self._time.clock.now + self._ahead_ns - run.wall
        if behind_ns > STALE_NS and not run.is_live:  # A clock may have been set back.
            self.behind_s = behind_ns / NS_PER_S
            return recorded
        self.is_own = True
        return run.by_cause

    def _spent(self, now: MonoNs) -> int:
        paid = self._paid(now + self._ahead_ns)
        if paid is None:
            return 0
        if self._paid_before is None:
            self._paid_before = paid
        return paid - self._paid_before

    def _told(self, now: MonoNs, step: int, amounts: Mapping[Cause, Amount]) -> Causes:
        # Each point begins with the productive seconds, if only 0: so a reader of scalars knows one from the next.
        amounts = {Cause.PRODUCTIVE: Amount(), **amounts}
        found = {cause.value: amounts[cause] for cause in Cause if cause in amounts}
        usd = {name: amount.usd_micros for name, amount in found.items()} if self._paid_before is not None else {}
        return Causes(now + self._ahead_ns, step, {name: amount.ns for name, amount in found.items()}, usd)
