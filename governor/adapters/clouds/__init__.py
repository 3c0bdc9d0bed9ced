"""Cloud providers: one module in this directory each, found by a sorted scan.

A provider's module is a `plugins.Module[Cloud]`; its KEYS are its table [cloud.<name>] in costgov.toml. Packages in
this directory hold parts of a provider and are not scanned.
"""

from __future__ import annotations

from typing import Final

from governor.adapters.plugins import Kind
from governor.remote_ports import Cloud

CLOUDS: Final[Kind[Cloud]] = Kind("cloud", "cloud", __name__, __path__)
names, provider, load = CLOUDS.names, CLOUDS.module, CLOUDS.load
