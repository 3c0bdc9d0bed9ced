"""What `costgov run` was told not to pass, and why it starts no command that would pass it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from governor.app.before_launch import refusal
from governor.app.wiring import Governor
from governor.cli.run.relaunch import launched_before
from governor.core.base.units import UsdMicros


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the command line."""

    ceiling: UsdMicros | None = None
    price: UsdMicros | None = None


def not_launched(governor: Governor, name: str, limits: Limits) -> str | None:
    """Why the command is not started, in one line: an earlier launch of it, or a budget."""
    clock = governor.clock
    return launched_before(governor, name) or refusal(governor.node, name, os.getuid(), clock.boot(), clock.mono())
