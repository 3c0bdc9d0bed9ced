"""Cloud providers: one module in this directory each, found by a sorted scan.

A provider module defines `NAME`, `KEYS` (its table in costgov.toml) and `build(config, surroundings) -> Cloud`.
Packages in this directory hold parts of a provider and are not scanned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from governor.adapters.plugins import ConfigError as CloudConfigError
from governor.adapters.plugins import ConfigKey, Kind, Surroundings, checked
from governor.ports import Cloud

__all__ = ["CloudConfigError", "ConfigKey", "Provider", "Surroundings", "load", "names", "provider"]


class Provider(Protocol):
    """The shape of a provider module."""

    NAME: str
    KEYS: tuple[ConfigKey, ...]

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> Cloud:
        """`config` holds every key of KEYS, checked. CloudConfigError when the values contradict one another."""


_CLOUDS: Final[Kind[Provider]] = Kind("cloud", __name__, __path__)
names = _CLOUDS.names
provider = _CLOUDS.module


def load(name: str, config: Mapping[str, Any], surroundings: Surroundings | None = None) -> Cloud:
    """Build the provider's adapter from its table in costgov.toml. Touches nothing but local files.

    CloudConfigError: an unknown provider, an unknown key, a value of the wrong kind, or values that contradict.
    """
    module = provider(name)
    return module.build(checked(f"cloud.{name}", module.KEYS, config), surroundings or Surroundings())
