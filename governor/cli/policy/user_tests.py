"""`costgov policy test`: users' own tests of their policies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from governor.cli.common import ExitCode, Failed, complain, exits, json_option, print_json
from governor.text.screen import screen_of, styled
from governor.text.table import plain

if TYPE_CHECKING:
    from governor.replay.user_tests import Outcome


@click.command(name="test", short_help="Play tests of policies: series in, verdicts out.", epilog=exits())
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="FILE|DIRECTORY..."
)
@click.option("--only", default="", metavar="TEXT", help="Only the cases whose name contains this.")
@click.option("--verbose", "-v", is_flag=True, help="Name the cases that pass too, with the verdicts that came.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write JUnit XML too.")
@json_option
def test(files: tuple[Path, ...], only: str, verbose: bool, junit: Path | None, as_json: bool) -> None:
    """Play tests of policies: a few lines stand for a run, and what the rules make of it is compared.

    \b
    tests.toml:
      policy = "default.toml"           # beside this file; or rules = \"\"\"…\"\"\"
      [[case]]
      name = "the first NaN halts"
      series = [
        "hello",                        # every rank connects (ranks = 2)
        "steps 30 every 2s loss=2.0",   # a minute of training
        "steps 1 every 2s loss=nan",
      ]
      # AT RULE REASON [ACTS]: all that come; quiet = true: none
      verdicts = ["62s nonfinite loss_nan halt"]
      # AT RULE quiet|firing|unknown [REASON]
      findings = ["60s nonfinite quiet"]
      readings = { hang = "quiet" }     # at the end
      # AT WHAT [WORD]: the halt's timeline to its end; "...": any entries
      halt = ["62s asked suspect", "...", "72s saved", "...", "117s halted"]

    Time is simulated: an hour of training takes a second or so. The words of a series, and the whole format:
    docs/reference/policies.md. Exit code 1 when a case fails or a file is wrong; every error names file and line.
    """
    from governor.replay.user_tests import files_of, run_file

    outcomes: list[Outcome] = []
    errors: list[str] = []
    for file in files_of(files):
        played, wrong = run_file(file, only)
        outcomes.extend(played)
        errors.extend(wrong)
    if not outcomes and not errors:
        errors.append(f'no case has "{only}" in its name')
    if junit is not None:
        _write_junit(junit, outcomes, errors)
    if as_json:
        cases = [{**asdict(outcome), "ok": outcome.ok} for outcome in outcomes]
        print_json({"ok": not errors and all(outcome.ok for outcome in outcomes), "cases": cases, "errors": errors})
    else:
        _show(outcomes, errors, verbose)
    if errors or not all(outcome.ok for outcome in outcomes):
        raise click.exceptions.Exit(ExitCode.FAILED)


def _show(outcomes: Sequence[Outcome], errors: Sequence[str], verbose: bool) -> None:
    screen = screen_of(sys.stdout)
    for error in errors:
        complain(plain(error))
    for outcome in outcomes:
        where = plain(f"{outcome.file}:{outcome.line}: {outcome.name}")
        if not outcome.ok:
            click.echo(f"{styled('FAIL', 'bold red', screen)}  {where}")
            for problem in outcome.problems:
                indent = " " * (len(problem) - len(problem.lstrip()))
                click.echo(f"      {indent}{plain(problem)}")
        elif verbose:
            click.echo(f"{styled('ok', 'green', screen)}    {where}")
            for verdict in outcome.verdicts:
                click.echo(f"      {verdict}")
            if outcome.halt:
                click.echo("      halt:")
            for entry in outcome.halt:
                click.echo(f"        {plain(entry)}")
    failed = sum(not outcome.ok for outcome in outcomes)
    wrong = f", {len(errors)} {'error' if len(errors) == 1 else 'errors'}" if errors else ""
    style = "bold red" if failed or errors else "green"
    click.echo(styled(f"{len(outcomes) - failed} passed, {failed} failed{wrong}", style, screen))


def _write_junit(path: Path, outcomes: Sequence[Outcome], errors: Sequence[str]) -> None:
    """The part of JUnit's XML that every CI reads: a suite of cases, and the text of each failure."""
    from xml.etree import ElementTree

    failed = sum(not outcome.ok for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite", name="costgov policy test", tests=str(len(outcomes)), failures=str(failed), errors=str(len(errors))
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname=plain(outcome.file), name=plain(outcome.name))
        if not outcome.ok:
            problems = [plain(problem) for problem in outcome.problems]
            ElementTree.SubElement(case, "failure", message=problems[0]).text = "\n".join(problems)
    for error in map(plain, errors):
        case = ElementTree.SubElement(suite, "testcase", classname="costgov policy test", name=error)
        ElementTree.SubElement(case, "error", message=error)
    try:
        ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}; name a file that can be written") from error
