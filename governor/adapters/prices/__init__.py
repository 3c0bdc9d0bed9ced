"""Price look-ups: one module in this directory for each provider, found by a sorted scan.

A module defines `NAME`, `KEYS` (its table [price.<name>] in costgov.toml; a key that stands in [cloud.<name>] holds
here, too) and `build(config, surroundings) -> PriceSource`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from governor.adapters.plugins import ConfigKey, Kind, Surroundings, checked
from governor.ports import PriceSource


class PriceModule(Protocol):
    """The shape of a module in this directory."""

    NAME: str
    KEYS: tuple[ConfigKey, ...]

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
        """`config` holds every key of KEYS, checked. ConfigError when the values contradict one another."""


_LOOK_UPS: Final[Kind[PriceModule]] = Kind("price look-up", __name__, __path__)
names = _LOOK_UPS.names
module = _LOOK_UPS.module


def load(
    name: str, config: Mapping[str, Any], cloud_config: Mapping[str, Any], surroundings: Surroundings | None = None
) -> PriceSource:
    """Build a look-up from [price.<name>], and from what it knows of [cloud.<name>]. Touches nothing but local files.

    ConfigError: an unknown name, an unknown key, a value of the wrong kind, or values that contradict.
    """
    found = module(name)
    known = {key.name for key in found.KEYS}
    shared = {key: value for key, value in cloud_config.items() if key in known}
    return found.build(checked(f"price.{name}", found.KEYS, {**shared, **config}), surroundings or Surroundings())
