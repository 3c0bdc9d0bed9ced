"""Every alarm says how urgent it is."""

from __future__ import annotations

import ast

from governor.core.alerts.catalogue import SEVERITIES
from governor.core.money.prices import RemarkKind
from tests.tidy.sources import dotted, sources


def _names() -> dict[str, str]:
    """Alarm names that stand in the code, and where."""
    found = {kind.value: "governor/core/money/prices.py" for kind in RemarkKind}
    for source in sources("governor"):
        for call in source.named(ast.Call):
            first = call.args[0] if call.args else None
            if dotted(call.func) == "Alarm" and isinstance(first, ast.Constant) and isinstance(first.value, str):
                found[first.value] = source.at(call)
    return found


def test_every_alarm_of_the_code_has_a_severity_of_its_own() -> None:
    missing = {name: place for name, place in _names().items() if name not in SEVERITIES}
    assert not missing, f"give each a line in governor/core/alerts/catalogue.py SEVERITIES, then `make docs`: {missing}"


def test_the_names_are_found_at_all() -> None:
    assert {"unwatched", "still_billed", "price_stale"} <= set(_names())
