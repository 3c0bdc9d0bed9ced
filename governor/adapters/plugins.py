"""Adapters of a kind (clouds, price look-ups, alert receivers): one module each, found by a sorted scan.

Such a module has a `NAME` (its file's name), `KEYS` (its table in costgov.toml) and a `build`. Packages beside them
hold parts of an adapter and are not scanned.
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
    """A fault in the user's configuration of an adapter: one line that names the key."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of an adapter's table. `kind`: text | flag | seconds | argv | texts. Default None: it is optional."""

    name: str
    kind: str
    default: str | float | bool | tuple[str, ...] | None
    meaning: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of the process's environment that an adapter may use. They are passed in, never reached for."""

    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(dict(os.environ)), repr=False)
    wall_ns: Callable[[], int] = time.time_ns  # Signs requests and ages credentials. It decides no halt.
    sys: Path = Path("/sys")


Built = TypeVar("Built")
Built_co = TypeVar("Built_co", covariant=True)


class Module(Protocol[Built_co]):
    """What every adapter module has."""

    NAME: str
    KEYS: tuple[ConfigKey, ...]

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> Built_co:
        """`config` holds every key of KEYS, checked. ConfigError if the values contradict one another."""


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

    `what` names one in an error: "cloud", "price look-up". `table` precedes its name in costgov.toml.
    """

    what: str
    table: str
    package: str
    path: Iterable[str]

    def names(self) -> tuple[str, ...]:
        """Return the names of the existing modules, sorted."""
        return tuple(sorted(found.name for found in pkgutil.iter_modules(self.path) if not found.ispkg))

    def module(self, name: str) -> Module[Built]:
        """Return a module by name. ConfigError lists the existing names."""
        if name not in self.names():
            raise ConfigError(f'there is no {self.what} "{name}"; known: {", ".join(self.names())}')
        found = cast(Module[Built], importlib.import_module(f"{self.package}.{name}"))
        assert name == found.NAME, f'NAME of {self.package}.{name} is "{found.NAME}" and must be "{name}"'
        return found

    def load(self, name: str, config: Mapping[str, Any], surroundings: Surroundings | None = None) -> Built:
        """Build an adapter from its table in costgov.toml. Reads local files at most.

        ConfigError: an unknown name, an unknown key, a value of the wrong kind, or values that contradict one another.
        """
        found = self.module(name)
        return found.build(checked(f"{self.table}.{name}", found.KEYS, config), surroundings or Surroundings())


def checked(table: str, keys: tuple[ConfigKey, ...], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return every key of a table of costgov.toml ("cloud.aws"), checked. ConfigError names the fault."""
    known = {key.name: key for key in keys}
    for given in config:
        if given not in known:
            raise ConfigError(f'{table}: unknown key "{given}"; known: {", ".join(sorted(known)) or "none"}')
    values: dict[str, Any] = {}
    for key in keys:
        value = config.get(key.name, key.default)
        holds, wanted = _KINDS[key.kind]
        # The message leaves the value out: it might be a secret in the wrong place.
        if value is not None and not holds(value):
            raise ConfigError(f"{table}.{key.name} must be {wanted}")
        values[key.name] = tuple(value) if isinstance(value, list) else value
    return MappingProxyType(values)
