"""What `costgov run` was told not to pass, and why it starts no command that would pass it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from governor.app.before_launch import refusal
from governor.app.wiring import Governor
from governor.cli.run.relaunch import launched_before
from governor.core.base.units import UsdMicros, format_usd


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the command line."""

    ceiling: UsdMicros | None = None
    price: UsdMicros | None = None
    max_rate: UsdMicros | None = None  # The machine's price an hour.


def not_launched(governor: Governor, name: str, limits: Limits) -> str | None:
    """Why the command is not started, in one line: an earlier launch of it, the machine's price, or a budget."""
    clock = governor.clock
    return (
        launched_before(governor, name)
        or too_dear(limits.max_rate, governor.price.usd_micros_per_hour, governor.price.text)
        or refusal(governor.node, name, os.getuid(), clock.boot(), clock.mono())
    )


def too_dear(max_rate: UsdMicros | None, price: UsdMicros | None, text: str) -> str | None:
    """Why --max-rate refuses a machine of this price. `text`: the price with its source."""
    if max_rate is None:
        return None
    if price is None:
        return (
            f"not launched: --max-rate {format_usd(max_rate)}/h, and the price of this machine is unknown: "
            "pass --price USD_PER_HOUR, or set node.price_usd_per_hour in costgov.toml"
        )
    if price <= max_rate:
        return None
    return f"not launched: --max-rate {format_usd(max_rate)}/h is below the price of this machine, {text}"
