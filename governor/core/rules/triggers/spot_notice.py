"""The provider takes the machine back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.runs.state import Run


class SpotNoticeGiven(Trigger):
    """The provider has announced that it takes this machine back: what is not saved by then is lost.

    AWS announces it two minutes ahead, or not at all ("best effort"); costgov asks every five seconds. Meant for the
    response `checkpoint`: the provider itself ends the run. UNKNOWN where no provider is asked, or none has answered
    for `fresh`: most clouds give no notice, or one that costgov does not read. A notice holds across attempts.
    """

    KIND: ClassVar[str] = "spot_notice"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("fresh", "duration", "30s", "An answer older than this is none: six questions without one.", "5s"),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset()
    MEANING: ClassVar[tuple[str, ...]] = (
        "the provider has announced that it takes the machine back",
        "Its last answer may be {fresh} old.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._fresh_ns: DurationNs = params["fresh"]

    def judge(self, at: MonoNs, run: Run) -> Finding:
        notice = run.spot_notice
        if notice is None or at - notice.at > self._fresh_ns:
            return unknown("nobody_says" if notice is None else "no_answer")
        if notice.action is None:
            return QUIET
        left_ns = None if notice.left is None else max(0, notice.left - (at - notice.at))
        when = "soon" if left_ns is None else f"in {format_duration(left_ns)}"
        return firing(
            "taken_back",
            f"the provider takes the machine back {when} ({notice.action})",
            {"action": notice.action, "left_s": None if left_ns is None else left_ns / NS_PER_S},
        )

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        return FOREVER if run.spot_notice is None else at
