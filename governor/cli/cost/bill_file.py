"""Shared by the commands that take a provider's bill: its options, reading it, and the maps that were given before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from governor.cli.common import Failed, complain, remark
from governor.cli.cost.charges import Scope, Unread, charges_in
from governor.core.base.units import NS_PER_HOUR, utc_text

if TYPE_CHECKING:
    from governor.core.money.charges import Charge
    from governor.core.money.reports.bill import Bill
    from governor.core.money.reports.bill_zone import Shift, Zone
    from governor.wire.bill_map import BillMap

MAPS_FILE: Final = "bill_maps.json"
AMOUNTS_ONLY: Final = "the bill has no hours of the machine: only amounts are compared"
OTHER_SHIFTS_SHOWN: Final = 3
NO_GPUS: Final = (
    "it has GPU-hours, and how many GPUs it has is not known: only amounts are compared; set gpus in [price]"
)
MAPS_MAX: Final = 100  # The newest. Each is one header of a file.
MAP_CHARS_MAX: Final = 50_000
MAPS_BYTES_MAX: Final = 64 * 1024 * 1024  # So many of the longest have less.

Command = TypeVar("Command", bound=Callable[..., Any])


def _map(ctx: click.Context, param: click.Parameter, pairs: Sequence[str]) -> BillMap | None:
    from governor.wire.bill_map import bill_map

    try:
        return bill_map(pairs) if pairs else None
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _resources(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    for one in given:
        if not all(one.partition("=")[::2] if "=" in one else [one]):
            raise click.BadParameter(f'"{one}" is neither an ID nor ID=NAME', ctx, param)
    return tuple(given)


def bill_options(command: Command) -> Command:
    """Adds --format, --map and --resource as `form`, `columns` and `resources`."""
    for option in (
        click.option(
            "--resource", "resources", multiple=True, callback=_resources, metavar="ID[=NAME]",
            help="Only this instance or volume; NAME is what the ledger calls it, if not so. Repeatable.",
        ),
        click.option(
            "--map", "columns", multiple=True, callback=_map, metavar="FIELD=COLUMN",
            help="Of a plain CSV: which column is date, amount, hours, resource, end, unit, kind, currency; "
            "per=hour|day|month, unit=gpu-hours and currency=USD are words. Repeatable; remembered for files "
            "with the same columns.",
        ),
        click.option(
            "--format", "form", type=click.Choice(["auto", "focus", "cur", "plain"]), default="auto",
            show_default=True, help="What kind of bill it is; auto looks at its columns.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def own_resources(state_dir: Path) -> tuple[frozenset[str], frozenset[str]]:
    """What the ledger has ever charged, and the machines of it. What cannot be read is told when it is compared."""
    from governor.core.money.charges import LineKind
    from governor.core.money.reports.bill import short_resource
    from governor.core.money.reports.focus import resource_id

    whole = Scope(None, None, ())
    found = {(short_resource(resource_id(one)), one.line.kind) for one in charges_in(state_dir, whole, Unread(whole))}
    machines = frozenset(name for name, kind in found if kind is LineKind.COMPUTE)
    return frozenset(name for name, _ in found), machines


def names_of(resources: Sequence[str]) -> dict[str, str]:
    """Of each --resource: its name in the bill -> that in the ledger."""
    from governor.core.money.reports.bill import short_resource

    pairs = (one.partition("=") for one in resources)
    return {short_resource(theirs): short_resource(ours or theirs) for theirs, _, ours in pairs}


def read_bill_file(
    path: str,
    state_dir: Path,
    form: str,
    columns: BillMap | None,
    resources: tuple[str, ...],
    since: int | None = None,
    until: int | None = None,
    also: frozenset[str] = frozenset(),
) -> Bill:
    """Read a bill: rows of the ledger's own resources and of `also` one by one, those of others as sums."""
    from governor.wire.bills import Wanted, read_bill
    from governor.wire.csv_table import TableError
    from governor.wire.named_file import opened_file

    if columns is not None and form not in ("auto", "plain"):
        raise click.UsageError(f"--map is for plain CSV, and --format {form} has columns of its own")
    maps = BillMaps(state_dir)
    names = names_of(resources)
    ours, machines = own_resources(state_dir)
    wanted = Wanted(
        form, columns, tuple(names), ours | also, machines, names, since, until,
        progress=lambda rows: remark(f"{path}: {rows:,} rows are read"),
    )  # fmt: skip
    try:
        with opened_file(path) as stream:
            bill = read_bill(stream, path, wanted, remembered=maps.of)
    except TableError as error:
        raise Failed(str(error)) from error
    except OSError as error:
        raise Failed(f"{path}: cannot be read: {error.strerror}") from error
    if columns is not None:
        maps.keep(columns)
    return bill


def is_of(charge: Charge, resources: tuple[str, ...]) -> bool:
    from governor.core.money.reports.bill import short_resource
    from governor.core.money.reports.focus import resource_id

    return not resources or short_resource(resource_id(charge)) in names_of(resources).values()


class BillMaps:
    """The maps that were given, by the columns of the file: the next bill of that provider needs none."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / MAPS_FILE
        self._asked: list[str] = []

    def of(self, columns: list[str]) -> BillMap | None:
        """The map of a file with these columns, which are the ones that `keep` is about."""
        from governor.wire.bill_map import bill_map

        self._asked = columns
        for known in self._read():
            if known["columns"] == columns:
                with suppress(ValueError, AttributeError):
                    return bill_map([f"{field}={name}" for field, name in known["map"].items()])
        return None

    def keep(self, given: BillMap) -> None:
        """Remember the map. Where that fails a line says so: the bill is compared all the same."""
        if sum(map(len, self._asked)) > MAP_CHARS_MAX:
            complain(f"{self._path}: the map is not remembered: the names of the columns are too long")
            return
        rest = [known for known in self._read() if known["columns"] != self._asked]
        entry = {"columns": self._asked, "map": dict(given.columns)}
        part = self._path.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_text(json.dumps([entry, *rest[: MAPS_MAX - 1]], indent=1), encoding="utf-8")
            os.replace(part, self._path)
        except OSError as error:
            complain(f"{self._path}: the map is not remembered: {error.strerror}")
            with suppress(OSError):
                part.unlink()

    def _read(self) -> list[dict[str, Any]]:
        from governor.wire.toml_file import read_bounded

        try:
            data = read_bounded(self._path, MAPS_BYTES_MAX)
            known = json.loads(data) if len(data) <= MAPS_BYTES_MAX else []
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            complain(f"{self._path}: cannot be read, so no map is remembered: {error}")
            return []
        return [one for one in known if isinstance(one, dict) and one.keys() >= {"columns", "map"}]


def shift_row(zone: Zone) -> dict[str, Any]:
    """`shift_changes`: where clocks change within the bill, its own time then, and the shift from then on.

    `shift_may_be`: the shifts with which it fits as well.
    """
    change, shift = None, zone.shift
    if shift is not None and shift.changes_at is not None:
        change = {
            "at": utc_text(shift.changes_at * NS_PER_HOUR).rstrip("Z"),
            "shift_hours": _in_hours(shift, shift.then),
        }
    return {
        "shift_hours": _in_hours(shift, shift.hours) if shift is not None else 0,
        "shift_changes": change,
        "shift_may_be": [_in_hours(other, other.hours) for other in zone.others],
    }


def _in_hours(shift: Shift, hours: int) -> float:
    return hours + shift.minutes / 60 if shift.minutes else hours


def notes(bill: Bill, zone: Zone, without_hours: Mapping[str, bool]) -> list[str]:
    """How the bill was read, a line each. `bill`: as read_as_ours() returns it; `without_hours`: as amounts_only()."""
    found = _zone_lines(zone)
    for resource, parts in bill.parts:
        if parts:
            text = f"{parts} of its hours are one of ours: read as hours of one GPU of {parts}"
        else:
            text = "its hours are neither ours nor a whole number of them at an equal price: say by unit= what they are"
        found.append(f"{resource}: {text}")
    found += [f"{resource}: {NO_GPUS}" for resource, of_gpus in sorted(without_hours.items()) if of_gpus]
    return found if all(without_hours.values()) else [*found, AMOUNTS_ONLY]


def _zone_lines(zone: Zone) -> list[str]:
    """One line, or none where the times are the ledger's. What nobody can tell is no fact."""
    if not zone.others:
        return [f"its times lie {_beside_ours(zone.shift)}: compared so moved"] if zone.shift is not None else []
    may_be = [_beside_ours(other) for other in zone.others[:OTHER_SHIFTS_SHOWN]]
    others = f"{' or '.join(may_be)}{', or another shift,' if len(zone.others) > len(may_be) else ''}"
    if zone.shift is None:
        return [f"its times may be in local time: {others} they fit as well; compared as they stand"]
    text = f"its times may lie {_beside_ours(zone.shift)}, as in local time: compared so moved"
    return [f"{text}; {others} they fit as well, with other hours missing"]


def _beside_ours(shift: Shift) -> str:
    def beside(hours: int) -> str:
        of_hours, minutes = divmod(abs(60 * hours + shift.minutes), 60)
        told = f"{of_hours} h {minutes} min" if minutes else f"{of_hours} h"
        return f"{told} {'before' if hours < 0 else 'after'} ours" if of_hours or minutes else "as ours"

    text = beside(shift.hours)
    if shift.changes_at is not None:
        when = utc_text(shift.changes_at * NS_PER_HOUR).rstrip("Z").replace("T", " ").removesuffix(":00")
        text += f", and {beside(shift.then)} from {when} of its own on, where clocks change"
    return text
