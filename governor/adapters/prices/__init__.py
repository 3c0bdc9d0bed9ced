"""Price look-ups: one module in this directory for each provider, found by a sorted scan.

A look-up's module is a `plugins.Module[PriceSource]`; its KEYS are its table [price.<name>] in costgov.toml. The same
keys of [cloud.<name>] apply here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.plugins import Kind, Surroundings
from governor.remote_ports import PriceSource

LOOK_UPS: Final[Kind[PriceSource]] = Kind("price look-up", "price", __name__, __path__)
names, module = LOOK_UPS.names, LOOK_UPS.module


def load(
    name: str, config: Mapping[str, Any], cloud_config: Mapping[str, Any], surroundings: Surroundings | None = None
) -> PriceSource:
    """See `Kind.load`. Reads [price.<name>], and the look-up's keys from [cloud.<name>]."""
    known = {key.name for key in module(name).KEYS}
    shared = {key: value for key, value in cloud_config.items() if key in known}
    return LOOK_UPS.load(name, {**shared, **config}, surroundings)
