"""What must stand beside each part that anybody may add. Each function lists what is missing, a line each.

The suites ask them about this tree; test_gates.py asks the same functions about planted mistakes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

from governor.adapters.exporters.prometheus_metrics import Metric
from governor.cli.common import OF_THE_COMMANDS
from governor.core.base.findings import Reading
from governor.core.base.policy import Policy
from governor.core.money.token_price import PRICE_NAMES
from governor.ports import Observer
from governor.replay.user_tests import loaded_for
from governor.timeline.cases import Case, read_cases
from tests.tidy.sources import ROOT, sources

# Prometheus' base units, and ours for money and tokens. Only `_per_…` and `_total` may follow one; a price of tokens is
# called as everywhere else (core.money.token_price), with what it is of behind it.
_UNIT: Final = re.compile(r"_(?:seconds|bytes|ratio|usd|tokens)(?=_|$)")
_PER: Final = rf"(?:_per_(?:second|hour|mtok(?:{'|'.join(PRICE_NAMES)})))?(?:_total)?$"
_OTHER_UNITS: Final = re.compile(
    r"(?<!_per)_(ns|us|ms|s|secs?|second|(?:milli|micro|nano)(?:s|seconds)|mins?|minutes?|hours?|days?|[kmgt]i?b"
    r"|(?:kilo|mega|giga|kibi|mebi|gibi)bytes|dollars?|cents|usd_micros|micros|percent|pct|frac)(?=_|$)"
)
OBSERVED: Final = frozenset(name for name in vars(Observer) if not name.startswith("_"))


def nothing_missing(*missing: list[str]) -> None:
    """Fail with every line, and with nothing else."""
    lines = [line for one in missing for line in one]
    assert not lines, "\n".join(["something is missing:", *lines])


def without_a_rig(what: str, names: Iterable[str], rigs: Collection[str], table: str) -> list[str]:
    """Adapters that the contract suite does not drive, and rigs that drive nothing. `table` is where the rigs are."""
    names = set(names)
    return [
        *(f"{what} {name} has no rig: write one, name it in {table}" for name in sorted(names - set(rigs))),
        *(f"{table} has a rig for {name}, which is no {what}" for name in sorted(set(rigs) - names)),
    ]


def without_a_timeline(kinds: Iterable[str], folder: Path) -> list[str]:
    """Triggers that no file of tests shows firing and staying quiet. A wrong file is told by its errors."""
    return [line for kind in sorted(kinds) for line in _observer_calls(kind, folder / f"{kind}.toml")]


def _observer_calls(kind: str, file: Path) -> list[str]:
    place = os.path.relpath(file, ROOT)
    if not file.is_file():
        return [f"trigger {kind} has no {place}: write the first step that fires and the last that does not"]
    cases, errors = read_cases(str(file), file.read_text())
    told = [_told(kind, case) for case in cases]
    return [
        *map(str, errors),
        *([] if errors or any(fires for fires, _ in told) else [f"{place} has no case in which {kind} fires"]),
        *([] if errors or any(quiet for _, quiet in told) else [f"{place} has no case in which {kind} stays quiet"]),
    ]


def _told(kind: str, case: Case) -> tuple[bool, bool]:
    """Whether the case wants a rule of this kind to fire, and whether it wants such a rule to stay quiet."""
    policies, _ = loaded_for(case)
    rules = {name for policy in (policies.policies if policies else ()) for name in _rules_of(kind, policy)}
    said = {(one.rule, one.reading) for one in case.findings}
    said |= {(rule, Reading(reading)) for rule, reading in case.readings.items()}
    verdicts = {one.rule for one in case.verdicts or ()}
    fires = bool(rules & verdicts) or any((rule, Reading.FIRING) in said for rule in rules)
    no_verdict = bool(rules) and case.verdicts is not None and not rules & verdicts
    return fires, any((rule, Reading.QUIET) in said for rule in rules) or (no_verdict and not fires)


def _rules_of(kind: str, policy: Policy) -> set[str]:
    return {rule.name for rule in policy.rules if any(member.trigger == kind for member in rule.conditions)}


def held_outside(trigger: Any) -> dict[str, Any]:
    """What a trigger has beside its `_state`, to compare: containers and objects of its own by what they hold."""
    kind = type(trigger)
    own = {f"self.{name}": value for name, value in vars(trigger).items() if name != "_state"}
    classes = [one for one in kind.__mro__ if one.__module__ == kind.__module__]
    shared = {f"{one.__name__}.{name}": value for one in classes for name, value in vars(one).items()}
    module = {name: value for name, value in vars(sys.modules[kind.__module__]).items() if not name.startswith("__")}
    return {name: _frozen(value) for name, value in {**own, **shared, **module}.items()}


def _frozen(value: Any) -> Any:
    """A copy of what may change; anything else stands for itself."""
    if isinstance(value, list | dict | set | deque | bytearray):
        return deepcopy(value)
    inner = getattr(value, "__dict__", None)
    if inner and not isinstance(value, type | ModuleType) and not callable(value):
        return type(value), deepcopy(inner)
    return value


def kept_outside(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What events changed beside the `_state` of a trigger: lost at a restart, and kept when an attempt begins."""
    absent = object()
    return [
        f"trigger {kind} keeps {name} outside its _state: make it a field of the dataclass that _fresh makes"
        for name in sorted({*before, *after})
        if before.get(name, absent) is not (now := after.get(name, absent)) and before.get(name, absent) != now
    ]


def never_filled(reading: type, text: str) -> list[str]:
    """Fields of a reading of metrics that are left at their default where it is made. `text`: the source of that."""
    made = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == reading.__name__
        if node.args or node.keywords  # Without any it is the default of a field.
    ]
    if not made:
        return [f"{reading.__name__} is filled nowhere"]
    names = [one.name for one in fields(reading)]
    return [
        f"{reading.__name__}.{name} is never filled: its metric would show the default for ever"
        for call in made
        for name in names[len(call.args) :]
        if name not in {keyword.arg for keyword in call.keywords}
    ]


def misnamed(metrics: Iterable[Metric]) -> list[str]:
    """Metrics whose name or meaning Prometheus' users would not expect (prometheus.io/docs/practices/naming)."""
    return [f"metric {metric.name}: {wrong}" for metric in metrics for wrong in _wrong_in(metric)]


def _wrong_in(metric: Metric) -> list[str]:
    name, is_counter = metric.name, metric.type == "counter"
    other, unit = _OTHER_UNITS.search(name), _UNIT.search(name)
    checks = {
        "a name is costgov_ and words in lower case": re.fullmatch(r"costgov(_[a-z][a-z0-9]*)+", name),
        "its type is gauge, counter or histogram": metric.type in ("gauge", "counter", "histogram"),
        "a counter's name ends in _total, and no other's": name.endswith("_total") is is_counter,
        f"{other and other[1]} is no base unit: seconds, bytes, ratio, usd or tokens": other is None,
        "its unit stands last": unit is None or re.match(_PER, name[unit.end() :]),
        "its meaning is a sentence: a capital or a digit first, a full stop last": re.fullmatch(
            r"[A-Z0-9](?s:.*)[^.]\.", metric.meaning
        ),
    }
    return [what for what, holds in checks.items() if not holds]


def observers_in(package: ModuleType) -> Mapping[str, list[type]]:
    """Modules of this package that define observers: classes with any call of `ports.Observer`."""
    found = {}
    for name in sorted(one.name for one in pkgutil.iter_modules(package.__path__) if not one.ispkg):
        module = importlib.import_module(f"{package.__name__}.{name}")
        classes = [one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__]
        observers = [one for one in classes if any(hasattr(one, call) for call in OBSERVED)]
        if observers:
            found[name] = observers
    return found


def without_a_call(observers: Mapping[str, Iterable[type]]) -> list[str]:
    """Observers that cannot be told everything."""
    return [
        f"exporter {name}: {one.__name__} has no {call}(): ports.Observer says what it is told"
        for name, classes in observers.items()
        for one in classes
        for call in sorted(OBSERVED)
        if not callable(getattr(one, call, None))
    ]


def never_built(package: str, names: Iterable[str], imported: Collection[str]) -> list[str]:
    """Exporters that nothing outside their package imports: no governor has them."""
    return [
        f"exporter {name} is built nowhere: governor/app/wiring.py has one line for each"
        for name in names
        if f"{package}.{name}" not in imported
    ]


def imported_outside(package: str) -> set[str]:
    """What the governor's files outside this package that name it import, by whole names."""
    own, last = package.replace(".", "/"), package.rpartition(".")[2]
    found = set()
    for source in sources("governor"):
        if not source.path.startswith(own) and last in source.text:  # Whoever imports from it writes its name.
            found |= {module for _, module in source.imports()}
            for node in source.named(ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def unexplained(path: str, command: click.Command, page: str) -> list[str]:
    """What this command and those below it lack: in --help, or in `page`, the text of docs/reference/cli.md."""
    paragraphs = inspect.cleandoc(command.help or "").replace("\b", "").split("\n\n")
    # Of a group, which commands follow; each of them is held to name its own.
    codes = ["Exit codes:\n    0  ", *([OF_THE_COMMANDS] if isinstance(command, click.Group) else [])]
    lacks = {
        "short_help": path == "costgov" or bool(command.short_help),
        "a help text whose second paragraph explains it or shows an example": len(paragraphs) > 1,
        "its exit codes: epilog=exits(...)": any(told in (command.epilog or "") for told in codes),
        "its section in docs/reference/cli.md: `make docs`": f"\n## {path}\n" in page,
    }
    missing = [f"{path} lacks {what}" for what, stands in lacks.items() if not stands]
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None, f"{path} lists {name} and does not have it"
            missing += unexplained(f"{path} {name}", inner, page)
    return missing
