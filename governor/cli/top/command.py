"""`costgov top`: what must be so before the screen is taken, and how every governor is asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click

from governor.cli.common import OF_REFUSAL, ExitCode, Failed, control_option, exits, sockets, told_of
from governor.cli.top import drawing
from governor.cli.top.seen import Row, Seen, Snapshot
from governor.text.screen import screen_of
from governor.text.table import plain
from governor.wire.control_client import Answer, ask, nobody

# A live governor answers within a quarter of a second. One that does not must not freeze the others' figures for long.
TIMEOUT_S: Final = 2.0
INSTEAD: Final = "`costgov status --watch` shows the same figures without it"


@click.command(
    short_help="Watch every run live; halt and hold by key.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED),
)
@control_option
def top(control: str | None) -> None:
    """Watch every run on a live screen: its state, $ per 1M tokens against what was expected, runway, GPUs, and what
    lost time costs by cause.

    \b
    up, down    select a run
    h           halt it, after a question and a reason
    o           hold it: no rule halts it for a while
    ?           help
    q           leave

    It needs the extra `top` (Textual): pip install 'costgov[top]'. What it draws fits 80 columns and 24 lines, and
    needs no colour. When a governor goes away the last figures stay, marked as that, until it is back. For programs,
    files and pipes: `costgov status --json`, `costgov status --watch`.
    """
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    if not is_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise Failed(f"top draws on a terminal, and this is none; {INSTEAD}")
    try:
        from governor.cli.top.app import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        text = f"`costgov top` needs the extra `top`: pip install 'costgov[top]'; {INSTEAD}"
        raise Failed(text) from error
    is_coloured = screen_of(sys.stdout).is_coloured  # Asked now: the app takes NO_COLOR out of the environment.
    for stated in ("COLUMNS", "LINES"):
        # A shell exports what the terminal had then. The terminal itself knows what it has now.
        os.environ.pop(stated, None)
    first = read(sockets(control))
    if not first.governors:
        raise Failed(first.problem, OF_REFUSAL.get(first.code, ExitCode.FAILED))
    Top(lambda: read(sockets(control)), ask, first, is_coloured=is_coloured).run()


def read(
    paths: Iterable[str], question: Callable[[str, Mapping[str, Any], float], Answer] = ask
) -> Seen:  # fmt: skip
    """Ask every governor for its status. Blocks at most TIMEOUT_S for each. Never raises for what one answers."""
    places = tuple(paths)
    refused: Answer | None = None
    rows: list[Row] = []
    governors: list[Snapshot] = []
    left_out: list[str] = []
    for path in places:
        answer = question(path, {"cmd": "status"}, TIMEOUT_S)
        if answer.ok:
            governors.append(answer.data["governor"])
            left_out += answer.left_out
            rows += _rows(path, answer.data, left_out)
        elif answer.code != "no_governor" and (refused is None or refused.code == "stranger"):
            refused = answer
    if governors:
        return Seen(tuple(governors), tuple(rows), left_out=tuple(left_out))
    refused = refused or Answer(False, error=nobody(places), code="no_governor")
    return Seen(problem=refused.error, code=refused.code)


def _rows(path: str, status: Snapshot, left_out: list[str]) -> list[Row]:
    """The newest run first. One that cannot be drawn, as another version may have it, hides no other."""
    rows = []
    for run in reversed(status["runs"]):
        try:
            with told_of(f"run {plain(run['run'])}"):
                drawing.cells(run)
                drawing.details(run, drawing.EVERY_LINE)
        except Failed as error:
            left_out.append(f"{error.message}: left out")
        else:
            rows.append(Row(path, status["governor"], run))
    return sorted(rows, key=lambda row: row.run["state"] in drawing.OVER)
