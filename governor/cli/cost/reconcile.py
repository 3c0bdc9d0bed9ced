"""`costgov cost reconcile`: the ledger against a provider's bill, with the likely cause of every difference."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import ExitCode, Failed, config_option, exits, json_option, print_json, settings_from
from governor.cli.cost.bill_file import (
    bill_options,
    is_of,
    names_of,
    notes,
    own_resources,
    read_bill_file,
    shift_row,
)
from governor.cli.cost.charges import Unread, charges_in, scope_of, time_options
from governor.core.base.units import NS_PER_DAY, utc_text
from governor.core.money.reports.cost import decimal_text, rounded_together
from governor.text.screen import screen_of

if TYPE_CHECKING:
    from governor.core.money.charges import Charge
    from governor.core.money.reports.bill import Bill, Cause, Difference
    from governor.core.money.reports.bill_zone import Zone
    from governor.core.money.reports.reconcile import Reconciliation
    from governor.wire.bill_map import BillMap

ROWS_SHOWN: Final = 50  # One or two screens, largest first. --json has all.
OTHERS_SHOWN: Final = 20  # Of each cause.
_CENTS: Final = (100, 2)
_MICROS: Final = (1_000_000, 6)


@click.command(short_help="Compare the ledger with a provider's bill.", epilog=exits(ExitCode.DIFFERS))
@click.argument("bill", metavar="BILL.csv", type=click.Path(dir_okay=False))
@bill_options
@time_options
@config_option
@json_option
def reconcile(
    bill: str, form: str, columns: BillMap | None, resources: tuple[str, ...], since: int | None, until: int | None,
    config: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the ledger with a bill, by resource and by the hour or the day, whichever the bill is in.

    Reads FOCUS rows (BilledCost) and AWS CUR rows (UnblendedCost, with resource ids, either spelling of the columns),
    plain or gzipped; any other CSV by --map date=COLUMN --map amount=COLUMN and what else it has. The time compared is
    the bill's own billing periods. Every difference of a cent and more is named with its likely cause; together they
    are exactly what the totals differ by.

    Exits with 0 when all that differs is below a cent in all or no use of a resource (tax, credits, refunds, plans and
    reservations), with 6 when more than that differs, as a disk that nobody meters; with 1 when a part of the ledger
    cannot be read.
    """
    from governor.core.money.reports.bill_reading import amounts_only, metered_hours, read_as_ours
    from governor.core.money.reports.bill_zone import zone_of
    from governor.core.money.reports.reconcile import reconcile as compare

    settings = settings_from(config)
    state_dir = settings.paths.state_dir
    found = read_bill_file(bill, state_dir, form, columns, resources, since, until)
    own, unread, window = _charged(state_dir, bill, found, resources, since, until)
    read, hours = read_as_ours(found, own, settings.price.gpus), metered_hours(own)
    zone, without_hours = zone_of(read, own), amounts_only(read, hours)
    if zone.shift is not None:
        found = zone.shift.taken_off(found)
        own, unread, window = _charged(state_dir, bill, found, resources, since, until)
    if not own and not unread.count:
        click.echo(f"costgov: {state_dir}: {_nothing_charged(state_dir, resources)}", err=True)
    result = compare(own, found, *window, gpus=settings.price.gpus)
    if as_json:
        print_json(_document(result, bill, read, unread.count, zone, without_hours))
    else:
        _print(result, bill, found, [*notes(read, zone, without_hours), *_another_name(result)])
    # Before the verdict, because missing charges may explain the difference.
    unread.end()
    if not result.agrees:
        raise click.exceptions.Exit(ExitCode.DIFFERS)


def _charged(
    state_dir: Path, path: str, bill: Bill, resources: tuple[str, ...], since: int | None, until: int | None
) -> tuple[list[Charge], Unread, tuple[int, int]]:
    """The charges of the bill's time, what of them cannot be read, and that time."""
    window = _window(path, bill, since, until)
    scope = scope_of(*window, ())
    unread = Unread(scope)
    own = [charge for charge in charges_in(state_dir, scope, unread) if is_of(charge, resources)]
    return own, unread, window


def _nothing_charged(state_dir: Path, resources: tuple[str, ...]) -> str:
    text = "nothing was charged in that time"
    machines = own_resources(state_dir)[1]
    unknown = [theirs for theirs, ours in names_of(resources).items() if ours not in machines]
    if unknown and machines:
        name = next(iter(machines)) if len(machines) == 1 else "NAME"
        return f"{text}; if the ledger has it under another name, say --resource {unknown[0]}={name}"
    return f"{text}; is it the right ledger (--config)?"


def _another_name(result: Reconciliation) -> list[str]:
    """The line that says what to do, where one machine is missing on either side: it may be one under two names."""
    from governor.core.money.charges import LineKind
    from governor.core.money.reports.bill import MANY_RESOURCES, BillKind, Cause

    machines = (BillKind.COMPUTE.value, BillKind.OTHER.value)
    theirs = {one.resource for one in result.differences if one.cause in MANY_RESOURCES and one.what in machines}
    missing = (one for one in result.differences if one.cause is Cause.UNKNOWN_TO_THEM)
    ours = {one.resource for one in missing if one.what == LineKind.COMPUTE.value}
    if len(theirs) != 1 or len(ours) != 1 or not all(theirs):
        return []
    [bill_name], [name] = theirs, ours
    return [f"if {bill_name} of the bill is {name} of the ledger, say --resource {bill_name}={name}"]


def _window(path: str, bill: Bill, since: int | None, until: int | None) -> tuple[int, int]:
    first = bill.since if since is None else max(since, bill.since)
    last = bill.until if until is None else min(until, bill.until)
    if first >= last:
        raise Failed(
            f"{path}: is about {utc_text(bill.since)} to {utc_text(bill.until)}, and nothing of that is asked for"
        )
    return first, last


# --- amounts that add up as printed


def _amounts(result: Reconciliation, parts: Sequence[Fraction], scale: int) -> tuple[int, int, list[int]]:
    """Ledger, bill and parts in whole cents or micro-dollars, rounded so that the printed parts add up."""
    ours, theirs = (_half_up(side * scale) for side in (result.ours_usd, result.theirs_usd))
    return ours, theirs, rounded_together([part * scale for part in parts], theirs - ours)


def _half_up(value: Fraction) -> int:
    return (2 * value + 1) // 2


# --- for people


def _print(result: Reconciliation, path: str, bill: Bill, told: Sequence[str]) -> None:
    from governor.core.money.reports.bill import CENT_USD
    from governor.text.table import Head, render_rows

    shown, rest = _shown(result.differences)
    parts = [difference.usd for difference in shown]
    parts += [sum((difference.usd for difference in rest), Fraction(0))] if rest else []
    scale, digits = _CENTS
    ours, theirs, cents = _amounts(result, parts, scale)
    times = f"{_short(result.since)} to {_short(result.until)} UTC"
    click.echo(f"{path}: {bill.form}, {bill.rows} rows, {times}, by the {result.per}")
    for note in told:
        click.echo(note)
    for name, amount in (("bill", theirs), ("ledger", ours), ("difference", theirs - ours)):
        click.echo(f"{name:<10}  {_dollars(amount, scale, digits):>14}")
    if result.differences:
        heads = [Head(title) for title in ("CAUSE", "RESOURCE", "KIND", "FROM", "TO")]
        heads += [Head("HOURS", is_number=True), Head("DIFFERENCE", is_number=True)]
        heads += [Head("LIKELY BECAUSE", may_wrap=True)]
        cells = [(one, cent) for one, cent in zip(shown, cents, strict=False) if cent or abs(one.usd) >= CENT_USD]
        rows = [[*_cells(one), _signed(cent), _why(one)] for one, cent in cells]
        if rest:
            rows.append([f"{len(rest)} more", "", "", "", "", "", _signed(cents[-1]), "--json has them all"])
        rows.append(["total", "", "", "", "", "", _signed(theirs - ours), ""])
        click.echo(render_rows(heads, rows, total=True, screen=screen_of(sys.stdout)), nl=False)
    click.echo(_verdict(result))


def _shown(differences: Sequence[Difference]) -> tuple[list[Difference], list[Difference]]:
    """The largest, with room for those of our own machines beside a thousand machines of others."""
    from governor.core.money.reports.bill import MANY_RESOURCES

    shown: list[Difference] = []
    rest: list[Difference] = []
    count: Counter[Cause] = Counter()
    for one in differences:
        count[one.cause] += 1
        is_one_too_many = one.cause in MANY_RESOURCES and count[one.cause] > OTHERS_SHOWN
        (rest if is_one_too_many or len(shown) == ROWS_SHOWN else shown).append(one)
    return shown, rest


def _verdict(result: Reconciliation) -> str:
    from governor.core.money.reports.bill import CENT_USD

    if result.agrees:
        if any(one.is_rounding and abs(one.usd) >= CENT_USD for one in result.differences):
            return "agrees: what differs is the rounding of the bill's amounts, or tax, credits and the like"
        return "agrees: what differs is below a cent in all, or tax, credits and the like"
    count = sum(not difference.is_explained for difference in result.differences)
    return f"differs: {count} difference{'s' if count > 1 else ''} beyond a cent, tax, credits and the like"


def _cells(one: Difference) -> list[str]:
    hours = "" if one.hours is None else f"{'+' if one.hours > 0 else ''}{_decimal(one.hours, 3)}"
    resource = f"{one.resources:,} smaller ones" if one.resources else one.resource
    return [one.cause.value, resource, one.what, _short(one.from_wall), _short(one.to_wall), hours]


def _short(wall: int) -> str:
    """An instant at its own precision: a day, a minute, or a second."""
    date, _, time = utc_text(wall).rstrip("Z").partition("T")
    return date if time == "00:00:00" else f"{date} {time.removesuffix(':00')}"


def _why(one: Difference) -> str:
    times = f", {one.times} times below a cent" if one.times > 1 else ""
    return f"{_reason(one)}{times}"


def _reason(one: Difference) -> str:
    from governor.core.money.reports.bill import Cause

    if one.cause is Cause.PRICE:
        if one.our_prices is None or one.their_prices is None:
            return ""
        per = "h" if one.per == "hour" else one.per
        return f"ours ${_prices(one.our_prices)}/{per}, theirs ${_prices(one.their_prices)}/{per}"
    if one.cause is Cause.QUANTITY and one.gb_months is not None:
        ours, theirs = (_decimal(amount, 3) for amount in one.gb_months)
        return f"ours {ours} GB-months, theirs {theirs}: another size or another time"
    if one.cause is Cause.BELOW_A_CENT and one.is_rounding:
        return "its rows are rounded, up and down"
    if one.cause is Cause.AMOUNT and one.rounding_squares is not None:
        return "not explained: each amount is right as it is rounded, all together are not"
    if one.cause is Cause.NOT_METERED:
        return "" if one.is_explained else "it costs money"
    if one.hours is not None and abs(one.hours) == 1 and one.to_wall - one.from_wall == NS_PER_DAY:
        from governor.core.money.reports.bill_zone import clocks_change_on

        # By noon: in local time it begins on the day before.
        if clocks_change_on((one.from_wall + NS_PER_DAY // 2) // NS_PER_DAY):
            return f"clocks change on this day: in local time it has {24 + int(one.hours)} hours"
    return {
        Cause.AMOUNT: "not explained: a side has no quantity, or none that can be compared",
        Cause.MONTH: "theirs is the calendar's month, ours has 730 hours",
        Cause.TOO_MANY_HOURS: "more hours than there were: billed twice, or in another unit",
        Cause.OURS_MISSING: "no governor was installed, or it was down",
        Cause.THEIRS_MISSING: "metered here and not billed",
        Cause.NOT_FINAL: "the bill ends within this time",
        Cause.GRANULARITY: "billed in full hours or minutes",
        Cause.LOST: "one sum for hours that the bill has as missing here",
        Cause.OTHER_TIME: "billed in this period for a time outside it",
        Cause.RESOURCE_NOT_METERED: "no line of the ledger: is it still needed?",
        Cause.UNKNOWN_TO_US: "no ledger here has charged it",
        Cause.UNKNOWN_TO_THEM: "the bill has no such line",
    }.get(one.cause, "")


def _prices(prices: tuple[Fraction, Fraction]) -> str:
    low, high = (_price(price) for price in prices)
    return low if low == high else f"{low}–{high}"


def _price(price: Fraction) -> str:
    whole, _, digits = _decimal(price, 6).partition(".")
    return f"{whole}.{digits.rstrip('0').ljust(2, '0')}"


def _signed(cents: int) -> str:
    return f"{'+' if cents > 0 else ''}{_dollars(cents, *_CENTS)}"


def _dollars(amount: int, scale: int, digits: int) -> str:
    whole, _, fraction = decimal_text(abs(amount), scale, digits).partition(".")
    return f"{'-' if amount < 0 else ''}${int(whole):,}.{fraction}"


def _decimal(value: Fraction, digits: int) -> str:
    return decimal_text(value.numerator, value.denominator, digits)


# --- for programs


def _document(
    result: Reconciliation,
    path: str,
    bill: Bill,
    unreadable: int,
    zone: Zone,
    without_hours: Mapping[str, bool],
) -> dict[str, Any]:
    """Amounts are decimal strings of micro-dollars. The printed amounts add up."""
    scale, digits = _MICROS
    ours, theirs, parts = _amounts(result, [one.usd for one in result.differences], scale)
    return {
        "bill": path,
        "form": bill.form,
        "since": utc_text(result.since),
        "until": utc_text(result.until),
        "per": result.per,
        **shift_row(zone),
        "amounts_only": bool(without_hours),
        "gpus_unknown": sorted(resource for resource, of_gpus in without_hours.items() if of_gpus),
        "hours_divided_by": {resource: parts or None for resource, parts in bill.parts},
        "currency": "USD",
        "ledger_usd": decimal_text(ours, scale, digits),
        "bill_usd": decimal_text(theirs, scale, digits),
        "difference_usd": decimal_text(theirs - ours, scale, digits),
        "agrees": result.agrees,
        "differences": [
            _record(one, decimal_text(part, scale, digits)) for one, part in zip(result.differences, parts, strict=True)
        ],
        "unreadable": unreadable,
    }


def _record(one: Difference, usd: str) -> dict[str, Any]:
    return {
        "cause": one.cause.name.lower(),
        "explained": one.is_explained,
        "resource": one.resource or None,
        "kind": one.what or None,
        "from": utc_text(one.from_wall),
        "to": utc_text(one.to_wall),
        "usd": usd,
        "hours": None if one.hours is None else _decimal(one.hours, 6),
        "our_prices_usd": None if one.our_prices is None else [_decimal(price, 6) for price in one.our_prices],
        "their_prices_usd": None if one.their_prices is None else [_decimal(price, 6) for price in one.their_prices],
        "prices_per": one.per,
        "gb_months": None if one.gb_months is None else [_decimal(amount, 6) for amount in one.gb_months],
        "times": one.times,
        "resources": one.resources or None,
    }
