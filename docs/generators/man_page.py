"""deploy/man/costgov.1 from the commands themselves, as docs/reference/cli.md is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from docs.generators.cli_page import commands, usage
from governor import __version__
from governor.cli.common import MEANINGS, SYSTEM_CONFIG
from governor.cli.main import cli

LAID_OUT_COLUMNS: Final = 71  # What 80 columns leave beside the indent of a page's text, 7, and an example's own, 2.
TEXT_COLUMNS_MIN: Final = 30  # A last column that leaves less room goes on the next line.

_ENVIRONMENT = {
    "COSTGOV_CONFIG": "costgov.toml to read, as --config.",
    "COSTGOV_CONTROL": "Control socket of the governor to ask, as --control.",
    "COSTGOV_RUN": "Name of the run, as --name of costgov run.",
    "COSTGOV_TRACEBACK": "Where it is set, an internal error shows where it happened.",
    "NO_COLOR": "Where it is set, nothing is coloured. Neither is what goes to a file or a pipe.",
}
_FILES = {
    SYSTEM_CONFIG: "Settings of the service, and of every command where the file exists.",
    "/etc/costgov/policies.d/*.toml": "Policies of the service.",
    "/var/lib/costgov": "Journal, ledger, reports and recordings of the service.",
}


def render() -> str:
    lines = [
        '.\\" Drawn from governor/cli by `make docs`: change it there.',
        f'.TH COSTGOV 1 "" "costgov {__version__}" "User Commands"',
        ".ad l",
        ".nh",
        ".SH NAME",
        f"costgov \\- {_text('watch LLM training from outside, and halt it by policy')}",
        ".SH SYNOPSIS",
        ".B costgov",
        f"{_text('COMMAND [OPTIONS] [ARGUMENTS]...')}",
        ".SH DESCRIPTION",
        *list(_help(cli))[1:],  # A section begins with a paragraph.
        ".SH COMMANDS",
    ]
    for path, command in commands("costgov", cli):
        if command is not cli:
            lines += [f".SS {_text(path)}", ".EX", _text(usage(path, command)), ".EE", *_help(command)]
            lines += [line for one in _options(command) for line in _option(one)]
            lines += _exits(command)
    lines += [".SH EXIT STATUS", *_list({str(code.value): text for code, text in MEANINGS.items()})]
    lines += [".SH ENVIRONMENT", *_list(_ENVIRONMENT), ".SH FILES", *_list(_FILES)]
    lines += [".SH SEE ALSO", "The pages of", ".I docs/", "in the source tree."]
    return "\n".join(lines) + "\n"


def _help(command: click.Command) -> Iterator[str]:
    """Paragraphs are filled; those that click leaves alone (a line of backspace) stay as they are laid out."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            lines = [part for line in paragraph.splitlines()[1:] for part in _folded(line)]
            yield from (".PP", ".RS 2n", ".EX", *(_text(line) for line in lines), ".EE", ".RE")
        else:
            yield from (".PP", *(_text(line) for line in paragraph.splitlines()))


def _folded(line: str) -> list[str]:
    """A line that is laid out, in as many as it needs: a command goes on after a backslash, a text in its column."""
    if len(line) <= LAID_OUT_COLUMNS:
        return [line]
    lead = line[: len(line) - len(line.lstrip())]
    columns = re.match(r"(.*\S {2,})(\S.*)", line)
    if columns and len(columns[1]) > LAID_OUT_COLUMNS - TEXT_COLUMNS_MIN:
        return [columns[1].rstrip(), f"{lead}    {columns[2]}"]
    end = "" if columns or not line.startswith(f"{lead}costgov ") else " \\"
    first, text, hang = (columns[1], columns[2], " " * len(columns[1])) if columns else (lead, line, f"{lead}    ")
    hang += "# " * text.startswith("# ")  # A comment goes on as one.
    lines = [first]
    for word in re.findall(r'(?:"[^"]*"|\S)+', text):
        joined = f"{lines[-1]} {word}" if lines[-1].strip() and not lines[-1].endswith(" ") else lines[-1] + word
        if len(joined + end) <= LAID_OUT_COLUMNS:
            lines[-1] = joined
        else:
            lines[-1] += end
            lines.append(hang + word)
    return lines


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _option(option: click.Option) -> Iterator[str]:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.count else f" {option.metavar or option.type.name.upper()}"
    yield ".TP"
    yield f"\\fB{_text(names)}\\fR{_text(value)}"
    yield _text((option.help or "") + (" Required." if option.required else ""))


def _exits(command: click.Command) -> list[str]:
    codes = re.findall(r"^ +(\d+)  ", command.epilog or "", flags=re.MULTILINE)
    return [".PP", f"Exit codes: {', '.join(codes)}."] if codes else []


def _list(items: dict[str, str]) -> Iterator[str]:
    for name, text in items.items():
        yield from (".TP", f"\\fB{_text(name)}\\fR", _text(text))


def _text(text: str) -> str:
    """As roff reads it: nothing in it is a request, and every character is itself."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    text = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text
