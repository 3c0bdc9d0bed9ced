"""`costgov policy …`: check and explain policies before they are in force."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from governor.cli.common import (
    OF_THE_COMMANDS,
    ExitCode,
    Failed,
    LazyGroup,
    complain,
    config_option,
    exits,
    json_option,
    print_json,
    settings_from,
    show_line,
)
from governor.core.base.policy import FallBack, PolicySet
from governor.core.base.printable import printable
from governor.policies import files as policy_files
from governor.policies.files import PolicyUnreadable
from governor.policies.reader import PolicyText


@click.group(
    cls=LazyGroup,
    lazy={
        "replay": "governor.cli.policy.replay:replay",
        "test": "governor.cli.policy.user_tests:test",
        "tune": "governor.cli.policy.tune:tune",
    },
    short_help="What policies would do: check, explain, test, replay, tune, schema.",
    epilog=OF_THE_COMMANDS,
)
def policy() -> None:
    """Look at policies. They are read from /etc/costgov/policies.d/*.toml, or named: a file, a directory.

    \b
    costgov policy check my.toml     what is wrong with it, or what it would do
    costgov policy explain           the rules of this node in whole sentences
    """


@policy.command(short_help="Explain policies, or name everything that is wrong.", epilog=exits())
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="[FILE|DIRECTORY]...")
@click.option("--show", is_flag=True, help="Print every value in force, with the file and line that it comes from.")
@config_option
@json_option
def check(files: tuple[Path, ...], show: bool, config: Path | None, as_json: bool) -> None:
    """Say in plain words what each policy would do, or everything that is wrong with it.

    Every error names file, line and key, in the file in which it stands: a policy may include others and have drop-ins
    over it. Rules that can never decide, say what another one says, or warn no sooner than the halt, are named too.
    Without FILES: the policies that the governor on this node would load. With a
    costgov.toml also what its metrics streams can be stopped by, and whether each ceiling can hold at the price that it
    states; the provider's bounds, which only the machine knows, add to that. Exit code 1 when anything is wrong.
    """
    from governor.policies import check

    notes: list[str] = []
    rate = None
    if config is not None or not files:
        settings = settings_from(config)
        files = files or tuple(policy_files.of_node(settings.paths.policies_dir))
        rate = settings.node.price_usd_micros_per_hour
        notes = [
            f"{stream.path}: run {stream.run} names no pidfile, unit, cgroup or job: a halt can stop only the instance"
            for stream in settings.jsonl
            if stream.ended_by is None
        ]
    texts = _read(files)
    lines, code = check.check(texts, rate)
    shown = check.show(texts) if show and code == 0 else []
    if shown:
        lines = [line for name, values in shown for line in check.shown_lines(name, values)]
    if as_json:
        values = {"in_force": {name: [one._asdict() for one in values] for name, values in shown}} if show else {}
        print_json({"ok": code == 0, "lines": lines, "notes": notes, **values})
    else:
        for line in (*lines, *notes):
            line = printable(line, " ")
            if code == 0:
                show_line(line)
            else:
                click.echo(line, err=True)  # Not wrapped, as every error: paths in it can be copied.
    if code != 0:
        raise click.exceptions.Exit(ExitCode.FAILED)


@policy.command(short_help="Say each rule in whole sentences.", epilog=exits())
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="[FILE|DIRECTORY]...")
@config_option
@json_option
def explain(files: tuple[Path, ...], config: Path | None, as_json: bool) -> None:
    """Say each rule of a policy in whole sentences: when it fires, with its values, for how long, and what follows.

    Where `check` gives a line to a rule, this says what the line means. Without FILES: the policies that the governor
    on this node would load, and which of its rules have fallen back to observe mode (`costgov incident mark`). Exit
    code 1 when one of them is wrong; `check` says everything that is.
    """
    from governor.policies.parse import load_policies
    from governor.policies.words import explain as explain_policy
    from governor.policies.words import explain_rules

    paths = settings_from(config).paths if not files else None
    if paths is not None:
        files = tuple(policy_files.of_node(paths.policies_dir))
    policies, errors = load_policies(_read(files))
    if policies is None:
        raise Failed("\n".join(printable(str(error), " ") for error in errors))
    fallen = _fallen(paths.marks_dir, policies) if paths is not None else []
    if as_json:
        print_json([
            {
                "policy": one.name, "source": one.source, "rules": [asdict(rule) for rule in explain_rules(one)],
                "fallen_back": [back.row() for back in fallen if back.policy == one.name],
            }
            for one in policies.policies
        ])  # fmt: skip
        return
    for number, one in enumerate(policies.policies):
        for line in ["", *explain_policy(one)] if number else explain_policy(one):
            show_line(printable(line, " "))
        for back in (back for back in fallen if back.policy == one.name):
            show_line(printable(f"  now: {back.text}", " "))


@policy.command(short_help="Print the JSON Schema of a policy file.", epilog=exits())
@click.option("--drop-in", is_flag=True, help="Of the files in NAME.d, which may change single keys of NAME.toml.")
def schema(drop_in: bool) -> None:
    """Print the JSON Schema of a policy file, for editors: completion, types, units and choices while one writes.

    It is drawn from the keys that the governor reads. An editor with Taplo (Even Better TOML) takes it from the file's
    first line: "#:schema ./policy.schema.json", or a path, or a URL. What contradicts what only `check` can say.
    """
    from governor.policies.schema import schema as drawn

    print_json(drawn(drop_in=drop_in))


def _fallen(marks_dir: Path, policies: PolicySet) -> list[FallBack]:
    from governor.app.mark_requests import with_marks

    marked, problems = with_marks(marks_dir, policies)
    for problem in problems:
        complain(problem)
    return marked.fallen()


def _read(paths: tuple[Path, ...]) -> list[PolicyText]:
    """Read policies. Fail with a line for each that cannot be read."""
    try:
        texts = policy_files.policy_texts(paths)
    except PolicyUnreadable as unreadable:
        raise Failed(str(unreadable)) from unreadable
    empty = [path for path in paths if path.is_dir() and not any(path.glob("*.toml"))]
    if empty:
        raise Failed("\n".join(f"{path}: holds no *.toml; put a policy there or name a file" for path in empty))
    return texts
