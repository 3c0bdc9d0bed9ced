"""The [[alert]] tables of costgov.toml: each is a receiver with a name and the alerts that it wants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from governor.adapters import alerts
from governor.adapters.plugins import ConfigError
from governor.core.alerts.catalogue import Route, Severity
from governor.ports import AlertReceiver
from governor.settings.streams import Alert as Table

_ONLY: Final = re.compile(r"[^\s*]+\*?|\*")


@dataclass(frozen=True, slots=True)
class ConfiguredReceiver:
    name: str
    kind: str
    route: Route
    receiver: AlertReceiver


@dataclass(frozen=True, slots=True)
class Problem:
    """`place` is the table's, counted from 0; `key` is where the line of the file is, as far as we know it."""

    place: int
    key: str
    text: str


def read(tables: Sequence[Table]) -> tuple[list[ConfiguredReceiver], list[Problem]]:
    """Build every receiver, or state its problem. Reads nothing, not even a secret's file."""
    found: list[ConfiguredReceiver] = []
    problems: list[Problem] = []
    for place, table in enumerate(tables):
        shown = f"alert[{place + 1}]"
        try:
            receiver = alerts.load(table.kind, table.config, shown)
        except ConfigError as error:
            key = re.match(re.escape(shown) + r"(?:\.|: unknown key \")(\w+)", str(error))
            problems.append(Problem(place, key.group(1) if key else "kind", str(error)))
            continue
        for one in table.only:
            if not _ONLY.fullmatch(one):
                text = f'{shown}.only: "{one}" is no name of an alarm, and no beginning of one such as "rule_*"'
                problems.append(Problem(place, "only", text))
        name = table.name or urlsplit(receiver.where).hostname or table.kind
        if name in (other.name for other in found):
            text = f'{shown}.name: another receiver is called "{name}" already; set a name to tell them apart'
            problems.append(Problem(place, "name", text))
        route = Route(table.only, Severity[table.min_severity.upper()])
        found.append(ConfiguredReceiver(name, table.kind, route, receiver))
    return found, problems


def configured_receivers(tables: Sequence[Table]) -> list[ConfiguredReceiver]:
    """The receivers of tables that `load_settings` has checked."""
    found, problems = read(tables)
    assert not problems, problems
    return found
