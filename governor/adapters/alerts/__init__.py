"""Alert receivers: one module in this directory for each kind, found by a sorted scan.

A module defines `NAME` (the `kind` of an [[alert]] table of costgov.toml), `KEYS` (the other keys of that table) and
`build(config, surroundings) -> AlertReceiver`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from governor.adapters.plugins import ConfigError, ConfigKey, Kind, Surroundings, checked
from governor.ports import AlertReceiver


class AlertModule(Protocol):
    """The shape of a module in this directory."""

    NAME: str
    KEYS: tuple[ConfigKey, ...]

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> AlertReceiver:
        """`config` holds every key of KEYS, checked. ConfigError begins with the key: "url must be …"."""


_RECEIVERS: Final[Kind[AlertModule]] = Kind("kind of alert receiver", __name__, __path__)
names = _RECEIVERS.names
module = _RECEIVERS.module


def load(
    kind: str, config: Mapping[str, Any], table: str = "alert", surroundings: Surroundings | None = None
) -> AlertReceiver:
    """Build a receiver from the keys of its own in an [[alert]] table. Touches nothing, not even its secret's file.

    ConfigError: an unknown kind, an unknown key, a value of the wrong kind, or values that contradict.
    """
    try:
        found = module(kind)
    except ConfigError as error:
        raise ConfigError(f"{table}.kind: {error}") from error
    values = checked(table, found.KEYS, config)
    try:
        return found.build(values, surroundings or Surroundings())
    except ConfigError as error:
        raise ConfigError(f"{table}.{error}") from error
