"""`costgov cost stages`: expected against actual by stage, as a table for a report."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.common import ExitCode, config_option, exits, json_option, print_json
from governor.cli.cost.charges import (
    NOTHING_YET,
    Scope,
    Unread,
    journals_in,
    open_windows_of,
    scope_of,
    scope_options,
    state_dir_of,
    sums_of,
    tell_unknown,
    unpriced_in,
    unpriced_notes,
    windows_of,
)
from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_S, format_duration, per_mtok_text, utc_text
from governor.core.money.reports.cost import (
    RECONSTRUCTED,
    STAGE_OF_RUN,
    UNALLOCATED_ROW,
    decimal_text,
    exact_usd,
    whole_cents,
)
from governor.core.money.reports.stage_row import StageRow, total_of
from governor.core.money.reports.stage_table import StageTally
from governor.core.money.token_price import whole_micros
from governor.core.money.waste import WASTE
from governor.text.screen import Screen, screen_of, shown_lines

_COLUMNS: Final = (
    "STAGE", "RUNS", "HOURS", "TOKENS", "EXPECTED", "ACTUAL", "$/1M EXPECTED ALL-IN", "$/1M ALL-IN", "$/1M USEFUL",
    "$/1M EXPECTED STEADY", "$/1M STEADY, STAGE", "DRIFT STEADY, STAGE", "TOK/S EXPECTED", "TOK/S STEADY",
    "WASTED TOKENS", "WASTED", "CEILING", "USED", "BURN RATE", "LANDS AT",
)  # fmt: skip
# The headings of a column that stands alone, in Markdown and in narrow terminals.
_SPELT_OUT: Final = tuple(f"{title} $" if title in ("EXPECTED", "ACTUAL", "WASTED") else title for title in _COLUMNS)

_BY_CAUSE: Final = "wasted_usd_by_cause"


@click.command(short_help="Expected against actual by stage: a table to hand over.", epilog=exits(ExitCode.UNKNOWN))
@scope_options
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for spreadsheets.")
@click.option("--md", "as_md", is_flag=True, help="Print a Markdown table.")
@config_option
@json_option
def stages(
    since: int | None, until: int | None, runs: tuple[str, ...], as_csv: bool, as_md: bool, config: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show what each stage was to cost and has cost: dollars, $/1M tokens, speed, waste, ceiling, and where it lands.

    What was spent is every charge of the stage's runs, pauses and restarts included. What was expected stands in
    each window of tokens, as the policy's [expected] said when it closed: by its all-in price, or marked "steady" by
    the price while it trains, where it has no other. $/1M all-in is what was spent over all tokens trained, useful over
    those of progress alone. Steady is what a million cost while the runs trained, without starts and tokens trained
    twice; tok/s have no starts either. Drift is steady over expected $/1M, less one. A burn rate of 1 lands exactly on
    the ceilings. "Lands at" is a forecast, from each run's recent windows. --json and --csv give exact dollars.
    """
    if as_csv + as_md + as_json > 1:
        raise click.UsageError("--json, --csv and --md exclude one another")
    scope = scope_of(since, until, runs)
    state_dir = state_dir_of(config)
    unread = Unread(scope)
    rows = _rows(state_dir, scope, unread)
    if as_json:
        print_json(_document(rows, scope, unread.count))
    elif as_csv:
        _print_csv(rows)
    elif not rows:
        asked = scope.text()
        if unpriced := unpriced_notes(unpriced_in(state_dir, scope, unread), ()):
            click.echo("\n".join(unpriced))
        elif not unread.count:
            click.echo(f"nothing was charged {asked}" if asked else NOTHING_YET.format(state_dir=state_dir))
    elif as_md:
        _print_markdown(rows)
    else:
        click.echo(table_text(rows, screen_of(sys.stdout)).rstrip("\n"))
    unread.end()
    tell_unknown(state_dir, scope, unread)


def _rows(state_dir: Path, scope: Scope, unread: Unread) -> list[StageRow]:
    tally = StageTally(from_the_beginning=scope.since is None)
    # The newest journal comes last: a run that goes on in another one is held to what that one says.
    journals = [*reversed(journals_in(state_dir))]
    begun_in = {path: list(open_windows_of(path, scope, unread)) for path in journals}
    tally.enter_meters(
        ((path, one.run), one.meter) for path, begun in begun_in.items() for one in begun if one.meter is not None
    )
    for path, begun in begun_in.items():
        for one in (one for one in begun if one.is_given_back):
            tally.enter_given_back(one.run, one.meter, path)
        for run, row in windows_of(path, scope, unread):
            tally.enter_window(run, row, path)
        for one in begun if scope.until is None else ():  # For a past time, the open window's progress is unknown.
            if one.plan is not None:
                tally.enter_plan(one.run, one.plan, path)
            if one.meter is not None:
                tally.enter_open(one.run, one.stage, one.meter, path)
            if one.split is not None and scope.since is None:  # It is of all the run's time.
                tally.enter_split(one.run, one.split, path)
    for path in journals:
        for charged in sums_of(path, scope, STAGE_OF_RUN, unread):
            tally.enter_charges(charged, path)
    return tally.rows()


# --- for people


def _cells(rows: Sequence[StageRow]) -> list[tuple[str, ...]]:
    """One row for each stage and one for the total. Spent amounts add up to the cent."""
    from governor.text.table import plain

    total = total_of(rows)
    cents = whole_cents([row.actual_usd_micros for row in rows])
    told = zip([*rows, total], [*cents, sum(cents)], strict=True)
    return [(plain(row.stage), *_figures(row, amount)) for row, amount in told]


def _figures(row: StageRow, cents: int) -> tuple[str, ...]:
    return (
        f"{row.runs}" if row.stage != UNALLOCATED_ROW else "-",
        decimal_text(row.node_ns, NS_PER_HOUR, 2),
        f"{row.tokens:,}" if row.tokens else "-",
        _usd(row.expected_usd_micros) + (" steady" if _expected_kind(row) == "steady" else ""),
        f"${_grouped(decimal_text(cents, 100, 2))}" if row.is_spend_known else "-",
        _per_mtok(row.expected_per_mtok_all_in),
        _per_mtok(row.per_mtok_all_in),
        _per_mtok(row.per_mtok_useful),
        _per_mtok(row.expected_per_mtok),
        _per_mtok(row.per_mtok_steady),
        _percent(row.drift, signed=True),
        _speed(row.expected_tokens_per_s),
        _speed(row.tokens_per_s),
        f"{row.wasted_tokens:,}" if row.tokens or row.wasted_tokens else "-",
        _usd(row.wasted_usd_micros) if (row.tokens and row.is_spend_known) or row.wasted_usd_micros else "-",
        _usd(row.ceiling_usd_micros),
        _percent(row.used),
        "-" if row.burn_rate is None else _ratio(row.burn_rate, 2),
        _usd(row.lands_at_usd_micros),
    )


def table_text(rows: Sequence[StageRow], screen: Screen) -> str:
    """One line for each stage. In a terminal that is too narrow, one column for each stage."""
    from governor.text.table import Head, fits, render_rows

    cells = _cells(rows)
    heads = [Head(title, is_number=place > 0, may_wrap=place == 0) for place, title in enumerate(_COLUMNS)]
    if screen.columns is None or fits(heads, cells, screen):
        return render_rows(heads, cells, total=True, screen=screen, notes=_notes(rows))
    texts = []
    for part in _beside_one_another(cells, screen.columns):
        upright = [Head(""), *(Head(stage[0], is_number=True) for stage in part)]
        turned = [(title, *row) for title, *row in zip(_SPELT_OUT, *part, strict=True)][1:]
        texts.append(render_rows(upright, turned, total=False, screen=screen))
    return "\n".join([*texts, *(line for note in _notes(rows) for line in shown_lines(note, screen))])


def _beside_one_another(cells: Sequence[tuple[str, ...]], columns: int) -> Iterator[list[tuple[str, ...]]]:
    """Groups of stages that fit into a narrow terminal, each stage a column; at least one."""
    from governor.text.table import GAP

    titles = max(map(len, _SPELT_OUT))
    part: list[tuple[str, ...]] = []
    used = titles
    for stage in cells:
        needed = GAP + max(map(len, stage))
        if part and used + needed > columns:
            yield part
            part, used = [], titles
        part.append(stage)
        used += needed
    yield part


def _print_markdown(rows: Sequence[StageRow]) -> None:
    from governor.text.markdown import cell, literal

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(cell, cells)) + " |"

    click.echo(line([title.capitalize().replace("/1m", "/1M") for title in _SPELT_OUT]))
    click.echo("|" + "|".join("---" if place == 0 else "---:" for place in range(len(_COLUMNS))) + "|")
    for cells in _cells(rows):
        click.echo(line(cells))
    for note in _notes(rows):
        click.echo(f"\n{literal(note)}")


def _notes(rows: Sequence[StageRow]) -> list[str]:
    from governor.text.table import plain

    notes = [
        f"{row.stage}: {row.untold_tokens:,} tokens more were trained in windows that are not kept any more; what a "
        "million has cost is unknown"
        for row in rows
        if row.untold_tokens
    ]
    notes += [
        f"{row.stage}: {row.unpriced_tokens:,} of its tokens were trained while no price was known; what they cost is "
        "in no figure here"
        for row in rows
        if row.unpriced_tokens
    ]
    notes += [
        f"{row.stage}: for {format_duration(row.unpriced_ns)} of its time no price was known; what a million has cost "
        "is unknown, and it wasted at least what is told"
        for row in rows
        if row.unpriced_ns
    ]
    notes += [
        f"{row.stage}: for {row.unplanned_tokens:,} of its tokens no price was expected; they count as actual alone"
        for row in rows
        if row.unplanned_tokens
    ]
    notes += [
        f"{row.stage}: {row.unlimited_runs} of {row.runs} runs without a known ceiling, left out of used and burn rate"
        for row in rows
        if row.unlimited_runs
    ]
    notes += [f"{row.stage}: {_all_in_note(row)}" for row in rows if row.drift_all_in is not None]
    marked = sum(row.reconstructed_usd_micros for row in rows)
    if marked:
        notes.append(f"{_usd(marked)} of what was spent is reconstructed: {RECONSTRUCTED}")
    return [plain(note) for note in notes]


def _all_in_note(row: StageRow) -> str:
    told = f"drift {_percent(row.drift_all_in, signed=True)}"
    expected = _per_mtok(row.expected_per_mtok_all_in)
    if row.unplanned_all_in_runs:
        planned = row.runs - row.unplanned_all_in_runs
        return f"all-in, {planned} of {row.runs} runs have an expected price, of {expected} per 1M: their {told}"
    return f"{_per_mtok(row.per_mtok_all_in)} per 1M all-in, of {expected} expected: {told}"


def _expected_kind(row: StageRow) -> str | None:
    """Of which price the expected dollars are."""
    if row.expected_usd_micros is None:
        return None
    return "steady" if row.is_expected_steady else "all_in"


def _usd(micros: int | None) -> str:
    return "-" if micros is None else f"${_grouped(decimal_text(micros, MICROS_PER_USD, 2))}"


def _per_mtok(micros: Fraction | None) -> str:
    whole = whole_micros(micros)
    return "-" if whole is None else per_mtok_text(whole)


def _percent(ratio: Fraction | None, *, signed: bool = False) -> str:
    if ratio is None:
        return "-"
    text = _ratio(100 * ratio, 1)
    return f"{'+' if signed and not text.startswith('-') else ''}{text}%"


def _speed(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:,.0f}"


def _ratio(ratio: Fraction, digits: int) -> str:
    return decimal_text(ratio.numerator, ratio.denominator, digits)


def _grouped(number: str) -> str:
    whole, _, digits = number.partition(".")
    return f"{int(whole):,}.{digits}"


# --- for programs


def _document(rows: Sequence[StageRow], scope: Scope, unreadable: int) -> dict[str, Any]:
    total = total_of(rows)
    return {
        "since": None if scope.since is None else utc_text(scope.since),
        "until": None if scope.until is None else utc_text(scope.until),
        "runs": list(scope.runs),
        "currency": "USD",
        "stages": [_record(row) for row in rows],
        "total": {name: value for name, value in _record(total).items() if name != "stage"},
        "unreadable": unreadable,
    }


def _record(row: StageRow) -> dict[str, Any]:
    """Under the names that `costgov status --json` has, where that has them: there, drift is of recent windows.

    Amounts and ratios are decimal strings: readers parse a JSON number as a float. Null is unknown.
    """
    wasted = row.wasted_by_cause if row.is_spend_known else None

    def amount(micros: int | None) -> str | None:
        return None if micros is None else exact_usd(micros)

    def ratio(value: Fraction | None, digits: int) -> str | None:
        return None if value is None else _ratio(value, digits)

    def per_mtok(micros: Fraction | None) -> str | None:
        return amount(whole_micros(micros))

    def speed(value: float | None) -> str | None:
        return None if value is None else f"{value:.1f}"

    return {
        "stage": row.stage,
        "runs": row.runs,
        "hours": decimal_text(row.node_ns, NS_PER_HOUR, 6),
        "tokens": row.tokens,
        "expected_usd": amount(row.expected_usd_micros),
        "expected_usd_kind": _expected_kind(row),
        "expected_usd_per_mtok": per_mtok(row.expected_per_mtok),
        "expected_usd_per_mtok_all_in": per_mtok(row.expected_per_mtok_all_in),
        "actual_usd": amount(row.actual_usd_micros if row.is_spend_known else None),
        "usd_per_mtok_all_in": per_mtok(row.per_mtok_all_in),
        "usd_per_mtok_useful": per_mtok(row.per_mtok_useful),
        "usd_per_mtok_steady_stage": per_mtok(row.per_mtok_steady),
        "drift_stage_frac": ratio(row.drift, 6),
        "drift_all_in_frac": ratio(row.drift_all_in, 6),
        "expected_tokens_per_s": speed(row.expected_tokens_per_s),
        "tokens_per_s": speed(row.tokens_per_s),
        "tokens_wasted": row.wasted_tokens,
        "wasted_usd": amount(row.wasted_usd_micros if row.is_spend_known else None),
        "ceiling_usd": amount(row.ceiling_usd_micros),
        "used_percent": ratio(None if row.used is None else 100 * row.used, 4),
        "burn_rate": ratio(row.burn_rate, 6),
        "lands_at_usd": None if row.lands_at_usd_micros is None else _cents(row.lands_at_usd_micros),
        "untold_tokens": row.untold_tokens,
        "unpriced_tokens": row.unpriced_tokens,
        "unplanned_tokens": row.unplanned_tokens,
        "unlimited_runs": row.unlimited_runs,
        "reconstructed_usd": exact_usd(row.reconstructed_usd_micros),
        _BY_CAUSE: None if wasted is None else {cause.value: exact_usd(wasted[cause.value]) for cause in WASTE},
        "unpriced_s": decimal_text(row.unpriced_ns, NS_PER_S, 6),
    }


def _cents(micros: int) -> str:
    """A forecast is rounded to cents."""
    return decimal_text(micros, MICROS_PER_USD, 2)


def _print_csv(rows: Sequence[StageRow]) -> None:
    """As `--json` has them; each cause is a column."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(_flat(_record(total_of(rows))))
    for row in rows:
        out.writerow("" if value is None else value for value in _flat(_record(row)).values())


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, value in record.items():
        if name == _BY_CAUSE:
            told |= {f"{name}.{cause.value}": value[cause.value] if value is not None else None for cause in WASTE}
        else:
            told[name] = value
    return told
