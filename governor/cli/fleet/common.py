"""What the commands of `costgov fleet` share: one store for one act, and how amounts and times look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from governor.cli.common import ExitCode, Failed, settings_from
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, DurationNs, UsdMicros, format_duration, format_usd


def done(config: Path | None, act: Callable[[Any], Any]) -> Any:
    """What the act returns. Failed: there is no store, or what it returned is a failure."""
    from governor.app import fleet_rows

    store = fleet_rows.opened(settings_from(config).fleet)
    if isinstance(store, fleet_rows.Failure):
        raise Failed(store.text)
    try:
        data = act(store)
    finally:
        store.close()
    if isinstance(data, fleet_rows.Failure):
        absent = ExitCode.UNKNOWN if data.is_absent else ExitCode.FAILED
        raise Failed(data.text, ExitCode.UNSURE if data.is_unknown else absent)
    return data


def dollars(amount: float) -> str:
    sign = "-" if amount < 0 else ""
    return sign + format_usd(UsdMicros(round(abs(amount) * MICROS_PER_USD)))


def lasting(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(DurationNs(round(seconds) * NS_PER_S))
