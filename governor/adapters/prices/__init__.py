"""Price look-ups: one module in this directory for each provider, found by a sorted scan.

A module defines `NAME`, `KEYS` (its table [price.<name>] in costgov.toml; a key that stands in [cloud.<name>] holds
here, too) and `build(config, surroundings) -> PriceSource`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Protocol, cast

from governor.adapters.clouds import CloudConfigError, ConfigKey, Surroundings, checked
from governor.ports import PriceSource


class PriceModule(Protocol):
    """The shape of a module in this directory."""

    NAME: str
    KEYS: tuple[ConfigKey, ...]

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
        """`config` holds every key of KEYS, checked. CloudConfigError when the values contradict one another."""


def names() -> tuple[str, ...]:
    """Return the look-ups that exist, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg))


def module(name: str) -> PriceModule:
    """Return a look-up's module. CloudConfigError says which names exist."""
    if name not in names():
        raise CloudConfigError(f'there is no price look-up "{name}"; known: {", ".join(names())}')
    found = cast(PriceModule, importlib.import_module(f"{__name__}.{name}"))
    assert name == found.NAME, f"prices/{name}.py calls itself {found.NAME}"
    return found


def load(
    name: str, config: Mapping[str, Any], cloud_config: Mapping[str, Any], surroundings: Surroundings | None = None
) -> PriceSource:
    """Build a look-up from [price.<name>], and from what it knows of [cloud.<name>]. Touches nothing but local files.

    CloudConfigError: an unknown name, an unknown key, a value of the wrong kind, or values that contradict.
    """
    found = module(name)
    known = {key.name for key in found.KEYS}
    shared = {key: value for key, value in cloud_config.items() if key in known}
    return found.build(checked(f"price.{name}", found.KEYS, {**shared, **config}), surroundings or Surroundings())
