"""Alert receivers: one module in this directory for each kind, found by a sorted scan.

A receiver's module is a `plugins.Module[AlertReceiver]`. Its NAME is the `kind` of an [[alert]] table of costgov.toml.
Its KEYS are the other keys of that table. A ConfigError of its `build` begins with the key: "url must be …".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.plugins import ConfigError, Kind, Surroundings, checked
from governor.ports import AlertReceiver

RECEIVERS: Final[Kind[AlertReceiver]] = Kind("kind of alert receiver", "alert", __name__, __path__)
names, module = RECEIVERS.names, RECEIVERS.module


def load(
    kind: str, config: Mapping[str, Any], table: str = "alert", surroundings: Surroundings | None = None
) -> AlertReceiver:
    """See `Kind.load`; an error begins with `table`, such as alert[2]. No secret is read yet."""
    try:
        found = module(kind)
    except ConfigError as error:
        raise ConfigError(f"{table}.kind: {error}") from error
    values = checked(table, found.KEYS, config)
    try:
        return found.build(values, surroundings or Surroundings())
    except ConfigError as error:
        raise ConfigError(f"{table}.{error}") from error
