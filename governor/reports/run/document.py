"""The account of one run as plain JSON: what it cost, what its time went to, how it trained, and what nobody saw."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Any, Final

from governor.core.attribution.lateness import STRAGGLER_MIN_FRAC
from governor.core.attribution.rows import without_money
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, is_spend_known, utc_text
from governor.core.events.step_parts import rest_s
from governor.reports.run.facts import RunFacts, peak_used, speed_of
from governor.reports.run.sections import length, ranks_text
from governor.reports.run.series import OfRank, RunSeries
from governor.reports.run.unseen import EXPECTED, not_verified
from governor.reports.run.windows import PARTS, Interval
from governor.reports.terminal import stands_still_text

SCHEMA: Final = "costgov.report/1"
AS_SLOW_FRAC: Final = 0.8  # Of the way from the median rank's own computing to the slowest one's.
SLOW_NAMED_MAX: Final = 8
_PRICES: Final = ("usd_per_mtok_all_in", "usd_per_mtok_useful", "usd_per_mtok_steady", "usd_per_mtok")
# What of a step a cause is measured by, as `OfRank.part_s` has it.
_PART_OF: Final = {
    "data_starvation": "data", "loop_code": "loop", "checkpoint_stall": "checkpoint", "evaluation": "evaluation",
    "exposed_communication": "communication", "pipeline_bubble": "bubble", "optimizer_offload": "offload",
    "recompute": "recompute",
}  # fmt: skip
# Few steps have any of these: the mean over all steps is no time that somebody has waited.
_IN_ALL: Final = ("checkpoint", "evaluation")


def run_document(facts: RunFacts) -> dict[str, Any]:
    """Seconds and dollars are floats. `productive_s` and the causes add up to `wall_s`, their dollars to `usd`.

    Dollars are null where no price is known.
    """
    told, time = facts.told, _time(facts)
    spoke = list(facts.series.spoke) if facts.series is not None else []
    return {
        "schema": SCHEMA,
        "run": facts.run,
        "is_live": facts.ended is None,
        "ended": facts.ended,
        "as_of": facts.as_of,
        "stands_still": stands_still_text(told) if facts.ended is None and "run" in told else None,
        "node": facts.node,
        "wall_s": time.get("wall_s"),
        "usd": time.get("usd"),
        "productive_s": time.get("productive_s"),
        "productive_usd": time.get("productive_usd"),
        "mfu": speed_of(facts).mfu,
        "goodput": time.get("goodput"),
        "causes": [
            {**cause, "evidence": _evidence(cause, facts), "next_step": _next_step(cause, facts)}
            for cause in time.get("causes", ())
            if cause["s"] or cause["usd"]
        ],
        "prices": {name: told.get(name) for name in _PRICES},
        "usd_per_hour": facts.node_usd_per_hour,
        "expected": {name: told.get(name) for name in EXPECTED},
        "throughput": _throughput(facts),
        "parts": _parts(facts.series),
        "parts_of_rank": spoke[0] if len(spoke) == 1 else None,
        "parts_of_ranks": spoke,
        "ranks": _ranks(facts.series),
        "gpus": _gpus(facts.series),
        "saves": {"count": facts.series.saves, "s": facts.series.save_s} if facts.series is not None else None,
        "time_line": _time_line(facts.series),
        "halts": [_halt(one) for one in facts.halts],
        "failures": [dict(one) for one in facts.failures],
        "stability": _stability(facts.series),
        "not_verified": list(not_verified(facts)),
    }


def _time(facts: RunFacts) -> Mapping[str, Any]:
    """Its account. Empty where there is none."""
    time = facts.told.get("time") or {}
    return time if not time or is_spend_known(facts.node_usd_per_hour, time["usd"]) else without_money(time)


def interval_row(one: Interval | None) -> dict[str, Any] | None:
    return None if one is None else {"median": one.middle, "low": one.low, "high": one.high, "windows": one.windows}


def _evidence(cause: Mapping[str, Any], facts: RunFacts) -> str:
    """What the cause is known by, with this run's own numbers where there are any."""
    numbers, series = None, facts.series
    part = _PART_OF.get(str(cause["cause"]))
    if series is not None and part is not None:
        numbers = _of_a_step(series, part)
    elif cause["cause"] == "lost_steps" and facts.told.get("tokens_wasted"):
        numbers = f"{facts.told['tokens_wasted']:,} tokens were trained again"
    elif cause["cause"] in ("halt", "hang") and facts.halts:
        numbers = ", ".join(str(one["incident_id"]) for one in facts.halts[:3])
    elif cause["cause"] == "restart" and series is not None:
        numbers = f"{series.attempts} attempts"
    elif cause["cause"] == "straggler" and series is not None:
        return f"{cause['evidence']}{_as_slow(series)}"
    return str(cause["evidence"]) if numbers is None else f"{cause['evidence']}: {numbers}"


def _as_slow(series: RunSeries) -> str:
    """By how much. The account names the rank that was waited for longest; of others as slow nobody saw a wait."""
    own = {rank: sums.own_s / sums.steps for rank, sums in sorted(series.ranks.items()) if sums.steps}
    if len(own) < 2:
        return ""
    usual_s, most_s = median_low(own.values()), max(own.values())
    slow = [rank for rank, own_s in own.items() if own_s - usual_s > AS_SLOW_FRAC * (most_s - usual_s)]
    if most_s <= usual_s or most_s - usual_s < STRAGGLER_MIN_FRAC * usual_s:
        return ""
    if len(slow) == 1:
        other = "the other rank" if len(own) == 2 else "the median rank"
        longer = f"{length(most_s - usual_s)} longer than {other}"
        return f"; over all steps rank {slow[0]} computes {length(most_s)} of a step, {longer}"
    named = [f"rank {rank} {length(own[rank])}" for rank in slow[:SLOW_NAMED_MAX]]
    more = f" and {len(slow) - len(named)} more" if len(slow) > len(named) else ""
    return f"; as slow over all steps, of {length(usual_s)} on the median rank: {', '.join(named)}{more}"


def _next_step(cause: Mapping[str, Any], facts: RunFacts) -> Any:
    """A halt's seconds are what they are, unless most of them were a wait for a checkpoint that did not come."""
    vain = [one for one in facts.halts if _vain_ns(one)]
    if cause["cause"] == "halt" and sum(_vain_ns(one) for one in vain) > cause["s"] * NS_PER_S / 2:
        return (
            "most of it was a wait for a checkpoint that did not come: see why in "
            f"`costgov incident show {vain[0]['incident_id']}`, or set a shorter `grace`"
        )
    return cause["next_step"]


def _vain_ns(halt: Mapping[str, Any]) -> int:
    """From the request for a checkpoint until SIGTERM, of a halt that saved none."""
    moments = {one["what"]: int(one["mono_ns"]) for one in reversed(halt.get("timeline") or ())}  # The first of each.
    if halt.get("checkpoint") or halt.get("kind") == "none" or "asked" not in moments:
        return 0
    return max(0, moments.get("term", moments["asked"]) - moments["asked"])


def _of_a_step(series: RunSeries, part: str) -> str | None:
    """Of the rank that has the most of it: the others wait for that one. None: no step but a first one had any."""
    most = _rank_of_most(series, part)
    if part in _IN_ALL:
        return _in_all(series, part, most)
    if most is None:
        return None
    sums = series.ranks[most]
    told = f"{length(sums.part_s(part) / sums.steps)} of a step of {length(sums.seconds / sums.steps)} on rank {most}"
    return f"{told}, its wait for a late rank included" if part == "communication" else told


def _rank_of_most(series: RunSeries, part: str) -> int | None:
    per_step = {rank: sums.part_s(part) / sums.steps for rank, sums in sorted(series.ranks.items()) if sums.steps}
    most = max(per_step, key=lambda rank: per_step[rank], default=None)
    return most if most is not None and per_step[most] > 0 and series.ranks[most].seconds > 0 else None


def _in_all(series: RunSeries, part: str, most: int | None) -> str | None:
    """Of what few steps have: how often, and seconds of all of the run."""
    told_s = series.ranks[most].part_s(part) if most is not None else 0.0
    if part == "checkpoint" and series.saves:
        # The saves alone are of whoever spoke for the run. What steps of several ranks told has their wait in it too.
        has_waited = series.world_size != 1 and told_s > series.save_s
        waited = f"; with the wait for an agreed step, {length(told_s)} in all on rank {most}" if has_waited else ""
        return f"{_counted(series.saves, 'save', series.save_s)} on {ranks_text(series.spoke)}{waited}"
    if not told_s:
        return None
    is_counted = part == "evaluation" and series.evaluations
    told = _counted(series.evaluations, "evaluation", told_s) if is_counted else f"{length(told_s)} in all"
    return f"{told} on rank {most}"


def _counted(count: int, what: str, took_s: float) -> str:
    return f"1 {what}, {length(took_s)}" if count == 1 else f"{count:,} {what}s, {length(took_s)} in all"


def _throughput(facts: RunFacts) -> dict[str, Any]:
    series, time = facts.series, facts.told.get("time") or {}
    tokens, wall_s = facts.told.get("tokens_total"), time.get("wall_s")
    model, peak = speed_of(facts), peak_used(facts)
    return {
        "tokens_total": tokens,
        "tokens_wasted": facts.told.get("tokens_wasted"),
        "tokens_per_s": series.tokens_per_s if series is not None else None,
        "tokens_per_s_per_gpu": model.tokens_per_s_per_gpu,
        "model_flops_per_s": model.model_flops_per_s,
        # Over all time that the run held the node. Tokens of before its recording are in `tokens_total` alone.
        "tokens_per_s_all_in": series.tokens / wall_s if series is not None and series.tokens and wall_s else None,
        "step": facts.told.get("step"),
        "steps_recorded": series.stability.steps if series is not None else None,
        "step_s": series.step_times.row() if series is not None else None,
        "step_s_windows": interval_row(series.windows.step_s()) if series is not None else None,
        "tokens_per_s_windows": interval_row(series.windows.tokens_per_s()) if series is not None else None,
        "parameters": series.parameters if series is not None else None,
        "world_size": series.world_size if series is not None else None,
        "peak_flops_per_s": peak.flops_per_s if peak is not None else None,
        "gpu": peak.gpu if peak is not None else None,
    }


def _stability(series: RunSeries | None) -> dict[str, Any] | None:
    return series.stability.row() if series is not None and series.stability.steps else None


def _parts(series: RunSeries | None) -> list[dict[str, Any]]:
    """What a step of the run went to, without the first step of each attempt. Communication is "of which"."""
    if series is None or not series.windows.kept or not series.windows.told & set(PARTS):
        return []
    whole = sum(one.seconds for one in series.windows.kept)
    steps = sum(one.steps for one in series.windows.kept)
    totals = {name: series.windows.part_total_s(name) for name in PARTS if name in series.windows.told}
    totals["other"] = max(0.0, rest_s(whole, totals.values(), steps))
    rows = [_part(name, total, whole, steps, series, of_which=False) for name, total in totals.items()]
    if "communication" in series.windows.told:
        total = series.windows.part_total_s("communication")
        rows.append(_part("communication", total, whole, steps, series, of_which=True))
    return rows


def _part(name: str, total: float, whole: float, steps: int, series: RunSeries, *, of_which: bool) -> dict[str, Any]:
    return {
        "part": name, "s": total, "s_per_step": total / steps, "share": total / whole if whole > 0 else None,
        "of_which": of_which, "windows": interval_row(series.windows.part_s(name) if name != "other" else None),
    }  # fmt: skip


def _ranks(series: RunSeries | None) -> list[dict[str, Any]]:
    if series is None or len(series.ranks) < 2:
        return []
    return [_rank(rank, sums) for rank, sums in sorted(series.ranks.items()) if sums.steps]


def _rank(rank: int, sums: OfRank) -> dict[str, Any]:
    """A step of one rank: data, loop, own computing, communication and other add up to it."""
    found = {
        "step_s": sums.seconds, "data_s": sums.part_s("data"), "loop_s": sums.part_s("loop"), "own_s": sums.own_s,
        "communication_s": sums.comm_s, "other_s": sums.other_s,
    }  # fmt: skip
    of_a_step = {name: None if seconds is None else seconds / sums.steps for name, seconds in found.items()}
    return {"rank": rank, "steps": sums.steps, **of_a_step}


def _gpus(series: RunSeries | None) -> list[dict[str, Any]]:
    found = series.gpus.items() if series is not None else ()
    return [{"gpu": gpu, "busy_frac": busy.total / busy.samples, "samples": busy.samples} for gpu, busy in found]


def _time_line(series: RunSeries | None) -> list[dict[str, Any]]:
    if series is None or series.began is None:
        return []
    begun = series.began + series.wall_ahead_ns
    return [
        {
            "at": utc_text(begun + round(mark.at_s * NS_PER_S)), "at_s": round(mark.at_s, 3), "kind": mark.kind,
            "step": mark.step, "text": mark.text,
        }
        for mark in series.marks
    ]  # fmt: skip


def _halt(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    spent, at_verdict = snapshot.get("spend_usd_micros"), snapshot.get("spend_at_verdict_usd_micros")
    closed, opened = snapshot.get("closed_wall_ns"), int(snapshot["opened_wall_ns"])
    rate, lost_usd = snapshot.get("spend_rate_usd_micros_per_hour"), None
    if type(spent) is int and type(at_verdict) is int and is_spend_known(rate, spent):
        lost_usd = (spent - at_verdict) / MICROS_PER_USD
    return {
        "incident_id": snapshot["incident_id"],
        "at": utc_text(opened),
        "step": snapshot.get("step"),
        "rule": snapshot.get("rule"),
        "why": snapshot.get("text") or snapshot.get("reason"),
        "stage": snapshot.get("halt_stage"),
        "s": (int(closed) - opened) / NS_PER_S if closed is not None else None,
        "usd": lost_usd,
        "checkpoint": (snapshot.get("checkpoint") or {}).get("kind"),
        "page": f"costgov incident show {snapshot['incident_id']}",
    }
