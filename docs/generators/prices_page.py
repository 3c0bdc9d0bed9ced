"""docs/reference/prices.md from the look-ups' own docstrings and KEYS, and from the built-in table's head."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections import Counter
from typing import Any, cast

from governor.adapters import prices
from governor.app.pricing import STALE_AFTER_PERIODS
from governor.core.money.prices import STALE_AFTER_DAYS
from governor.wire.price_table import built_in

LINE_CHARS = 120

_HEAD = f"""# Prices

<!-- Drawn from governor/adapters/prices and governor/data/prices.csv by `make docs`: change it there. -->

The governor asks what an hour of this machine costs, at its start and again while runs go on. It believes one answer, in this
order:

1. what the provider says about this very machine (AWS spot, Lambda, RunPod, Vast.ai);
2. `node.price_usd_per_hour` in costgov.toml, or `--price`;
3. the provider's public price list, read now (Azure);
4. the built-in table, by the instance type, else by the number of GPUs;
5. where the provider does not answer at a start: what was charged before that start, within the same boot.

A price always has a source and a date.

- An answer that contradicts another beyond rounding (a cent, or 1 %) is shown with both figures.
- A price of 0 or less is refused in one line.
- A price older than {STALE_AFTER_DAYS} days counts, and is alarmed (`price.stale_after_days`).
- An unknown price is shown and alarmed, and is never 0. It keeps a ceiling from starting. It never keeps a halt from happening.

`costgov prices` shows who says what about this machine. `costgov doctor` shows what is wrong with it.

`[price] ask_again = "auto"` asks for a spot price every 5 minutes and for any other price hourly. "10m" asks as often as it says,
"off" only at the start. A change is charged from the time at which it came into force, where the source says when (AWS
spot), else from its reading: [cost.md](../howto/cost.md). A failed answer changes nothing. {STALE_AFTER_PERIODS} missed answers in a row
are alarmed.

`[price] source = "auto"` asks the look-up of `cloud.provider`; otherwise name one of these. Each takes its keys from
`[price.<name>]`. A key that `[cloud.<name>]` has as well is taken from there. Asking only reads. A look-up has
`timeout_s` in all. Whatever goes wrong is reported in one line.
"""


def render() -> str:
    return _HEAD + "".join(_section(name) for name in prices.names()) + _table()


def _section(name: str) -> str:
    module = prices.module(name)
    rows = [f"| `{key.name}` | {key.kind} | {_literal(key.default)} | {key.meaning} |\n" for key in module.KEYS]
    return (
        f"\n## {name}\n\n{inspect.getdoc(cast(Any, module))}\n"
        f"\n| key | kind | default | meaning |\n|---|---|---|---|\n{''.join(rows)}"
    )


def _table() -> str:
    table = built_in()
    counts = Counter(row.provider for row in table.rows)
    listed = ", ".join(
        f"{provider} ({count})" for provider, count in sorted(counts.items(), key=lambda one: one[0].casefold())
    )
    text = (
        f"{len(table.rows)} public list prices, compiled {table.compiled_text}; every row has its source, the address of the page "
        "or file that was read, and its date in the source's own terms. The newest row of a kind counts; it is as old as the first "
        "day its date can mean. Rows of the kinds index, range and serverless are never used. `costgov prices --table` lists "
        'them all and marks with "!" what is stale.'
    )
    missing = (
        "OVHcloud has no row: the one list that was found of its prices has no date. "
        "Say what such a machine costs by `--price` or `node.price_usd_per_hour`."
    )
    paragraphs = (textwrap.fill(paragraph, LINE_CHARS) for paragraph in (text, f"{listed}.", missing))
    return "\n## The built-in table\n\n" + "\n\n".join(paragraphs) + "\n"


def _literal(default: object) -> str:
    return "–" if default is None else f"`{json.dumps(default)}`"
