"""Cloud providers: one module in this directory each, found by a sorted scan.

A provider module defines `NAME`, `KEYS` (its table in costgov.toml) and `build(config, surroundings) -> Cloud`.
Packages in this directory hold parts of a provider and are not scanned.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

from governor.ports import Cloud


class CloudConfigError(ValueError):
    """The user's configuration of a provider; one line that names the key."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of a provider's table. `kind` is text | flag | seconds | argv | texts; default None: may be left out."""

    name: str
    kind: str
    default: str | float | bool | tuple[str, ...] | None
    meaning: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a provider may take from the process around it, given instead of reached for."""

    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(dict(os.environ)), repr=False)
    wall_ns: Callable[[], int] = time.time_ns  # Signs requests and ages credentials; decides no halt.
    sys: Path = Path("/sys")


class Provider(Protocol):
    """The shape of a provider module."""

    NAME: str
    KEYS: tuple[ConfigKey, ...]

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> Cloud:
        """`config` holds every key of KEYS, checked. CloudConfigError when the values contradict one another."""


_KINDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "text": (lambda value: isinstance(value, str) and value != "", "a non-empty text"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "seconds": (
        lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 86_400,
        "a number of seconds, above 0 and at most 86400",
    ),
    "argv": (
        lambda value: isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(a, str) for a in value),
        'a list of words such as ["/usr/bin/stop-me", "{instance}"], no shell line',
    ),
    "texts": (
        lambda value: isinstance(value, (list, tuple)) and all(isinstance(a, str) for a in value),
        "a list of texts",
    ),
}


def names() -> tuple[str, ...]:
    """Return the providers that exist, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg))


def provider(name: str) -> Provider:
    """Return a provider's module. CloudConfigError says which names exist."""
    if name not in names():
        raise CloudConfigError(f'there is no cloud "{name}"; known: {", ".join(names())}')
    module = cast(Provider, importlib.import_module(f"{__name__}.{name}"))
    assert name == module.NAME, f"clouds/{name}.py calls itself {module.NAME}"
    return module


def load(name: str, config: Mapping[str, Any], surroundings: Surroundings | None = None) -> Cloud:
    """Build the provider's adapter from its table in costgov.toml. Touches nothing but local files.

    CloudConfigError: an unknown provider, an unknown key, a value of the wrong kind, or values that contradict.
    """
    module = provider(name)
    return module.build(checked(f"cloud.{name}", module.KEYS, config), surroundings or Surroundings())


def checked(table: str, keys: tuple[ConfigKey, ...], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return every key of a table of costgov.toml ("cloud.aws"), checked. CloudConfigError names what is wrong."""
    known = {key.name: key for key in keys}
    for given in config:
        if given not in known:
            raise CloudConfigError(f'{table}: unknown key "{given}"; known: {", ".join(sorted(known)) or "none"}')
    values: dict[str, Any] = {}
    for key in keys:
        value = config.get(key.name, key.default)
        holds, wanted = _KINDS[key.kind]
        # The value itself stays out of the message: it might be a secret in the wrong place.
        if value is not None and not holds(value):
            raise CloudConfigError(f"{table}.{key.name} must be {wanted}")
        values[key.name] = tuple(value) if isinstance(value, list) else value
    return MappingProxyType(values)
