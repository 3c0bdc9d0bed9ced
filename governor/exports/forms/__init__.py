"""Forms of an export: one module in this directory for each, found by a sorted scan.

A form's module has `NAME` (its file's name), `TARGET` (what its last argument names), `MEANING` (a sentence) and an
`open`, which returns a `Form`. A tool's own package is imported there, so that only its form needs it.
"""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import AbstractContextManager
from typing import Final, Protocol, cast

from governor.exports.form import Form, Of


class Module(Protocol):
    NAME: str
    TARGET: str
    MEANING: str

    def open(self, target: str, of: Of) -> AbstractContextManager[Form]:
        """Leaving it without `finish` leaves nothing behind. Raises `ExportRefused`."""


FORMS: Final = tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.ispkg))


def form(name: str) -> Module:
    """The module of a form in FORMS."""
    found = cast(Module, importlib.import_module(f"{__name__}.{name}"))
    assert name == found.NAME, f'NAME of {found} is "{found.NAME}" and must be "{name}"'
    return found
