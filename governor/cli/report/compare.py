"""`costgov report compare A B`: what became better or worse between two runs, beyond noise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from governor.cli.common import ExitCode, exits, show_drawn
from governor.cli.report.command import places_options, write
from governor.text.screen import screen_of

_TITLE: Final = "Comparison"


@click.command(short_help="Two runs side by side: what is worse, beyond noise.", epilog=exits(ExitCode.UNKNOWN))
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--md", "form", flag_value="md", help="Print Markdown.")
@click.option("--json", "form", flag_value="json", help="Print JSON, for programs.")
@click.option("--html", "form", flag_value="html", help="Print one self-contained page: it fetches nothing.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it into FILE.")
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 where something of B is worse, beyond noise.")
@places_options
def compare(
    before: str, after: str, form: str | None, output: Path | None, fail_on_regression: bool, gpu: str | None,
    state_dir: Path | None, config: Path | None,
) -> None:  # fmt: skip
    """Compare run B with run A: $ for a million tokens, tokens a second, parts of a step, causes, stability.

    Speeds are medians of windows of steps with 95 % intervals; where these overlap the verdict is "no difference
    beyond noise". Both runs should train the same thing: a longer sequence or another batch is no regression.

    \b
    costgov report compare bf16 fp8            precision, side by side
    costgov report compare old new --fail-on-regression   for CI
    """
    from governor.cli.report.command import peak_of
    from governor.cli.report.known import facts_of, places_of
    from governor.reports.run.compare import compare_document, compare_sections, is_regression

    places, peak = places_of(config, state_dir), peak_of(gpu)
    a, b = (facts_of(run, places, peak) for run in (before, after))
    document = compare_document(a, b)
    if form == "json":
        from trainer_shim.wire import worded

        text = json.dumps(worded(document), indent=2, allow_nan=False) + "\n"
    else:
        from governor.reports.run.drawn import plain_page
        from governor.reports.run.written import markdown, terminal

        title, found = f"{_TITLE}: {a.run} and {b.run}", compare_sections(a, b)
        if form == "html":
            text = plain_page(title, found)
        else:
            text = markdown(title, found) if form == "md" else terminal(title, found, screen_of(sys.stdout))
    if output is not None:
        write(output, text)
    elif form is None:
        show_drawn(text)
    else:
        click.echo(text, nl=False)
    if fail_on_regression and is_regression(document):
        raise click.exceptions.Exit(ExitCode.FAILED)
