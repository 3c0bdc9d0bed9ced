"""What `costgov run` was told not to pass, and why it starts no command that would pass it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from governor.app.before_launch import refusal
from governor.app.wiring import Governor
from governor.cli.common import ExitCode
from governor.cli.run.relaunch import finish_halt, launched_before
from governor.core.base.policy import Policy, WarmUp
from governor.core.base.units import UsdMicros, price_text
from governor.core.engine.orders import of_fleet
from governor.core.money.lines import Lines


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the command line."""

    ceiling: UsdMicros | None = None
    price: UsdMicros | None = None
    max_rate: UsdMicros | None = None  # Of the machine and of its hourly lines.
    gate: WarmUp | None = None  # After what its cost at its goal is looked at.


def refused(
    governor: Governor, name: str, argv: Sequence[str], limits: Limits, print_line: Callable[[str], None]
) -> int | None:  # fmt: skip
    """The exit code where the command is not started, which is told, and None where it is."""
    code = finish_halt(governor, name, argv, print_line)
    if code is not None:
        return code
    refusal = not_launched(governor, name, limits)
    if refusal is None:
        return None
    sys.stderr.write(f"costgov: {refusal}\n")
    return ExitCode.FAILED


def not_launched(governor: Governor, name: str, limits: Limits) -> str | None:
    """Why the command is not started, in one line: an earlier launch of it, the machine's price, or a budget."""
    clock, node, uid = governor.clock, governor.node, os.getuid()
    policies = (*node.policies.policies, node.policy_for(name, None, {}, uid))
    return (
        launched_before(governor, name)
        or too_dear(limits.max_rate, governor.price.usd_micros_per_hour, governor.price.text, node.facts.lines)
        or nothing_to_compare(limits.gate, policies, governor.price.usd_micros_per_hour)
        or ordered_not_to(governor, name)
        or refusal(node, name, uid, clock.boot(), clock.mono())
    )


def ordered_not_to(governor: Governor, name: str) -> str | None:
    """Why an order to the fleet lets no command of this name start."""
    if governor.fleet is None:
        return None
    governor.fleet.await_orders()
    return of_fleet.refusal(governor.node, name, os.getuid(), governor.clock.mono())


def too_dear(max_rate: UsdMicros | None, price: UsdMicros | None, text: str, lines: Lines) -> str | None:
    """Why --max-rate refuses a machine of this price with its lines. `text`: the price with its source."""
    if max_rate is None:
        return None
    most = f"not launched: --max-rate {price_text(max_rate)}/h"
    if price is None:
        return (
            f"{most}, and the price of this machine is unknown: "
            "pass --price USD_PER_HOUR, or set node.price_usd_per_hour in costgov.toml"
        )
    whole = UsdMicros(price + lines.usd_micros_per_hour)
    if whole <= max_rate:
        return None
    if not lines.usd_micros_per_hour:
        return f"{most} is below {price_text(whole)}/h, the price of this machine: {text}"
    return f"{most} is below {price_text(whole)}/h: the machine {text}; {'; '.join(one.text for one in lines.hourly)}"


def _compares(policy: Policy) -> bool:
    expected = policy.expected
    plans = (policy.budget.ceiling_usd_micros, expected.usd_micros_per_mtok, expected.usd_micros_per_mtok_all_in)
    return any(plan is not None for plan in plans)


def nothing_to_compare(gate: WarmUp | None, policies: Iterable[Policy], price: UsdMicros | None) -> str | None:
    """Why --gate could not be asked. The goal may be the trainer's own, which only its first step tells."""
    if gate is None:
        return None
    if not any(map(_compares, policies)):
        return (
            "not launched: --gate has no ceiling to compare with: pass --ceiling USD, or set [budget] ceiling_usd or "
            "[expected] usd_per_mtok or usd_per_mtok_all_in in the policy"
        )
    if price is None:
        return (
            "not launched: --gate, and the price of this machine is unknown: pass --price USD_PER_HOUR, or set "
            "node.price_usd_per_hour in costgov.toml"
        )
    return None
