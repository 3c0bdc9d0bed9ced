"""`costgov audit`: the halts beside a provider's bill: what was billed after the end of billing was confirmed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import ExitCode, complain, config_option, exits, json_option, print_json, settings_from
from governor.cli.cost.bill_file import bill_options, is_of, names_of, notes, read_bill_file, shift_row
from governor.cli.cost.charges import Scope, Unread, charges_in
from governor.core.base.units import utc_text
from governor.core.money.reports.cost import decimal_text
from governor.text.screen import screen_of

if TYPE_CHECKING:
    from governor.core.money.reports.audit import Audited, BilledAfter, Halted
    from governor.core.money.reports.bill import Bill
    from governor.core.money.reports.bill_zone import Zone
    from governor.wire.bill_map import BillMap

_HEAD: Final = ("INCIDENT", "RUN", "VERIFIED (UTC)", "RESOURCE", "KIND")
_NOTHING: Final = "nothing was billed after it"


@click.command(
    short_help="Halts beside the bill: what was billed after VERIFIED.",
    epilog=exits(ExitCode.DIFFERS, ExitCode.NO_GOVERNOR, ExitCode.DENIED),
)
@click.argument("bill", metavar="BILL.csv", type=click.Path(dir_okay=False))
@bill_options
@config_option
@json_option
def audit(
    bill: str, form: str, columns: BillMap | None, resources: tuple[str, ...], config: Path | None, as_json: bool
) -> None:
    """Show each halt beside a provider's bill: what was billed for that machine after the end of billing was VERIFIED.

    Reads the bills that `costgov cost reconcile` reads. It counts from the moment at which the provider confirmed
    that billing had ended to the machine's next start, as the ledger has it, or else to the end of the bill. Of a row
    that began before, what the ledger metered comes off. A row may reach over several halts, as in a bill by the
    month. What is left of it is told once, with the first of them: the bill does not say after which it was. A halt
    that ended processes only, or that nobody has confirmed, is listed without amounts.

    Exits with 0 when a cent or more was billed after none of them, but for a minute or a begun hour, with 6 when it
    was; with 1 when there are halts and the end of billing was confirmed of none of them, or when a part of the ledger
    cannot be read. What was not compared is null in `agrees` of --json.
    """
    from governor.core.money.reports.audit import agreement
    from governor.core.money.reports.audit import audit as beside
    from governor.core.money.reports.bill_reading import amounts_only, metered_hours, read_as_ours
    from governor.core.money.reports.bill_zone import zone_of

    settings = settings_from(config)
    state_dir = settings.paths.state_dir
    halts = _halts(config, resources)
    found = read_bill_file(bill, state_dir, form, columns, resources, also=frozenset(one.resource for one in halts))
    scope = Scope(found.since, None, ())
    unread = Unread(scope)
    own = [charge for charge in charges_in(state_dir, scope, unread) if is_of(charge, resources)]
    found = read_as_ours(found, own, settings.price.gpus)
    zone = zone_of(found, own)
    found = zone.shift.taken_off(found) if zone.shift is not None else found
    audited = beside(halts, found, own)
    agrees = agreement(audited)
    if as_json:
        print_json(_document(bill, found, audited, unread.count, zone, agrees=agrees))
    else:
        without_hours = amounts_only(found, metered_hours(own))
        _print(bill, found, audited, notes(found, zone, without_hours), agrees=agrees)
    unread.end()
    if agrees is False:
        raise click.exceptions.Exit(ExitCode.DIFFERS)
    if audited and agrees is None:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _halts(config: Path | None, resources: tuple[str, ...]) -> list[Halted]:
    """The incidents that are known, of the resources that are asked for. One that cannot be read is told."""
    from governor.cli.incident.known import known_incidents
    from governor.core.money.reports.audit import halted_of
    from governor.wire.control_client import INCIDENTS_MAX

    wanted = set(names_of(resources).values())
    halts: list[Halted] = []
    for snapshot in known_incidents(INCIDENTS_MAX, config, None):
        try:
            halted = halted_of(snapshot)
        except (KeyError, TypeError, ValueError):
            complain(f"incident {snapshot.get('incident_id', '?')} cannot be read; it is not audited")
            continue
        if not wanted or halted.resource in wanted:
            halts.append(halted)
    return halts


# --- for people


def _print(path: str, bill: Bill, audited: Sequence[Audited], told: Sequence[str], *, agrees: bool | None) -> None:
    from governor.core.money.reports.bill import CENT_USD
    from governor.text.table import Head, plain, render_rows

    click.echo(f"{path}: {bill.form}, {bill.rows} rows, {utc_text(bill.since)} to {utc_text(bill.until)}")
    for note in told:
        click.echo(note)
    if not audited:
        click.echo("no halt in the time of this bill")
        return
    heads = [Head(title, may_wrap=title == "RUN") for title in _HEAD]
    heads += [Head("HOURS", is_number=True), Head("BILLED AFTER", is_number=True), Head("", may_wrap=True)]
    rows = [[plain(cell) for cell in row] for one in audited for row in _rows(one)]
    click.echo(render_rows(heads, rows, total=False, screen=screen_of(sys.stdout)), nl=False)
    late = [part for one in audited for part in one.billed if part.differs]
    verified = sum(one.agrees is not None for one in audited)
    if not verified:
        click.echo(f"nothing could be compared: the end of billing was confirmed of none of {_counted(len(audited))}")
        return
    if verified < len(audited):
        click.echo(f"not compared: {_counted(len(audited) - verified)} whose end of billing was not confirmed")
    if agrees:
        # Rounding, and what is below a cent.
        beside = sum((part.usd for one in audited for part in one.billed), Fraction(0))
        beyond = (
            f" but {_dollars(beside)} of rounding" if beside >= CENT_USD else " of a cent or more" if beside else ""
        )
        click.echo(f"agrees: nothing{beyond} was billed after {verified} verified halt{'' if verified == 1 else 's'}")
    else:
        total = sum((part.usd for part in late), Fraction(0))
        click.echo(f"differs: {_dollars(total)} was billed after billing had ended")


def _counted(halts: int) -> str:
    return f"{halts} halt{'' if halts == 1 else 's'}"


def _rows(one: Audited) -> Iterable[list[str]]:
    halted = one.halted
    begin = [halted.incident_id, halted.run]
    if halted.verified_wall is None:
        yield [*begin, "-", halted.resource, "", "", "", "the end of billing was not confirmed"]
        return
    begin += [utc_text(halted.verified_wall), halted.resource]
    if not one.billed:
        yield [*begin, "", "", _dollars(Fraction(0)), _NOTHING]
    for part in one.billed:
        hours = "" if part.hours is None else _decimal(part.hours, 3)
        yield [*begin, part.kind.value, hours, "" if part.is_told_before else _dollars(part.usd), _why(one, part)]


def _why(one: Audited, part: BilledAfter) -> str:
    if part.is_rounding:
        return "billed in full hours or minutes"
    if not part.differs:
        return "below a cent"
    if part.is_told_before:
        return f"or after this one: the amount of {part.one_of[0]}"
    if part.one_of:
        return f"after one of {len(part.one_of)} halts: a row has them all, and does not say which"
    return "to the end of the bill" if one.until_wall is None else f"to its next start, {utc_text(one.until_wall)}"


def _dollars(usd: Fraction) -> str:
    whole, _, digits = _decimal(usd, 2).partition(".")
    return f"${int(whole):,}.{digits}"


def _decimal(value: Fraction, digits: int) -> str:
    return decimal_text(value.numerator, value.denominator, digits)


# --- for programs


def _document(
    path: str, bill: Bill, audited: Sequence[Audited], unreadable: int, zone: Zone, *, agrees: bool | None
) -> dict[str, Any]:
    """Amounts are decimal strings of micro-dollars."""
    return {
        "bill": path,
        "form": bill.form,
        "since": utc_text(bill.since),
        "until": utc_text(bill.until),
        **shift_row(zone),
        "currency": "USD",
        "agrees": agrees,
        "incidents": [_record(one) for one in audited],
        "unreadable": unreadable,
    }


def _record(one: Audited) -> dict[str, Any]:
    halted = one.halted
    return {
        "incident_id": halted.incident_id,
        "run": halted.run,
        "resource": halted.resource,
        "opened": utc_text(halted.opened_wall),
        "verified": None if halted.verified_wall is None else utc_text(halted.verified_wall),
        "on_again": None if one.until_wall is None else utc_text(one.until_wall),
        "agrees": one.agrees,
        "billed_after": [
            {
                "kind": part.kind.value,
                "usd": _decimal(part.usd, 6),
                "hours": None if part.hours is None else _decimal(part.hours, 6),
                "rounding": part.is_rounding,
                "one_of": list(part.one_of),
            }
            for part in one.billed
        ],
    }
