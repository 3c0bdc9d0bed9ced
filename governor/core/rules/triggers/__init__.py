"""Triggers: one condition per file. A new trigger is one new file here; load() finds it by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

from governor.core.rules.trigger import Trigger


@cache
def load() -> dict[str, type[Trigger]]:
    """Every trigger of this directory by KIND, in sorted order."""
    return scan(__name__, __path__)


def scan(package: str, path: Iterable[str]) -> dict[str, type[Trigger]]:
    """Every trigger of a package by KIND, in sorted order. Each file has one class with a KIND, the file's name."""
    found: dict[str, type[Trigger]] = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(path) if module.name != "base"):
        module = importlib.import_module(f"{package}.{name}")
        classes = [
            member
            for member in vars(module).values()
            if isinstance(member, type) and member.__module__ == module.__name__ and "KIND" in vars(member)
        ]
        assert len(classes) == 1, f"{package}.{name} must define one class with a KIND, and has {len(classes)}"
        kind = vars(classes[0])["KIND"]
        assert kind == name, f'KIND of {package}.{name} is "{kind}" and must be "{name}"'
        found[kind] = classes[0]
    return found
