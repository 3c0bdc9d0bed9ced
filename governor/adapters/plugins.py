"""Adapters of a kind (clouds, price look-ups, alert receivers): one module each, found by a sorted scan, and its table.

Such a module has a `NAME`, its file's own, `KEYS` (its table in costgov.toml) and a `build`. Packages beside them hold
parts of one and are not scanned.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar, cast


class ConfigError(ValueError):
    """The user's configuration of an adapter; one line that names the key."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of an adapter's table. `kind` is text | flag | seconds | argv | texts; default None: may be left out."""

    name: str
    kind: str
    default: str | float | bool | tuple[str, ...] | None
    meaning: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an adapter may take from the process around it, given instead of reached for."""

    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(dict(os.environ)), repr=False)
    wall_ns: Callable[[], int] = time.time_ns  # Signs requests and ages credentials; decides no halt.
    sys: Path = Path("/sys")


Built = TypeVar("Built")
Built_co = TypeVar("Built_co", covariant=True)


class Module(Protocol[Built_co]):
    """What every such module has."""

    NAME: str
    KEYS: tuple[ConfigKey, ...]

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> Built_co:
        """`config` holds every key of KEYS, checked. ConfigError when the values contradict one another."""


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


@dataclass(frozen=True, slots=True)
class Kind(Generic[Built]):
    """One directory of modules that build the same port.

    `what` is the word for one in an error: "cloud", "price look-up". `table` is what stands before its name in
    costgov.toml.
    """

    what: str
    table: str
    package: str
    path: Iterable[str]

    def names(self) -> tuple[str, ...]:
        """Return those that exist, sorted."""
        return tuple(sorted(found.name for found in pkgutil.iter_modules(self.path) if not found.ispkg))

    def module(self, name: str) -> Module[Built]:
        """Return one by name. ConfigError says which names exist."""
        if name not in self.names():
            raise ConfigError(f'there is no {self.what} "{name}"; known: {", ".join(self.names())}')
        found = cast(Module[Built], importlib.import_module(f"{self.package}.{name}"))
        assert name == found.NAME, f"{self.package}: {name}.py calls itself {found.NAME}"
        return found

    def load(self, name: str, config: Mapping[str, Any], surroundings: Surroundings | None = None) -> Built:
        """Build one from its table in costgov.toml. Touches nothing but local files.

        ConfigError: an unknown name, an unknown key, a value of the wrong kind, or values that contradict.
        """
        found = self.module(name)
        return found.build(checked(f"{self.table}.{name}", found.KEYS, config), surroundings or Surroundings())


def checked(table: str, keys: tuple[ConfigKey, ...], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return every key of a table of costgov.toml ("cloud.aws"), checked. ConfigError names what is wrong."""
    known = {key.name: key for key in keys}
    for given in config:
        if given not in known:
            raise ConfigError(f'{table}: unknown key "{given}"; known: {", ".join(sorted(known)) or "none"}')
    values: dict[str, Any] = {}
    for key in keys:
        value = config.get(key.name, key.default)
        holds, wanted = _KINDS[key.kind]
        # The value itself stays out of the message: it might be a secret in the wrong place.
        if value is not None and not holds(value):
            raise ConfigError(f"{table}.{key.name} must be {wanted}")
        values[key.name] = tuple(value) if isinstance(value, list) else value
    return MappingProxyType(values)
