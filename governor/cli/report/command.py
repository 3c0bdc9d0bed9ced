"""`costgov report`: the account of one run, as text, Markdown, JSON or one page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import (
    OF_THE_COMMANDS,
    ExitCode,
    Failed,
    LazyGroup,
    config_option,
    exits,
    show_drawn,
    told_of,
    write_named,
)
from governor.text.screen import FILE, screen_of
from governor.text.table import plain

if TYPE_CHECKING:
    from governor.cli.report.known import Places
    from governor.core.base.model_speed import Peak
    from governor.reports.run.facts import RunFacts

_SHOW: Final = "show"
HALTS_MAX: Final = 200  # Sections of a page.
HALTS_DRAWN_MAX: Final = 10  # Of each the recording before it is read again.


class ReportGroup(LazyGroup):
    """A group whose first word may be a run: `costgov report RUN` is `costgov report show RUN`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.list_commands(ctx), *ctx.help_option_names):
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)


def places_options(command: Any) -> Any:
    """Where runs are looked for, and what GPU they ran on."""
    for option in (
        config_option,
        click.option(
            "--state-dir", type=click.Path(path_type=Path), metavar="DIR",
            help="State directory of the governor, with its recordings below it. Default: as costgov.toml says.",
        ),
        click.option(
            "--gpu", "gpu", metavar="NAME",
            help="Which GPU it ran on, as `costgov plan` names it: H100, H200, A100-SXM-80GB. For the MFU.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(
    cls=ReportGroup,
    lazy={"compare": "governor.cli.report.compare:compare"},
    short_help="What a run cost, what its time went to, and what to fix first.",
    epilog=OF_THE_COMMANDS,
    subcommand_metavar="RUN | compare A B",
)
def report() -> None:
    """Tell what a run cost, what each second of it went to, how stably it trained, and what nobody saw.

    \b
    costgov report llama                       to read here
    costgov report llama --html --output r.html   one page that fetches nothing
    costgov report llama --json                for programs
    costgov report compare llama llama-fp8     better or worse, beyond noise

    `costgov report RUN` is `costgov report show RUN`: for a run with the name of a command.
    """


@report.command(_SHOW, short_help="The report of one run: `costgov report RUN`.", epilog=exits(ExitCode.UNKNOWN))
@click.argument("run")
@click.option("--md", "form", flag_value="md", help="Print Markdown.")
@click.option("--json", "form", flag_value="json", help="Print JSON, for programs.")
@click.option("--html", "form", flag_value="html", help="Print one self-contained page: it fetches nothing.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write it into FILE. Without --md, --json or --html its ending says which: .md, .json, .html.",
)  # fmt: skip
@places_options
def show(
    run: str, form: str | None, output: Path | None, gpu: str | None, state_dir: Path | None, config: Path | None
) -> None:
    """Tell what RUN cost: seconds and dollars by cause, with the next step of each and what it is worth an hour.

    Reads the journal and the recording; no governor need run. Of a run that goes on, its governor is asked as well.
    Seconds of the causes and productive ones add up to all time that the run held the node, dollars to its spend.
    What no frame, price or plan has told is listed under "Not verified".
    """
    from governor.cli.report.known import facts_of, places_of

    form = form or _form_of(output)
    places = places_of(config, state_dir)
    facts = facts_of(run, places, peak_of(gpu))
    text = rendered(facts, form, places)
    if output is not None:
        write(output, text)
    elif form == "text":
        show_drawn(text)
    else:
        click.echo(text, nl=False)


def _form_of(output: Path | None) -> str:
    known = {".md": "md", ".json": "json", ".html": "html", ".htm": "html"}
    if output is None or output.suffix in ("", ".txt"):
        return "text"
    if output.suffix not in known:
        raise Failed(f"--output: {output}: name FILE.md, FILE.json, FILE.html or FILE.txt")
    return known[output.suffix]


def write(output: Path, text: str) -> None:
    write_named("--output", output, text)


def rendered(facts: RunFacts, form: str, places: Places | None = None) -> str:
    """`places`: where the recording around each halt is, for the page."""
    from governor.reports.run.document import run_document
    from governor.reports.run.sections import sections, title_of
    from governor.reports.run.written import markdown, terminal
    from trainer_shim.wire import worded

    document = run_document(facts)
    if form == "json":
        return json.dumps(worded(document), indent=2, allow_nan=False, default=str) + "\n"
    if form == "md":
        return markdown(title_of(document), sections(document))
    if form == "html":
        from governor.reports.run.drawn import page

        return page(document, facts.series, halt_sections(facts, places) if places is not None else ())
    return terminal(title_of(document), sections(document), screen_of(sys.stdout) if form == "text" else FILE)


def halt_sections(facts: RunFacts, places: Places) -> list[tuple[str, str]]:
    """The newest halts, oldest first: each incident with its section. The last few have their plots."""
    from governor.cli.incident.recorded import seen_in
    from governor.reports.incident.page import incident_section
    from governor.wire.answer_shapes import INCIDENT, OF_RUN, is_shaped

    whole = [one for one in facts.halts if is_shaped(one, INCIDENT) and is_shaped(one, OF_RUN)][-HALTS_MAX:]
    drawn, found = {id(one) for one in whole[-HALTS_DRAWN_MAX:]}, []
    for one in whole:
        is_drawn = id(one) in drawn
        seen = seen_in(one, places.state_dir, places.recordings_dir, is_whole=False) if is_drawn else None
        with told_of(f"incident {plain(one['incident_id'])}"):
            found.append((str(one["incident_id"]), incident_section(one, seen, is_drawn=is_drawn)))
    return found


def peak_of(gpu: str | None) -> Peak | None:
    """The dense bf16 peak of a GPU that the user names. Fails in one line where the catalogue has none."""
    if gpu is None:
        return None
    from governor.core.base.model_speed import Peak
    from governor.planner.catalog import UnknownNameError, gpu_named

    try:
        found = gpu_named(gpu)
    except UnknownNameError as error:
        raise Failed(f"--gpu: {error}") from error
    return Peak(found.name, found.peak_bf16 * 1e12)
