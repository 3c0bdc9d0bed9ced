"""The segments of a recording on one clock: with each boot of a machine its monotonic clock begins anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.units import NS_PER_S
from governor.wire.recording import FORMAT

PAUSE_MAX_NS: Final = 30 * 24 * 3600 * NS_PER_S  # Longer than this no run is away: one of the wall clocks was wrong.
# Every time that a line may hold, all of one clock.
_TIMES: Final = ("at_ns", "mono_ns", "started_mono_ns", "phase_since_ns", "last_hook_ns")
_TIMES_WITHIN: Final = (("last_good", "mono_ns"), ("collective", "entered_ns"))


class RecordedClock:
    """Puts the lines of later boots behind those of the first, as far as the wall clock was between them."""

    def __init__(self) -> None:
        self.last_ns = 0
        self._boot: Any = None
        self._wall_ahead_ns = 0  # Of the first boot's monotonic clock.
        self._shift_ns = 0

    def begin(self, meta: Mapping[str, Any]) -> str | None:
        """A segment begins. Returns what is wrong with its first line."""
        mono_ns, wall_ns, boot = meta.get("mono_ns"), meta.get("wall_ns"), meta.get("boot_id")
        if meta.get("recording") != FORMAT:
            return f"recording format {meta.get('recording')!r:.20}: this costgov knows {FORMAT}"
        if type(mono_ns) is not int or type(wall_ns) is not int:
            return "its first line has no times"
        if self._boot is None:
            self._wall_ahead_ns = wall_ns - mono_ns
        elif boot != self._boot:
            self._shift_ns = wall_ns - mono_ns - self._wall_ahead_ns
            if not 0 <= mono_ns + self._shift_ns - self.last_ns <= PAUSE_MAX_NS:
                self._shift_ns = self.last_ns - mono_ns
        self._boot = boot
        return None

    def put(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its times on the one clock."""
        if self._shift_ns:
            record = self._shifted(record)
        at = record.get("at_ns")
        if type(at) is int and at > self.last_ns:
            self.last_ns = at
        return record

    def _shifted(self, record: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {name: self._moved(record[name]) for name in _TIMES if name in record}
        for name, inner in _TIMES_WITHIN:
            within = record.get(name)
            if isinstance(within, dict) and inner in within:
                changed[name] = within | {inner: self._moved(within[inner])}
        return record | changed

    def _moved(self, value: Any) -> Any:
        return value + self._shift_ns if type(value) is int else value
