"""docs/reference/clouds.md from the providers' own docstrings and KEYS."""

from __future__ import annotations

import inspect
import json
from typing import Any, cast

from governor.adapters import clouds

_HEAD = """# Clouds

<!-- Drawn from governor/adapters/clouds by `make docs`: change it there. -->

`[cloud] provider = "…"` in costgov.toml names one of these. `[cloud.<provider>]` has its keys. A halt asks for
the stop, and then reads the provider's own state back until billing has ended. An accepted call is never taken for a
stopped machine. `costgov doctor` says beforehand what a halt would do, what would be refused, and what stays billed.
"""


def render() -> str:
    return _HEAD + "".join(_section(name) for name in clouds.names())


def _section(name: str) -> str:
    provider = clouds.provider(name)
    rows = [f"| `{key.name}` | {key.kind} | {_literal(key.default)} | {key.meaning} |\n" for key in provider.KEYS]
    table = "\n| key | kind | default | meaning |\n|---|---|---|---|\n" + "".join(rows) if rows else ""
    return f"\n## {name}\n\n{inspect.getdoc(cast(Any, provider))}\n{table}"


def _literal(default: object) -> str:
    return "–" if default is None else f"`{json.dumps(default)}`"
