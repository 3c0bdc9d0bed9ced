"""How far the present attempt has come: what a rule's `warmup` is counted in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.policy import HoldKind, WarmUp
from governor.core.base.units import MonoNs
from governor.core.events.events import Event, Step
from governor.core.runs.run_state import Run


class Attempt:
    """Steps, time and tokens of the attempt. They only grow: a log that begins again does not disarm its rules.

    After a restart of the governor, time goes on from where the attempt began, and tokens from what was counted. Steps
    do where frames number them within the attempt; a log without such numbers is counted anew, so it arms later.
    """

    __slots__ = ("_since", "_steps", "_tokens", "_tokens_before")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._since: MonoNs | None = None  # None: when the run says that it began.
        self._steps = 0
        self._tokens = 0
        self._tokens_before: int | None = None  # Of the run, when the attempt began; None: no count has been seen yet.

    def observe(self, event: Event, run: Run) -> None:
        """See an event that has already been applied to the run."""
        if not isinstance(event, Step):
            return
        if run.attempt_step > self._steps:
            self._steps = run.attempt_step
        total = run.tokens_total
        if total is None:
            return
        if self._tokens_before is None:
            self._tokens_before = total - (run.step_tokens or 0)
        self._tokens = max(self._tokens, total - self._tokens_before)

    def is_past(self, warmup: WarmUp, at: MonoNs, run: Run) -> bool:
        """The last step of a warm-up still belongs to it; a time is over at its end."""
        match warmup.kind:
            case HoldKind.STEPS:
                return self._steps > warmup.need
            case HoldKind.TOKENS:
                return self._tokens > warmup.need
            case HoldKind.DURATION:
                return at - self._began(run) >= warmup.need

    def _began(self, run: Run) -> MonoNs:
        return run.attempt_at if self._since is None else self._since

    def snapshot(self, run: Run) -> dict[str, Any]:
        return {
            "since": self._began(run),
            "steps": self._steps,
            "tokens": self._tokens,
            "tokens_before": self._tokens_before,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        since, before = snapshot["since"], snapshot["tokens_before"]
        self._since = None if since is None else MonoNs(int(since))
        self._steps = int(snapshot["steps"])
        self._tokens = int(snapshot["tokens"])
        self._tokens_before = None if before is None else int(before)
