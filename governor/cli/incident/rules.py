"""`costgov incident rules`: how often each rule was right, what it cost, and whether it still enforces."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.common import (
    ExitCode,
    complain,
    config_option,
    control_option,
    exits,
    json_option,
    print_json,
    show_drawn,
    told_of,
)
from governor.cli.incident.known import known_incidents
from governor.cli.incident.sources import fallen_now, mark_sources
from governor.core.base.halt_marks import RuleKey
from governor.core.base.policy import FallBack
from governor.core.base.units import NS_PER_DAY, UsdMicros, date_text, format_usd, parse_duration
from governor.core.money.reports.halt_precision import (
    LOST,
    JudgedHalt,
    RuleRow,
    Tally,
    judged,
    lost_usd_micros,
    rule_rows,
)
from governor.text.screen import Styled, screen_of
from governor.text.table import plain
from governor.wire.control_client import INCIDENTS_MAX, Snapshot

_DAYS_TO_THURSDAY: Final = 3  # 1970-01-01 was a Thursday.
_OBSERVES: Final = "observes"


class Since(click.ParamType[int]):
    """ "90d" -> nanoseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def month_of(wall: int) -> str:
    return date_text(wall)[:7]


def week_of(wall: int) -> str:
    """The Monday of its week."""
    day = wall // NS_PER_DAY
    return date_text((day - (day + _DAYS_TO_THURSDAY) % 7) * NS_PER_DAY)


_PERIODS: Final[dict[str, Callable[[int], str]]] = {"month": month_of, "week": week_of}


@click.command(
    short_help="How often each rule was right, by what people said.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED),
)
@click.option("--since", type=Since(), metavar="90d", help="Only halts of the last so many days. Default: all known.")
@click.option("--by", type=click.Choice(list(_PERIODS)), help="A row for each month or week (UTC, its Monday) too.")
@config_option
@control_option
@json_option
def rules(since: int | None, by: str | None, config: Path | None, control: str | None, as_json: bool) -> None:
    """Show how often each rule was right: its halts, what `costgov incident mark` has said of them, and the dollars.

    \b
    costgov incident rules
    costgov incident rules --since 90d --by month

    PRECISION is the share of right halts among the marked ones, and of how many. SPENT is what the runs had spent at
    the verdict. LOST is what false halts threw away: the run's price since the checkpoint that it goes on from, and
    what the halts cost; the starts after them are not in it. "+ 2" means that it is not known of 2 more halts. MODE is
    "observes" where the rule has fallen back: as the governors that run say, else by the policies that one would load
    here. Of a policy that is not among them (`costgov run --policy`) it is by `wrong_max` as of the last marked halt.
    """
    begin = time.time_ns() - since if since is not None else None
    sources = mark_sources(config, control)
    snapshots = [one for one in known_incidents(INCIDENTS_MAX, config, control, brief=True) if _is_whole(one)]
    halts = [
        one for one in judged(snapshots, [source.marks for source in sources]) if begin is None or one.key[1] >= begin
    ]
    rows = rule_rows(halts, _PERIODS[by or "month"])
    fallen = _by_rule(fallen_now(sources, config))
    if as_json:
        print_json([_record(row, fallen, halts) for row in rows])
        return
    if not rows:
        click.echo("no halt: nothing to judge")
        return
    with told_of("a rule"):
        _print(rows, fallen, by)


def _is_whole(snapshot: Snapshot) -> bool:
    try:
        lost_usd_micros(snapshot)
        return all(isinstance(snapshot[key], str) for key in ("policy", "rule", "trigger"))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        complain(plain(f"incident {snapshot.get('incident_id', '?')} cannot be read; it is not counted"))
        return False


def _by_rule(fallen: Iterable[FallBack]) -> dict[RuleKey, list[FallBack]]:
    found: dict[RuleKey, list[FallBack]] = {}
    for one in fallen:
        found.setdefault((one.policy, one.rule), []).append(one)
    return found


# --- for people


def _print(rows: Sequence[RuleRow], fallen: dict[RuleKey, list[FallBack]], by: str | None) -> None:
    from governor.text.table import Head, render_rows

    heads = [Head("POLICY", may_wrap=True), Head("RULE", may_wrap=True), *([Head(by.upper())] if by else [])]
    heads += [Head(title, is_number=True) for title in ("HALTS", "RIGHT", "FALSE", "UNMARKED", "PRECISION", "SPENT")]
    heads += [Head("LOST", is_number=True), Head("MODE", may_wrap=True)]
    lines: list[list[str]] = []
    for row in rows:
        names = [plain(row.policy), plain(row.rule)]
        mode = _mode(fallen.get((row.policy, row.rule), []))
        lines.append([*names, *(["all"] if by else []), *_cells(row.whole), mode])
        if by:
            lines += [[*names, period, *_cells(tally), ""] for period, tally in row.by_period.items()]
    notes = [LOST, *(one.text for backs in fallen.values() for one in backs)]
    show_drawn(render_rows(heads, lines, total=False, screen=screen_of(sys.stdout), notes=notes))


def _cells(tally: Tally) -> list[str]:
    frac = tally.precision_frac
    precision = "-" if frac is None else f"{frac:.0%} of {tally.right + tally.false}"
    return [
        *(str(count) for count in (tally.halts, tally.right, tally.false, tally.unmarked)),
        precision,
        _dollars(tally.spent_usd_micros, tally.spent_unknown),
        _dollars(tally.lost_usd_micros, tally.lost_unknown) if tally.false else "",
    ]


def _dollars(usd_micros: int | None, unknown: int) -> str:
    if usd_micros is None:
        return "-"
    return format_usd(UsdMicros(usd_micros)) + (f" + {unknown}" if unknown else "")


def _mode(backs: Sequence[FallBack]) -> str:
    return Styled(_OBSERVES + ", ".join(one.whose for one in backs), "bold yellow") if backs else ""


# --- for programs


def _record(row: RuleRow, fallen: dict[RuleKey, list[FallBack]], halts: Sequence[JudgedHalt]) -> dict[str, Any]:
    """Amounts are whole micro-dollars, of what is known; the counts beside them say of how many halts it is not."""
    return {
        "policy": row.policy,
        "rule": row.rule,
        "trigger": row.trigger,
        **_tally(row.whole),
        "fallen_back": [one.row() for one in fallen.get((row.policy, row.rule), [])],
        "periods": {period: _tally(tally) for period, tally in row.by_period.items()},
        "incidents": {
            said: [one.key[0] for one in halts if one.rule_key == (row.policy, row.rule) and _word(one) == said]
            for said in ("right", "false", "unmarked")
        },
    }


def _word(halt: JudgedHalt) -> str:
    return halt.said.value if halt.said is not None else "unmarked"


def _tally(tally: Tally) -> dict[str, Any]:
    return {**asdict(tally), "unmarked": tally.unmarked, "precision_frac": tally.precision_frac}
