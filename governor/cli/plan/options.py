"""Shared by the commands of `costgov plan`: the options of a plan, its errors, and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from governor.cli.common import write_named
from governor.planner.keys import KEYS, PlanUnreadableError, checked

NAMED: Final = "model_named"
Command = TypeVar("Command", bound=Callable[..., Any])
# All errors of the planner are ValueErrors with one line for the user.
PLAN_ERRORS: Final = (ValueError,)


def _complete_model(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from governor.planner.catalog import models

    names = [CompletionItem(name) for name in models() if name.lower().startswith(incomplete.lower())]
    return [*names, CompletionItem(incomplete, type="file")]


def _complete(key: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes the values of a key; in a list, the last value."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + one) for one in _known(key) if one.lower().startswith(last.lower())]

    return complete


def _known(key: str) -> Iterable[str]:
    from governor.planner.catalog import CHEAPEST, catalogue_gpus, sellers
    from governor.planner.model.setup import Attention, Checkpointing, Framework, Offload, Precision
    from governor.wire.price_table import KINDS

    words = {
        "framework": Framework, "checkpointing": Checkpointing, "precision": Precision, "attention": Attention,
        "offload": Offload,
    }.get(key)  # fmt: skip
    if words is not None:
        return [word.value for word in words]
    match key:
        case "gpu":
            return catalogue_gpus()
        case "provider":
            return [CHEAPEST, *sellers()]
        case "price-kind":
            return [name for name, kind in KINDS.items() if kind]
    return ()


def model_argument(command: Command) -> Command:
    """Adds MODEL, or --model as in the other commands."""
    named = click.option(
        "--model", NAMED, shell_complete=_complete_model, metavar="NAME|FILE", help="The same as MODEL."
    )
    return click.argument("model", required=False, shell_complete=_complete_model, metavar="MODEL|FILE")(named(command))


def model_option(command: Command) -> Command:
    return click.option("--model", shell_complete=_complete_model, metavar="NAME|FILE", help=KEYS["model"][1])(command)


def plan_options(command: Command) -> Command:
    """Adds the keys of a plan as options, in the order of the table."""
    for key, (metavar, text) in reversed(list(KEYS.items())):
        if key != "model":
            command = click.option(f"--{key}", metavar=metavar, help=text, shell_complete=_complete(key))(command)
    return command


def html_option(command: Command) -> Command:
    return click.option(
        "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        help="Write it as one page with plots, without anything to fetch.",
    )(command)  # fmt: skip


def values_of(model: str | None, options: Mapping[str, str | None]) -> dict[str, str]:
    """The given options as values of a plan."""
    given: dict[str, object] = {key: value for key, value in options.items() if value is not None}
    named = given.pop(NAMED, None)
    if model is not None and named is not None:
        raise PlanUnreadableError(f"model: named twice, {model} and {named}")
    if model is not None or named is not None:
        given["model"] = model or named
    return checked(given, "command line")


def write_page(path: Path, text: str) -> None:
    write_named("--html", path, text)
