"""The node, its runs and its machine, as `costgov status --json` shows them at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.attribution.rows import told_time
from governor.core.base.model_speed import ModelSpeed, model_speed
from governor.core.base.policy import COMMAND_LINE
from governor.core.base.save_interval import advice, mtbf_s
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, MonoNs
from governor.core.engine import budgeting
from governor.core.engine.command import ceilings
from governor.core.engine.halt_plan import job_of
from governor.core.engine.idle.limit import due_at, limit
from governor.core.engine.idle.messages import KEEP_IT, cannot_stop
from governor.core.engine.idle.occupancy import occupants, unseen
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.run_forecast import Binding, Outlook, outlook
from governor.core.engine.spent.over_nodes import is_over_nodes
from governor.core.engine.spent.time import halts_in_s
from governor.core.events.ends import RunEnd
from governor.core.money.budgets import Cap, Scope, ScopedBudget, ScopeKind, parse_scope
from governor.core.money.waste import wasted_usd
from governor.core.runs.ends import cause_of, ended_text
from governor.core.runs.state import Run
from governor.core.runs.stepless import stepless_ns
from governor.core.views.machines import launch_named, machine_status, over_nodes

# The node's users, and its own stop: for `costgov status` and the metrics.


def idle_s(node: Node, at: MonoNs) -> float | None:
    """How long the node has had no user; 0 while it has one, None while that is unknown."""
    if node.idle.since is not None:
        return max(0, at - node.idle.since) / NS_PER_S
    return 0.0 if occupants(node, at) else None


def node_status(node: Node, at: MonoNs) -> dict[str, Any]:
    """Seconds and dollars are floats: for people, not for sums."""
    idle, wanted = node.idle, limit(node)
    due = due_at(node, wanted) if wanted is not None and not idle.is_done and not wanted.observed else None
    obstacle = cannot_stop(node.facts) if wanted is not None else None
    incident = idle.stop.incident if idle.stop is not None else None
    return {
        "here": [one.text for one in occupants(node, at)],
        "unseen": unseen(node, at),
        "idle_s": idle_s(node, at),
        "limit_s": wanted.after_ns / NS_PER_S if wanted is not None else None,
        "limit_by": wanted.source if wanted is not None else None,
        "observed": wanted.observed if wanted is not None else None,
        "obstacle": obstacle,
        "stops_in_s": max(0, due - at) / NS_PER_S if due is not None and obstacle is None else None,
        "will": node.facts.will_stop,
        "keep_it": KEEP_IT,
        "hold": _node_hold(node, at),
        "stop": {"stage": incident.stage_name, "incident_id": incident.incident_id}
        if idle.is_stopping and incident
        else None,
        "unallocated_usd": ceilings.unallocated(node) / MICROS_PER_USD,
    }


def _node_hold(node: Node, at: MonoNs) -> dict[str, Any] | None:
    until = node.idle.hold_until
    if until is None or at >= until:
        return None
    return {"left_s": (until - at) / NS_PER_S, "reason": node.idle.hold_reason}


# The runs and the lines, for `costgov status`.


_STATE_OF_PHASE = {"eval": "eval", "checkpoint": "checkpoint", "compile": "compile", "init": "starting"}


def runs_status(node: Node, at: MonoNs) -> list[dict[str, Any]]:
    """One record per run, newest last. Dollars are floats: for people, not for sums."""
    return [{**run_status(managed, at), "job": _job(node, managed.run)} for managed in node.runs.values()]


def _job(node: Node, run: Run) -> str | None:
    """The scheduler's job, as our launch or the run names it. None: none that could be asked for."""
    job = job_of(node.facts, run)
    return job.full_name if job is not None else None


def lines_status(node: Node) -> list[dict[str, Any]]:
    """The lines that the node is billed for, beside the machine."""
    lines = node.facts.lines
    known = [(metered.line, metered.amount, _usd(metered.usd_micros_per_hour)) for metered in node.ledger.other_lines]
    known += [(line, 1, None) for line in (*lines.per_launch, *lines.per_gb)]
    return [
        {
            "kind": line.kind.value,
            "name": line.name,
            "amount": amount,
            "price_usd": line.price_usd_micros / MICROS_PER_USD,
            "unit": line.unit.value,
            "usd_per_hour": per_hour,  # None: it costs by the launch or by the GB.
            "source": line.source,
            "as_of": line.as_of,
        }
        for line, amount, per_hour in known
    ]


def budgets_status(node: Node, at: MonoNs) -> list[dict[str, Any]]:
    """Every budget in force, and every ceiling that a live run has from its policy. Dollars are floats, for display."""
    budgets = {budget.scope.text: budget for budget in node.budgets.in_force()}
    for managed in node.runs.values():
        scope = Scope(ScopeKind.RUN, managed.run.run)
        if managed.run.alive and not managed.awaits_line and scope.text not in budgets:
            policys = budgeting.after_clearing(node, scope)
            if policys is not None:
                budgets[scope.text] = policys
    for cap in (cap for managed in node.runs.values() if managed.run.alive for cap in managed.run.caps):
        if cap.scope.startswith("run:") and cap.scope not in budgets:  # Of a command's name that no run has now.
            budgets[cap.scope] = ScopedBudget(parse_scope(cap.scope), cap.ceiling_usd_micros, COMMAND_LINE)
    return [_budget(budget, budgeting.standing(node, budget, at)) for budget in budgets.values()]


def _budget(budget: ScopedBudget, cap: Cap) -> dict[str, Any]:
    rate = cap.rate_usd_micros_per_hour
    return {
        "scope": cap.scope,
        "ceiling_usd": cap.ceiling_usd_micros / MICROS_PER_USD,
        "spend_usd": cap.spend_usd_micros / MICROS_PER_USD,
        "reserve_usd": cap.reserve_usd_micros / MICROS_PER_USD,
        "rate_usd_per_hour": rate / MICROS_PER_USD if rate is not None else None,
        "reached_in_s": _reached_in_s(cap),
        "alert_at": list(budget.alert_at),
        "tokens": budget.tokens,
        "source": budget.source,
        "live": budget.is_live,
        "reason": budget.reason,
        "uid": budget.uid,
        "set_at_s": budget.set_wall / NS_PER_S if budget.set_wall is not None else None,
    }


def _reached_in_s(cap: Cap) -> float | None:
    """As a run's `ceiling_in_s`, with the reserve as it will be then. None: never, or not before the day ends."""
    met = cap.met()
    return met.after_ns / NS_PER_S if met is not None else None


def speed_of(run: Run, at: MonoNs) -> ModelSpeed:
    """As of its last steps. A log has no ranks, and so no GPUs that are known to be all of the run's."""
    has_gpus = any(rank.gpu_uuids for rank in run.ranks.values())
    speed = run.tokens_per_s if stepless_ns(run, at) is None else None
    return model_speed(speed, run.parameters, run.world_size if has_gpus else None, run.peak)


def _speed(managed: ManagedRun, run: Run, at: MonoNs) -> dict[str, Any]:
    silent_ns = stepless_ns(run, at)
    return {
        "tokens_per_s": run.tokens_per_s if silent_ns is None else None,
        **speed_of(run, at)._asdict(),  # By `tokens_per_s`; base.model_speed has the definitions.
        "parameters": run.parameters,
        "stepless_s": silent_ns / NS_PER_S if silent_ns is not None else None,
        "halts_in_s": halts_in_s(managed, at) if silent_ns is not None else None,
    }


def run_status(managed: ManagedRun, at: MonoNs) -> dict[str, Any]:
    run = managed.run
    rate = None if managed.is_strangers else run.spend_rate_usd_micros_per_hour
    ceiling = managed.policy.budget.ceiling_usd_micros
    incident = managed.incident
    findings = managed.rules.findings
    return {
        "run": run.run,
        "uid": run.uid,
        "attempt": run.attempt,
        **launch_named(run),
        "stage": run.stage,
        "policy": managed.policy.name,
        "mode": managed.policy.mode.value,
        "state": state_of(managed, at),
        "step": run.step,
        "total_steps": run.total_steps,
        "loss": run.loss,
        "tokens_total": managed.trained_tokens,
        "tokens_at": run.tokens_total,  # Where its last step is: less, while it trains again what it had.
        "tokens_nonpad": run.nonpad_tokens,
        "pad_frac": run.pad_frac,
        **_speed(managed, run, at),
        "loss_unseen_steps": managed.lossless_steps,
        "unwatched_beside": run.beside,
        "step_s": run.step_times.median(),
        "spend_usd": run.spend_usd_micros / MICROS_PER_USD,
        "spend_rate_usd_per_hour": _usd(rate),
        "paid_by": managed.money.paid_by,
        "is_strangers": managed.is_strangers,
        "ceiling_usd": _usd(ceiling),
        "command_ceiling": _command_ceiling(managed),
        "tokens_wasted": managed.history.meter.wasted_tokens if managed.history.meter is not None else None,
        **wasted_usd(managed.history.split.wasted_usd_micros()),
        "time": told_time(managed.history.time, at, managed.history.untold),
        **_outlook(managed, at),
        "saves": _saves(managed),
        "world_size": run.world_size,
        "ranks_connected": len(run.connected_ranks()),
        "last_frame_age_s": (at - run.last_frame_at) / NS_PER_S if run.last_frame_at is not None else None,
        "over_nodes": over_nodes(managed, at),
        "last_good": run.last_good.row() if run.last_good is not None else None,
        "machine": machine_status(run, at),
        "hold": _hold(managed, at),
        "halt": _halt(incident) if incident is not None else None,
        # What a rank has raised while others of the attempt still live, and how the last attempt ended.
        "raised": cause_of(run.failures) if run.alive else None,
        "end": _end(run.end) if run.end is not None and not run.alive else None,
        "findings": [
            {
                "rule": rule.name,
                "trigger": rule.trigger,
                "reading": finding.reading.value,
                "reason": finding.reason,
                "text": finding.text,
            }
            for rule in managed.policy.rules
            if (finding := findings.get(rule.name)) is not None
        ],
    }


def _outlook(managed: ManagedRun, at: MonoNs) -> dict[str, Any]:
    """Intervals are [low, middle, high]; low and high are null while there are too few windows for them."""
    ahead = outlook(managed, at)
    left, cost, hit = ahead.left, ahead.cost_left, ahead.ceiling
    return {
        "tokens_goal": ahead.tokens_goal,
        "hours_left": [left.hours_left.low, left.hours_left.mid, left.hours_left.high] if left is not None else None,
        "cost_left_usd": [cost.low, cost.mid, cost.high] if cost is not None else None,
        "binding": _binding(ahead.binding.cap) if ahead.binding is not None else None,
        "runway_s": runway_s(ahead.binding),
        "ceiling_in_s": hit.met.after_ns / NS_PER_S if hit is not None else None,
        "ceiling_at_tokens": hit.tokens_total if hit is not None else None,
        # [low, high] of the two above; the tokens' is null while there are too few windows.
        "ceiling_between_s": [hit.met.low_ns / NS_PER_S, hit.met.high_ns / NS_PER_S] if hit is not None else None,
        "ceiling_between_tokens": list(hit.tokens_between) if hit is not None and hit.tokens_between else None,
        "ceiling_before_end": hit.before_end if hit is not None else None,
        **{name: _usd(price) for name, price in ahead.prices.named("usd_per_mtok").items()},
        # Of the run's time, what nothing is charged for as no price was known. All-in and useful are null then,
        # and what was wasted is at least `wasted_usd`.
        "unpriced_s": managed.history.unpriced_ns / NS_PER_S,
        "expected_usd_per_mtok": _usd(ahead.plan.usd_micros_per_mtok),
        "expected_usd_per_mtok_all_in": _usd(ahead.plan.usd_micros_per_mtok_all_in),
        "expected_tokens_per_s": ahead.plan.tokens_per_s,
        "window": _window(ahead),
        # Steady price from the expected one, of the recent windows; all-in from the expected all-in price.
        "drift_frac": ahead.run_pace.drift_frac,
        "drift_all_in_frac": ahead.drift_all_in_frac,
        # The useful price of now over what the ceiling has for a million tokens.
        "burn_rate": ahead.run_pace.burn_rate,
    }


def _window(ahead: Outlook) -> dict[str, Any] | None:
    """The last closed window; None before the first, and after a restart of the governor."""
    window, pace = ahead.last, ahead.last_pace
    if window is None or pace is None:
        return None
    return {
        "from_tokens": window.to_tokens - window.tokens,  # Of the tokens that it has bought.
        "to_tokens": window.to_tokens,
        "duration_s": window.duration_ns / NS_PER_S,
        "usd": _usd(window.usd_micros) if not window.is_unpriced else None,
        "usd_per_mtok": _usd(ahead.last_prices.last),
        "usd_per_mtok_steady": _usd(ahead.last_prices.steady),
        "tokens_per_s": window.tokens_per_s if window.duration_ns else None,
        "tokens_wasted": window.wasted_tokens,
        "drift_frac": pace.drift_frac,
        "burn_rate": pace.burn_rate,
    }


def _saves(managed: ManagedRun) -> dict[str, Any] | None:
    """None until two saves were seen. `mtbf_s` is assumed; the last two figures use it (core.base.save_interval)."""
    run = managed.run
    start_up_ns = run.first_step_at - run.attempt_at if run.first_step_at is not None else 0
    told = advice(
        run.saves,
        gpus=run.world_size,
        restart_s=max(0, start_up_ns) / NS_PER_S,
        rate_usd_micros_per_hour=run.spend_rate_usd_micros_per_hour,
    )
    if told is None:
        return None
    return {
        "interval_s": told.interval_s,
        "save_s": told.save_s,
        "mtbf_s": mtbf_s(run.world_size),
        "best_interval_s": told.best_interval_s,
        "saved_usd_per_hour": _usd(told.saved_usd_micros_per_hour),
    }


def _usd(micros: int | None) -> float | None:
    return micros / MICROS_PER_USD if micros is not None else None


def _binding(cap: Cap) -> dict[str, Any]:
    """The ceiling that is hit first: the run's own, or that of a group of the run, with all that group's spend."""
    return {
        "scope": cap.scope,
        "ceiling_usd": _usd(cap.ceiling_usd_micros),
        "spend_usd": _usd(cap.spend_usd_micros),
        "reserve_usd": _usd(cap.reserve_usd_micros),
    }


def _command_ceiling(managed: ManagedRun) -> dict[str, Any] | None:
    """The ceiling of the launched command that counts more than what this run has cost: other users' runs below it."""
    run = managed.run
    cap = next((cap for cap in run.caps if cap.scope.startswith("run:")), None)
    if is_over_nodes(managed):
        return None  # What the others have charged: see `over_nodes`.
    if cap is None or cap.spend_usd_micros == run.spend_usd_micros:
        return None
    ceiling, spend = _usd(cap.ceiling_usd_micros), _usd(cap.spend_usd_micros)
    return {"scope": cap.scope, "ceiling_usd": ceiling, "spend_usd": spend}


def runway_s(bound: Binding | None) -> float | None:
    """Until its halt, which comes before the ceiling by what is reserved for it then: as a budget's `reached_in_s`."""
    return None if bound is None or bound.met is None else bound.met.after_ns / NS_PER_S


def _hold(managed: ManagedRun, at: MonoNs) -> Mapping[str, Any] | None:
    held = managed.history.held(at)
    return {"left_s": (held[0] - at) / NS_PER_S, "reason": held[1]} if held is not None else None


def _end(end: RunEnd) -> Mapping[str, Any]:
    return {"exit_code": end.exit_code, "cause": end.cause, "text": ended_text(end)}


def _halt(incident: Any) -> Mapping[str, Any]:
    return {
        "stage": incident.stage_name,
        "incident_id": incident.incident_id,
        "reason": incident.reason,
    }


def state_of(managed: ManagedRun, at: MonoNs) -> str:
    run = managed.run
    if managed.incident is not None and not managed.incident.given_up:
        return "halted" if managed.incident.is_closed else "halting"
    if not run.alive:
        return "finished"
    if run.is_unwatched(at):
        return "unwatched"
    lead = next(iter(sorted(run.connected_ranks(), key=lambda rank: rank.rank)), None)
    if lead is None:
        if run.jsonl_only and run.stream.has_record:
            return _STATE_OF_PHASE.get(run.stream.phase, "training")
        return "ending" if run.attempt_step else "starting"
    return _STATE_OF_PHASE.get(lead.phase, "training")
