"""The account of a run's time and money, as its report has it, for an export."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from governor.cli.report.known import NOT_OURS, Kept, Places, how_it_ended, kept_of, live_of, unasked_of
from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import whole_of
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, UsdMicros, utc_text
from governor.core.money.reports.cost import exact_usd
from governor.exports.causes import OwnAccount
from governor.exports.series import Causes
from governor.reports.causes import seconds

_NS_MAX = 2**63  # Such moments have a date.
_OF_ANOTHER = (
    "its governor is of another costgov, and its account cannot be read: the one of its journal is told, and what that "
    "governor knows since is missing"
)


def account_of(run: str, places: Places) -> OwnAccount | None:
    """By a governor that watches the run, else by its journal. None: neither knows of the run."""
    asked_at = time.time_ns()
    live = live_of(run, places)
    kept = kept_of(run, places.state_dir, [])
    if live is not None and (by_cause := _by_cause(live["time"])) is not None:
        return OwnAccount(by_cause, asked_at, is_live=True, goes_on=how_it_ended(live, kept) is None)
    if kept is None:
        return None
    # A governor whose account cannot be read here watches the run all the same.
    unasked = unasked_of(kept) if live is None else _OF_ANOTHER
    goes_on = unasked is not None if live is None else how_it_ended(live, kept) is None
    return _journalled(kept)._replace(goes_on=goes_on, unasked=unasked)


def how_far(run: str, account: Causes) -> str:
    """One line about the last account of a run that goes on."""
    usd = f", ${exact_usd(UsdMicros(sum(account.usd_micros.values())))}" if account.usd_micros else ""
    told = f"{seconds(sum(account.ns.values()) / NS_PER_S)}{usd}"
    return f"the account of run {run} is that as of {utc_text(account.wall)} ({told}): the run goes on"


def _by_cause(row: Mapping[str, Any]) -> dict[Cause, Amount] | None:
    """Of a status's row of time, to the nanosecond. None: it is of another costgov."""
    try:
        found = {Cause.PRODUCTIVE: _amount(row["productive_s"], row["productive_usd"])}
        return found | {Cause(one["cause"]): _amount(one["s"], one["usd"]) for one in row["causes"]}
    except NOT_OURS:
        return None


def _amount(seconds: float, usd: float) -> Amount:
    return Amount(round(seconds * NS_PER_S), round(usd * MICROS_PER_USD))


def _journalled(kept: Kept) -> OwnAccount:
    """What its row says. It has no cause where that is nothing."""
    row, time_of = kept.row, kept.row.get("time")
    try:
        wall, boot, counted_to = row.get("wall_ns"), row.get("boot_ns"), time_of and time_of.get("boot_to")
        if isinstance(wall, int) and isinstance(boot, int) and isinstance(counted_to, int):
            wall -= max(0, boot - counted_to)  # The row may be newer than its account.
        by_cause = whole_of(TimeAccount.restored(time_of, same_boot=False)).by_cause if time_of is not None else {}
        return OwnAccount(by_cause, wall if isinstance(wall, int) and 0 <= wall < _NS_MAX else None)
    except NOT_OURS:
        return OwnAccount({}, None)
