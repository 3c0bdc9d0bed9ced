"""What each view tells of a run while its governor lives. Of the commands that read its journal: see commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from governor.adapters.alerts.alertmanager import posted
from governor.adapters.alerts.webhook import document
from governor.adapters.exporters.prometheus_metrics import METRICS
from governor.core.alerts.catalogue import of_alarm, of_incident
from governor.core.base.units import MonoNs, WallNs
from governor.core.engine.incidents import persist_incident
from governor.core.engine.node_journal import persist
from governor.core.rules.expression_variables import VARIABLES
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.reports.terminal import closing_line, live_line
from governor.text.incident_money import spent_text
from tests.hand_table.cases import AHEAD, CEILING, MILLION, PLAN_ALL_IN, UNSAID, Case, played
from tests.hand_table.commands import OF_ONE_STAGE, PRICES, told_by_commands
from tests.hand_table.told import ALL_TOKENS, CLOSING, Told, amount, in_text, micros
from tests.unit.core.engine.test_metering import World


def by_hand(case: Case) -> dict[str, int | None]:
    waste = sum(case.by_cause.values())
    hand: dict[str, int | None] = {
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
        "tokens": case.trained - case.repeated,
        ALL_TOKENS: case.began + case.unpaid + case.trained - case.repeated,
        "tokens/s": case.speed,
        "hours": round(Fraction(case.ms * MILLION, 3_600_000)),
        "ceiling": CEILING,
        "expected": PLAN_ALL_IN * (case.trained - case.repeated) // MILLION,
        "used": case.used,
        "burn_rate": case.burn,
        "unpriced": case.unpriced_ms * 1_000,
        "lands at": case.lands,
        **dict.fromkeys(AHEAD, UNSAID),
        **case.ahead,
        "windows": len(case.windows),
        **{
            f"window {number} {what}": value
            for number, one in enumerate(case.windows, start=1)
            for what, value in (("tokens", one.tokens), ("usd", one.usd), ("ms", one.ms))
        },
    }
    if not case.stages:
        return hand
    by_stage = {f"{one.name} {figure}": value for one in case.stages for figure, value in one.figures.items()}
    return {figure: value for figure, value in hand.items() if figure not in OF_ONE_STAGE} | by_stage


def told_of(case: Case) -> Iterator[Told]:
    """All that is told of it, but for what the hand does not say."""
    unsaid = {figure for figure, value in by_hand(case).items() if value == UNSAID}
    yield from (told for told in told_by(played(case)) if told.figure not in unsaid)


def told_by(world: World) -> Iterator[Told]:
    managed, now = world.node.runs["llama"], MonoNs(world.mono)
    world.take([persist(world.node, now, *world.node.runs.values())])
    status = dict(run_status(managed, now))
    yield from _status(status, len(world.windows))
    yield from _journal(world.windows)
    yield from _metrics(world, now)
    yield from in_text(
        "live line", live_line(status), {"spend": r"  (\S+)  \S+/1M now", "usd_per_mtok": r"(\S+)/1M now"}
    )
    yield from in_text("end line", closing_line(status, "ended"), CLOSING)
    run = managed.run
    yield from (Told("expression", name, micros(VARIABLES[name].read(run, now))) for name in PRICES)
    yield Told("expression", "spend", micros(VARIABLES["spend_usd"].read(run, now)))
    alert = of_alarm(world.node, "unwatched", "llama", "text", WallNs(1), 1)
    if managed.incident is not None:
        kept = persist_incident(world.node, managed).snapshot
        yield from _incident(kept)
        alert = of_incident(world.node, kept)
    body, note = document(alert), posted(alert, 1)["annotations"]
    yield Told("webhook", "spend", micros(body["spend_usd"]))
    yield from (Told("webhook", name, micros(body[name])) for name in PRICES)
    yield amount("Alertmanager", "spend", note["spend"])
    yield from (amount("Alertmanager", name, note.get(name, "-")) for name in PRICES)
    yield from told_by_commands(world)


def _status(status: Mapping[str, Any], number: int) -> Iterator[Told]:
    yield Told("status", "spend", micros(status["spend_usd"]))
    yield from (Told("status", name, micros(status[name])) for name in PRICES)
    yield Told("status", "drift", micros(status["drift_frac"]))
    yield Told("status", "drift_all_in", micros(status["drift_all_in_frac"]))
    yield Told("status", "wasted", micros(status["wasted_usd"]))
    yield from (Told("status", f"wasted {c}", micros(usd)) for c, usd in status["wasted_usd_by_cause"].items())
    yield Told("status", "tokens wasted", status["tokens_wasted"])
    yield Told("status", ALL_TOKENS, status["tokens_total"])
    window = status["window"]
    yield Told("status", f"window {number} tokens", window["to_tokens"] - window["from_tokens"])
    yield Told("status", f"window {number} usd", micros(window["usd"]))
    yield Told("status", f"window {number} ms", round(1_000 * window["duration_s"]))
    yield Told("status", "usd_per_mtok", micros(window["usd_per_mtok"]))
    yield Told("status", "ceiling", micros(status["ceiling_usd"]))
    yield Told("status", "unpriced", micros(status["unpriced_s"]))
    yield Told("status", "burn_rate", micros(status["burn_rate"]))
    yield from _ahead("status", status)


def _ahead(view: str, status: Mapping[str, Any]) -> Iterator[Told]:
    binding, between = status["binding"], status["ceiling_between_s"] or (None, None)
    yield Told(view, "reserve", micros(binding["reserve_usd"]) if binding is not None else None)
    yield Told(view, "ceiling in", micros(status["ceiling_in_s"]))
    yield from (Told(view, f"ceiling {when}", micros(s)) for when, s in zip(("early", "late"), between, strict=True))
    for figure, name in (("hours left", "hours_left"), ("cost left", "cost_left_usd")):
        yield Told(view, figure, micros(status[name][1]) if status[name] is not None else None)
    yield Told(view, "tokens/s now", micros(status["tokens_per_s"]))


def _journal(windows: Sequence[Mapping[str, Any]]) -> Iterator[Told]:
    yield Told("journal", "windows", len(windows))
    for number, window in enumerate(windows, start=1):
        tokens = window["to_tokens"] - window["from_tokens"] - window.get("lent_tokens", 0)
        yield Told("journal", f"window {number} tokens", tokens)
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
    for figure, name in (named | {price: price for price in PRICES}).items():
        yield Told("metrics", figure, micros(found[f"costgov_run_{name}"].get(())))
    for (cause,), usd in found["costgov_run_wasted_usd_total"].items():
        yield Told("metrics", f"wasted {cause}", micros(usd))
    yield Told("metrics", "ceiling", micros(found["costgov_run_ceiling_usd"].get(())))
    yield Told("metrics", "unpriced", micros(found["costgov_run_unpriced_seconds"].get(())))
    yield Told("metrics", "burn_rate", micros(found["costgov_run_burn_rate"].get(())))
    yield Told("metrics", "tokens/s now", micros(found["costgov_run_tokens_per_second"].get(())))
    yield Told("metrics", ALL_TOKENS, round(found["costgov_run_tokens_total"][()]))
    yield Told("metrics", "tokens wasted", round(found["costgov_run_wasted_tokens_total"][()]))


def _incident(kept: Mapping[str, Any]) -> Iterator[Told]:
    yield Told("incident", "spend", kept["spend_usd_micros"])
    yield Told("incident", ALL_TOKENS, kept["tokens_total"])
    yield from (Told("incident", name, kept[name.replace("usd_", "usd_micros_")]) for name in PRICES)
    yield from (Told("incident", f"wasted {cause}", usd) for cause, usd in kept["wasted_usd_micros"].items())
    said = {"spend": r"^(\S+) \(", "usd_per_mtok_all_in": r"(\S+)/1M tokens all-in", "wasted": r"(\S+) of it wasted"}
    yield from in_text("report of the incident", spent_text(kept), said)
