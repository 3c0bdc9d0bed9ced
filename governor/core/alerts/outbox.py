"""The queue of alerts to one receiver: what is tried next and when, and what is dropped. No clock and no thread here.

After no answer, or an answer that it is busy, the receiver is left alone for a while, and the order stays. An alert
that the receiver fails on is tried again later, behind the others, so that it delays none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from governor.core.alerts.catalogue import Alert
from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs

# A night of a node in trouble: half a megabyte. Beyond it the oldest of the least urgent is dropped.
WAITING_MAX: Final = 256
# A person who comes in the morning still wants the night's alerts.
AGE_MAX_NS: Final = DurationNs(24 * NS_PER_HOUR)
PAUSE_MIN_NS: Final = DurationNs(NS_PER_S)
PAUSE_MAX_NS: Final = DurationNs(5 * NS_PER_MINUTE)  # A receiver that recovers gets its alerts within this time.
DOUBLINGS_MAX: Final = 9  # 2^9 s is above PAUSE_MAX_NS.


_EXPLAINED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fault": "a fault of our own; please report it",
        "timeout": "no answer in time",
        "connect_failed": "it cannot be reached, or its certificate is not trusted",
        "broken_off": "the connection broke; it may have been taken",
        "too_large": "the answer is too large to be one",
        "secret_not_found": "the file of the secret is not there",
        "secret_not_a_file": "what should be the file of the secret is none",
        "secret_not_readable": "this user may not read the file of the secret; the governor's must",
        "secret_readable_by_everyone": "others may read the file of the secret; chmod o-r",
        "secret_malformed": "the file of the secret holds none",
        "ca_not_readable": "ca_file cannot be read, or holds no certificate",
        "not_all_recipients": "taken for some of the addresses in `to`; the server refuses the others",
        "no_starttls": "it offers no encryption; `insecure` sends without",
        "no_auth": "it takes no password, or none of the kinds that we know",
        "smtp_530": "it wants a user and a password",
        "smtp_534": "it wants another way to log in",
        "smtp_535": "the user or the password is not accepted",
        "http_400": "it does not take such alerts; is the URL that of another service?",
        "http_401": "the token or the signature is not accepted",
        "http_403": "the token or the signature is not accepted",
        "http_404": "nothing is at this URL",
        "http_405": "it takes no POST at this URL",
        "http_410": "it wants nothing any more",
        "http_413": "it takes no alert of this size",
        "http_429": "it gets too many requests",
    }
)


class Took(Enum):
    """The result of one attempt."""

    TAKEN = "taken"
    BUSY = "busy"  # The receiver takes no alert now.
    LATER = "later"  # The receiver failed on this alert.
    REFUSED = "refused"  # The receiver would refuse it again.


@dataclass(frozen=True, slots=True)
class Delivery:
    """`reason` is one of a fixed set ("http_503", "timeout"). It contains nothing of a URL, a header or a body."""

    took: Took
    reason: str
    retry_after_s: float | None = None  # As the receiver asked.

    @property
    def line(self) -> str:
        """The reason for people."""
        known = _EXPLAINED.get(self.reason)
        if known is None and self.reason.startswith("http_3"):
            known = "it sends us elsewhere, and we do not follow; correct the URL"
        elif known is None:
            is_trouble = self.reason.startswith(("http_5", "smtp_4"))
            known = "the receiver has trouble" if is_trouble else "refused"
        return f"{known} ({self.reason})"


@dataclass(slots=True)
class _Waiting:
    alert: Alert
    since: MonoNs
    due: MonoNs
    tries: int = 0


@dataclass(slots=True)
class Outbox:
    """`replaces`: this receiver wants only the newest alert of each key, so a waiting one is replaced."""

    replaces: bool = False
    sent_total: int = 0
    failed_total: int = 0  # Attempts.
    dropped_total: int = 0  # Alerts.
    _waiting: list[_Waiting] = field(default_factory=list)  # In the order of attempts.
    _in_hand: _Waiting | None = None
    _busy: int = 0  # Attempts in a row that found the receiver busy.
    _paused_until: MonoNs = MonoNs(0)

    def __len__(self) -> int:
        return len(self._waiting) + (self._in_hand is not None)

    def offer(self, alert: Alert, at: MonoNs) -> None:
        if self.replaces:
            for waiting in self._waiting:
                if waiting.alert.key == alert.key:
                    waiting.alert, waiting.since = alert, at
                    return
        self._waiting.append(_Waiting(alert, at, at))
        if len(self._waiting) > WAITING_MAX:
            # min() takes the first of equals, which has waited longest.
            self._waiting.remove(min(self._waiting, key=lambda one: one.alert.severity))
            self.dropped_total += 1

    def next(self, at: MonoNs) -> Alert | None:
        """The alert to try now; `settle` must follow."""
        assert self._in_hand is None, "one attempt at a time"
        young = [one for one in self._waiting if at - one.since < AGE_MAX_NS]
        self.dropped_total += len(self._waiting) - len(young)
        self._waiting = young
        if at < self._paused_until:
            return None
        self._in_hand = next((one for one in self._waiting if one.due <= at), None)
        if self._in_hand is None:
            return None
        self._waiting.remove(self._in_hand)
        return self._in_hand.alert

    def settle(self, delivery: Delivery, at: MonoNs, jitter: float) -> None:
        """Enter the result of the attempt. `jitter`: 0 to 1, uniform."""
        tried, self._in_hand = self._in_hand, None
        if tried is None:
            return  # Dropped meanwhile.
        if delivery.took is not Took.BUSY:
            self._busy = 0
        if delivery.took is Took.TAKEN:
            self.sent_total += 1
            return
        self.failed_total += 1
        if delivery.took is Took.REFUSED:
            self.dropped_total += 1
            return
        if delivery.took is Took.BUSY:
            self._busy += 1
            self._paused_until = MonoNs(at + _pause_ns(self._busy, delivery.retry_after_s, jitter))
        else:
            tried.tries += 1
            tried.due = MonoNs(at + _pause_ns(tried.tries, delivery.retry_after_s, jitter))
        if self.replaces and any(one.alert.key == tried.alert.key for one in self._waiting):
            return  # A newer alert of this key waits.
        self._waiting.insert(0 if delivery.took is Took.BUSY else len(self._waiting), tried)

    def due_at(self) -> MonoNs | None:
        """When `next` returns an alert; None while none waits."""
        if not self._waiting:
            return None
        return MonoNs(max(self._paused_until, min(one.due for one in self._waiting)))

    def hurry(self, at: MonoNs) -> None:
        """Make all alerts due now, before the process ends."""
        self._paused_until = at
        for waiting in self._waiting:
            waiting.due = min(waiting.due, at)

    def give_up(self) -> int:
        """Drop the alerts that are left; return their number."""
        left = len(self)
        self._waiting, self._in_hand = [], None
        self.dropped_total += left
        return left


def _pause_ns(failures: int, retry_after_s: float | None, jitter: float) -> DurationNs:
    """The pause doubles; half of it is random, so that nodes that lost one receiver do not all return at once."""
    assert failures >= 1
    assert 0 <= jitter <= 1
    longest = min(PAUSE_MAX_NS, PAUSE_MIN_NS << min(failures - 1, DOUBLINGS_MAX))
    pause = round(longest * (0.5 + jitter / 2))
    wished = min(PAUSE_MAX_NS, round((retry_after_s or 0) * NS_PER_S))
    return DurationNs(max(pause, wished))
