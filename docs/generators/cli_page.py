"""docs/reference/cli.md from the commands themselves. Rendered here, not by click, whose wrapping changes between versions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from governor.cli.common import MEANINGS
from governor.cli.main import cli

_HEAD = """# Commands

<!-- Drawn from governor/cli by `make docs`: change it there. `costgov COMMAND --help` says the same. -->

## Exit codes

| code | meaning |
|---|---|
"""


def render() -> str:
    codes = "".join(f"| {code.value} | {text} |\n" for code, text in MEANINGS.items())
    return _HEAD + codes + "".join(_section(path, command) for path, command in commands("costgov", cli))


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in sorted(command.list_commands(ctx)):
            inner = command.get_command(ctx, name)
            if inner is not None and not inner.hidden:
                yield from commands(f"{path} {name}", inner)


def _section(path: str, command: click.Command) -> str:
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    help_text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    table = "".join(_row(one) for one in options)
    table = f"\n| option | meaning |\n|---|---|\n{table}" if table else ""
    codes = ", ".join(re.findall(r"^ +(\d+)  ", command.epilog or "", flags=re.MULTILINE))
    codes = f"\nExit codes: {codes}.\n" if codes and path != "costgov" else ""  # All of them: the table above.
    return f"\n## {path}\n\n```text\n{usage(path, command)}\n\n{help_text}\n```\n{table}{codes}"


def usage(path: str, command: click.Command) -> str:
    arguments = [_argument(one) for one in command.params if isinstance(one, click.Argument)]
    has_options = any(isinstance(one, click.Option) and not one.hidden for one in command.params)
    return " ".join([path, *_inner(command), *(["[OPTIONS]"] if has_options else []), *arguments])


def _inner(command: click.Command) -> list[str]:
    if not isinstance(command, click.Group):
        return []
    return ["[COMMAND]" if command.invoke_without_command else "COMMAND"]


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    many = "..." if argument.nargs == -1 and not name.endswith("...") else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def _row(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.count else f" {option.metavar or option.type.name.upper()}"
    needed = " Required." if option.required else ""
    return f"| `{_cell(names + value)}` | {_cell(option.help or '')}{needed} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
