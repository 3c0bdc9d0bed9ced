"""What each view tells of a run: numbers out of JSON and metrics, and those that stand in lines of text.

Micro-dollars, and ratios in millionths. A text has fewer digits: a figure of it comes with the size of its last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from governor.adapters.alerts.alertmanager import posted
from governor.adapters.alerts.webhook import document
from governor.adapters.exporters.prometheus_metrics import METRICS
from governor.cli.cost.stages import table_text
from governor.core.alerts.catalogue import of_alarm, of_incident
from governor.core.base.units import MonoNs, WallNs
from governor.core.engine.incidents import persist_incident
from governor.core.money.reports.stage_row import StageRow
from governor.core.rules.expression_variables import VARIABLES
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.reports.terminal import closing_line, live_line
from governor.text.incident_money import spent_text
from governor.text.screen import FILE
from tests.hand_table.cases import CAUSES, MILLION, Case
from tests.unit.core.engine.test_metering import World
from tests.unit.core.money.test_waste import stage_row


class Told(NamedTuple):
    view: str
    figure: str
    value: int | None
    grid: int = 1  # The last digit shown.

    def differs_by(self, hand: int | None) -> int | None:
        """0: the same, as far as it is shown. None: one of them knows it and the other does not."""
        if self.value is None or hand is None:
            return 0 if self.value is hand else None
        off = abs(self.value - hand)
        return off if 2 * off > (self.grid if self.grid > 1 else 0) else 0


def by_hand(case: Case) -> dict[str, int | None]:
    waste = sum(case.by_cause.values())
    return {
        "spend": case.spend,
        "usd_per_mtok": case.now,
        "usd_per_mtok_all_in": case.all_in,
        "usd_per_mtok_useful": case.useful,
        "usd_per_mtok_steady": int(case.steady),
        "usd_per_mtok_steady_stage": int(case.steady_of_stage),
        "drift": case.drift,
        "drift_stage": case.drift_stage,
        "drift_all_in": case.drift_all_in,
        "wasted": waste,
        **{f"wasted {cause}": amount for cause, amount in case.by_cause.items()},
        "tokens wasted": case.repeated,
        "windows": len(case.windows),
        **{
            f"window {number} {what}": value
            for number, one in enumerate(case.windows, start=1)
            for what, value in (("tokens", one.tokens), ("usd", one.usd), ("ms", one.ms))
        },
    }


def told_by(world: World) -> Iterator[Told]:
    managed, now = world.node.runs["llama"], MonoNs(world.mono)
    status = dict(run_status(managed, now))
    yield from _status(status, len(world.windows))
    yield from _journal(world.windows)
    yield from _metrics(world, now)
    yield from _in_text(
        "live line", live_line(status), {"spend": r"  (\S+)  \S+/1M now", "usd_per_mtok": r"(\S+)/1M now"}
    )
    yield from _in_text("end line", closing_line(status, "ended"), _CLOSING)
    row = stage_row(world)
    yield from _stage(row)
    yield from _stage_table(row)
    run = managed.run
    yield from (Told("expression", name, _micros(VARIABLES[name].read(run, now))) for name in _PRICES)
    yield Told("expression", "spend", _micros(VARIABLES["spend_usd"].read(run, now)))
    alert = of_alarm(world.node, "unwatched", "llama", "text", WallNs(1), 1)
    if managed.incident is not None:
        kept = persist_incident(world.node, managed).snapshot
        yield from _incident(kept)
        alert = of_incident(world.node, kept)
    body, note = document(alert), posted(alert, 1)["annotations"]
    yield Told("webhook", "spend", _micros(body["spend_usd"]))
    yield from (Told("webhook", name, _micros(body[name])) for name in _PRICES)
    yield _amount("Alertmanager", "spend", note["spend"])
    yield from (_amount("Alertmanager", name, note.get(name, "-")) for name in _PRICES)


_PRICES = ("usd_per_mtok", "usd_per_mtok_all_in", "usd_per_mtok_useful", "usd_per_mtok_steady")
_STAGE_PRICES = ("usd_per_mtok_all_in", "usd_per_mtok_useful", "usd_per_mtok_steady_stage")
_WORDS = dict(zip(CAUSES, ("starting up", "after the last step", "in a halt", "for tokens trained twice"), strict=True))
_CLOSING = {
    "spend": r"spent (\$\S+);",
    "usd_per_mtok_all_in": r"(\S+)/1M tokens all-in",
    "usd_per_mtok_useful": r"all-in \((\S+) useful\)",
    "wasted": r"wasted (\S+) \(",
    **{f"wasted {cause}": rf"(\$\S+) {words}" for cause, words in _WORDS.items()},
}


def _status(status: Mapping[str, Any], number: int) -> Iterator[Told]:
    yield Told("status", "spend", _micros(status["spend_usd"]))
    yield from (Told("status", name, _micros(status[name])) for name in _PRICES)
    yield Told("status", "drift", _micros(status["drift_frac"]))
    yield Told("status", "drift_all_in", _micros(status["drift_all_in_frac"]))
    yield Told("status", "wasted", _micros(status["wasted_usd"]))
    yield from (Told("status", f"wasted {c}", _micros(usd)) for c, usd in status["wasted_usd_by_cause"].items())
    yield Told("status", "tokens wasted", status["tokens_wasted"])
    window = status["window"]
    yield Told("status", f"window {number} tokens", window["to_tokens"] - window["from_tokens"])
    yield Told("status", f"window {number} usd", _micros(window["usd"]))
    yield Told("status", f"window {number} ms", round(1_000 * window["duration_s"]))
    yield Told("status", "usd_per_mtok", _micros(window["usd_per_mtok"]))


def _journal(windows: Sequence[Mapping[str, Any]]) -> Iterator[Told]:
    yield Told("journal", "windows", len(windows))
    for number, window in enumerate(windows, start=1):
        yield Told("journal", f"window {number} tokens", window["to_tokens"] - window["from_tokens"])
        yield Told("journal", f"window {number} usd", window["usd_micros"] if "unpriced" not in window else None)
        yield Told("journal", f"window {number} ms", round(window["duration_ns"] / 1_000_000))


def metrics_of(world: World, now: MonoNs) -> dict[str, dict[tuple[str, ...], float]]:
    """The run's metrics by name and by the labels that are not the run's own."""
    snapshot = take_snapshot(world.node, now, GovernorHealth(), LagReading(), "")
    return {
        metric.name: {labels[5:]: value for labels, value in metric.samples(snapshot) if labels[0] == "llama"}
        for metric in METRICS
        if metric.name.startswith("costgov_run_")
    }


def _metrics(world: World, now: MonoNs) -> Iterator[Told]:
    found = metrics_of(world, now)
    named = {"spend": "spend_usd_total", "drift": "drift_ratio", "drift_all_in": "drift_all_in_ratio"}
    for figure, name in (named | {price: price for price in _PRICES}).items():
        yield Told("metrics", figure, _micros(found[f"costgov_run_{name}"].get(())))
    for (cause,), amount in found["costgov_run_wasted_usd_total"].items():
        yield Told("metrics", f"wasted {cause}", _micros(amount))
    yield Told("metrics", "tokens wasted", round(found["costgov_run_wasted_tokens_total"][()]))


def _stage(row: StageRow) -> Iterator[Told]:
    """As `--json` has them."""
    yield Told("cost stages", "spend", row.actual_usd_micros)
    prices = (row.per_mtok_all_in, row.per_mtok_useful, row.per_mtok_steady)
    for name, price in zip(_STAGE_PRICES, prices, strict=True):
        yield Told("cost stages", name, int(price) if price is not None else None)
    for name, ratio in (("drift_stage", row.drift), ("drift_all_in", row.drift_all_in)):
        yield Told("cost stages", name, round(MILLION * ratio) if ratio is not None else None)
    yield Told("cost stages", "wasted", row.wasted_usd_micros)
    yield from (Told("cost stages", f"wasted {c}", usd) for c, usd in (row.wasted_by_cause or {}).items())
    yield Told("cost stages", "tokens wasted", row.wasted_tokens)


def _stage_table(row: StageRow) -> Iterator[Told]:
    heads, cells = (re.split(r"\s{2,}", line) for line in table_text([row], FILE).splitlines()[:2])
    shown = dict(zip(heads, cells, strict=True))
    named = dict(zip(_STAGE_PRICES, ("$/1M ALL-IN", "$/1M USEFUL", "$/1M STEADY, STAGE"), strict=True))
    for figure, head in ({"spend": "ACTUAL", "wasted": "WASTED"} | named).items():
        yield _amount("table of cost stages", figure, shown[head])
    drift = shown["DRIFT STEADY, STAGE"].removesuffix("%")
    yield Told("table of cost stages", "drift_stage", round(float(drift) * 10_000) if drift != "-" else None, 1_000)


def _incident(kept: Mapping[str, Any]) -> Iterator[Told]:
    yield Told("incident", "spend", kept["spend_usd_micros"])
    yield from (Told("incident", name, kept[name.replace("usd_", "usd_micros_")]) for name in _PRICES)
    yield from (Told("incident", f"wasted {cause}", amount) for cause, amount in kept["wasted_usd_micros"].items())
    said = {"spend": r"^(\S+) \(", "usd_per_mtok_all_in": r"(\S+)/1M tokens all-in", "wasted": r"(\S+) of it wasted"}
    yield from _in_text("report of the incident", spent_text(kept), said)


def _in_text(view: str, text: str, figures: Mapping[str, str]) -> Iterator[Told]:
    """What the text has of them: it leaves out what is unknown, nothing, or told by another figure already."""
    for figure, pattern in figures.items():
        if (found := re.search(pattern, text)) is not None:
            yield _amount(view, figure, found[1].strip("(),;"))


def _amount(view: str, figure: str, text: str) -> Told:
    """Of "$1,234.56": two digits behind the point, so to the cent."""
    if text in ("-", "$ -"):
        return Told(view, figure, None)
    whole = text.removeprefix("$").replace(",", "")
    return Told(view, figure, _micros(whole), 10 ** (6 - len(whole.partition(".")[2])))


def _micros(dollars: float | str | None) -> int | None:
    return round(float(dollars) * MILLION) if dollars is not None else None
