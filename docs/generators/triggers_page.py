"""docs/reference/triggers.md from the triggers' own docstrings and KEYS."""

from __future__ import annotations

import inspect
import sys

from governor.core.rules.expression_variables import VARIABLES
from governor.core.rules.trigger import Key, Trigger
from governor.core.rules.triggers import load

_HEAD = """# Triggers

<!-- Drawn from governor/core/rules/triggers by `make docs`: change it there. -->

A rule names one trigger (or several, with [`all`](rules.md)), and may set the trigger's keys. A trigger answers QUIET,
FIRING or UNKNOWN. UNKNOWN means that data is missing. It never counts towards a rule's `for`. Defaults hold where a policy says nothing.
A key in steps counts those that are reported: a rank reports each one, and a log that prints each tenth step reports each tenth.

| trigger | fires when | `for` in steps or tokens |
|---|---|---|
"""


def render() -> str:
    kinds = load()
    rows = [
        f"| [`{kind}`](#{kind}) | {_summary(trigger)} | {'yes' if trigger.STEPPED else 'no, only time'} |\n"
        for kind, trigger in kinds.items()
    ]
    return _HEAD + "".join(rows) + "".join(_section(kind, trigger) for kind, trigger in kinds.items())


def _summary(trigger: type[Trigger]) -> str:
    return (inspect.getdoc(sys.modules[trigger.__module__]) or "").splitlines()[0]


def _section(kind: str, trigger: type[Trigger]) -> str:
    rows = [f"| `{key.name}` | {key.kind} | `{_literal(key)}` | {key.meaning} |\n" for key in trigger.KEYS]
    table = "\n| key | kind | default | meaning |\n|---|---|---|---|\n" + "".join(rows) if rows else ""
    if any(key.kind == "expression" for key in trigger.KEYS):
        table += _variables()
    return f"\n## {kind}\n\n{inspect.getdoc(trigger)}\n{table}"


def _variables() -> str:
    rows = [f"| `{name}` | {variable.kind} | {variable.meaning} |\n" for name, variable in VARIABLES.items()]
    return "\n| variable | type | meaning |\n|---|---|---|\n" + "".join(rows)


def _literal(key: Key) -> str:
    if isinstance(key.default, bool):
        return str(key.default).lower()
    return f'"{key.default}"' if isinstance(key.default, str) else f"{key.default:g}"
