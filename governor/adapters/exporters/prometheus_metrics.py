"""Every metric of costgov, once: name, type, labels, meaning and the source of its value.

The exposition and docs/reference/metrics.md are both made from `METRICS`. An absent value has no sample.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Final

from governor.adapters.exporters.bounded import OTHER_RUNS, RUNS_SHOWN_MAX
from governor.adapters.exporters.metric import Metric, Sample, clean, number
from governor.adapters.exporters.prometheus_machine import MACHINE_METRICS, NODE_LABELS, node_labels
from governor.core.base.units import MICROS_PER_USD, NS_PER_S
from governor.core.halt.state import HaltState
from governor.core.money import steady
from governor.core.views.metrics import AlertCounts, BudgetReading, MetricsSnapshot, RunReading

RUN_LABELS: Final = ("run", "stage", "node", "cloud_instance", "scheduler_job")


def _of_runs(pick: Callable[[RunReading], float | None]) -> Callable[[MetricsSnapshot], Iterable[Sample]]:
    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        for run in snapshot.runs:
            value = pick(run)
            if value is not None:
                yield _run_labels(snapshot, run), number(value)

    return samples


def _stop_stages(snapshot: MetricsSnapshot) -> Iterable[Sample]:
    """The states of the stop of an unused node, in the form of a run's halt."""
    for stage in HaltState if snapshot.stop_stage is not None else ():
        yield (*node_labels(snapshot), stage.value), float(stage.value == snapshot.stop_stage)


def _of_node(pick: Callable[[MetricsSnapshot], float | None]) -> Callable[[MetricsSnapshot], Iterable[Sample]]:
    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        value = pick(snapshot)
        if value is not None:
            yield node_labels(snapshot), number(value)

    return samples


def _run_labels(snapshot: MetricsSnapshot, run: RunReading) -> tuple[str, ...]:
    return tuple(map(clean, (run.run, run.stage, snapshot.node, snapshot.cloud_instance, run.scheduler_job)))


def _run_info(snapshot: MetricsSnapshot) -> Iterable[Sample]:
    for run in snapshot.runs:
        if run.run != OTHER_RUNS:
            yield (*_run_labels(snapshot, run), clean(run.attempt), run.mode), 1.0


def _halt_stages(snapshot: MetricsSnapshot) -> Iterable[Sample]:
    for run in snapshot.runs:
        name, _, *rest = _run_labels(snapshot, run)
        for stage in HaltState if run.halt_stage is not None else ():
            yield (name, *rest, stage.value), float(stage.value == run.halt_stage)


def _wasted(snapshot: MetricsSnapshot) -> Iterable[Sample]:
    for run in snapshot.runs:
        for cause, micros in (run.wasted_usd_micros or {}).items():
            yield (*_run_labels(snapshot, run), cause), micros / MICROS_PER_USD


def _time(index: int, scale: int) -> Callable[[MetricsSnapshot], Iterable[Sample]]:
    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        for run in snapshot.runs:
            yield from (((*_run_labels(snapshot, run), cause), told[index] / scale) for cause, told in run.time.items())

    return samples


def _lines(snapshot: MetricsSnapshot) -> Iterable[Sample]:
    for kind, name, micros in snapshot.lines:
        yield (*node_labels(snapshot), kind, clean(name)), micros / MICROS_PER_USD


def _usd(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS_PER_USD


def _in_s(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


def _of_budgets(pick: Callable[[BudgetReading], int]) -> Callable[[MetricsSnapshot], Iterable[Sample]]:
    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        for budget in snapshot.budgets:
            yield (clean_scope(budget.scope), *node_labels(snapshot)), pick(budget) / MICROS_PER_USD

    return samples


def clean_scope(scope: str) -> str:
    """A scope is bounded already (core.group_spend), so no two scopes are cut to the same text."""
    return scope.encode("utf-8", "replace").decode()


def _budget(name: str, meaning: str, pick: Callable[[BudgetReading], int]) -> Metric:
    return Metric(name, "gauge", ("scope", *NODE_LABELS), meaning, _of_budgets(pick))


def _run(name: str, kind: str, meaning: str, pick: Callable[[RunReading], float | None]) -> Metric:
    return Metric(name, kind, RUN_LABELS, meaning, _of_runs(pick))


def _governor(name: str, kind: str, meaning: str, pick: Callable[[MetricsSnapshot], float | None]) -> Metric:
    return Metric(name, kind, NODE_LABELS, meaning, _of_node(pick))


def _receiver(name: str, meaning: str, pick: Callable[[AlertCounts], int]) -> Metric:
    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        for counts in snapshot.health.alerts:
            yield (clean(counts.receiver), *node_labels(snapshot)), number(pick(counts))

    return Metric(name, "counter", ("receiver", *NODE_LABELS), meaning, samples)


def build_info(version: str) -> Metric:
    told = (version, platform.python_version())
    return Metric("costgov_build_info", "gauge", ("version", "python", *NODE_LABELS), "Always 1; what is running here.",
                  lambda snapshot: [((*told, *node_labels(snapshot)), 1.0)])  # fmt: skip


def node_info(version: str, fleet: str) -> Metric:
    """`fleet`: the name of [fleet], or empty where the governor is of none."""

    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        more = (fleet, snapshot.cloud, snapshot.region, version)
        yield (*node_labels(snapshot), *map(clean, more)), 1.0

    labels = (*NODE_LABELS, "fleet", "cloud", "region", "version")
    meaning = "Always 1; to join with series of the node: `* on (node, cloud_instance) group_left (fleet, region)`."
    return Metric("costgov_node_info", "gauge", labels, meaning, samples)


def info_metrics(version: str, fleet: str) -> tuple[Metric, ...]:
    return build_info(version), node_info(version, fleet)


METRICS: Final = (
    Metric(
        "costgov_run_info",
        "gauge",
        (*RUN_LABELS, "attempt", "mode"),
        "Always 1; the attempt under way and whether its policy observes or enforces.",
        _run_info,
    ),
    _run("costgov_run_alive", "gauge", "1 until the trainer has exited or reported its end.", lambda run: run.alive),
    _run("costgov_run_watched", "gauge", "1 while the run reports, 0 when it no longer does; absent once it has ended.",
         lambda run: run.watched),
    _run("costgov_run_last_frame_timestamp_seconds", "gauge", "Wall time of the last frame of any rank.",
         lambda run: _in_s(run.last_frame_wall)),
    _run("costgov_run_ranks_connected", "gauge", "Ranks of this node that are connected now.",
         lambda run: run.ranks_connected),
    _run("costgov_run_world_size", "gauge", "Ranks of the whole job.", lambda run: run.world_size),
    _run("costgov_run_step", "gauge", "Optimizer step, absolute.", lambda run: run.step),
    _run("costgov_run_step_duration_seconds", "gauge", "Median duration of recent steps.", lambda run: run.step_s),
    _run("costgov_run_skipped_steps", "gauge", "Optimizer steps that the framework skipped in this attempt.",
         lambda run: run.skipped_steps),
    _run("costgov_run_loss", "gauge", "Last loss; NaN is a loss that is not a number.", lambda run: run.loss),
    _run("costgov_run_loss_unseen", "gauge",
         "1 while rules cannot judge the run because it shows no loss, else 0; absent once it has ended.",
         lambda run: run.loss_unseen),
    _run("costgov_run_trains_beside", "gauge",
         "1 while a process of the run trains something else that is not watched, else 0; absent once it has ended.",
         lambda run: run.trains_beside),
    _run("costgov_run_gradient_norm", "gauge", "Last gradient norm, as the framework reports it.",
         lambda run: run.grad_norm),
    _run("costgov_run_tokens_total", "counter",
         "Tokens trained, each once: once per global batch, without what is trained again and without what its totals "
         "have of other trainings. It goes back, not to 0, when a killed governor starts again; increase() takes that "
         "for a reset: use `clamp_min(delta(costgov_run_tokens_total[1h]), 0)`.",
         lambda run: run.tokens_total),
    _run("costgov_run_nonpad_tokens_total", "counter",
         "Tokens that are no padding, of the steps whose attention masks tell it; absent where none does. "
         "What is trained again counts again.",
         lambda run: run.tokens_nonpad),
    _run("costgov_run_tokens_per_second", "gauge",
         "Tokens per second over the recent window; absent while no step comes.",
         lambda run: run.tokens_per_s),
    _run("costgov_run_gpu_tokens_per_second", "gauge",
         "The same over the number of ranks; absent where no rank has told of a GPU.",
         lambda run: run.speed.tokens_per_s_per_gpu),
    _run("costgov_run_model_flops_per_second", "gauge",
         "6 floating-point operations for each parameter and token (PaLM, appendix B), of all GPUs; without attention, "
         "and what is computed again. Absent where no rank tells the parameters.",
         lambda run: run.speed.model_flops_per_s),
    _run("costgov_run_mfu_ratio", "gauge",
         "Model FLOP/s over the GPUs' dense bf16 peak, 0 to 1; absent where the model, or the peak of GPUs of that "
         "name, is unknown: `costgov status --json` says why (`mfu_absent`).",
         lambda run: run.speed.mfu),
    _run("costgov_run_spend_usd_total", "counter", "What this node has charged to the run, over all attempts.",
         lambda run: _usd(run.spend_usd_micros)),
    _run("costgov_run_spend_rate_usd_per_hour", "gauge",
         "What the run costs now on this node; absent while the price is unknown.",
         lambda run: _usd(run.spend_rate_usd_micros_per_hour)),
    _run("costgov_run_nodes_spend_usd", "gauge",
         "What all nodes of the run have charged to it, those that have left it too, as this node has heard of them: "
         "each node tells the same, so take the max. Absent where no other node has spoken, or one has no price.",
         lambda run: _usd(run.over_nodes.spend_usd_micros) if run.over_nodes is not None else None),
    _run("costgov_run_nodes", "gauge",
         "Nodes of the present launch that have spoken, this one too. Absent where no other has.",
         lambda run: run.over_nodes.nodes if run.over_nodes is not None else None),
    _run("costgov_run_usd_per_mtok", "gauge",
         "Dollars for a million tokens. Of the window that was closed last; before the first, of what has come of it.",
         lambda run: _usd(run.prices.last)),
    _run("costgov_run_usd_per_mtok_all_in", "gauge",
         "All that the run has spent over all tokens that it trained.", lambda run: _usd(run.prices.all_in)),
    _run("costgov_run_usd_per_mtok_useful", "gauge",
         "All that the run has spent over its tokens of progress: those trained twice count once.",
         lambda run: _usd(run.prices.useful)),
    _run("costgov_run_ceiling_usd", "gauge", "What the run itself may never spend more than; absent without a ceiling.",
         lambda run: _usd(run.ceiling_usd_micros)),
    _run("costgov_run_wasted_tokens_total", "counter", "Tokens trained again after the run was set back.",
         lambda run: run.tokens_wasted),
    Metric(
        "costgov_run_wasted_usd_total",
        "counter",
        (*RUN_LABELS, "spent_on"),
        "Spend that bought no training that lasts, by when it was spent (start_up, after_last_step, halt, "
        "trained_twice): the coarse answer that a ceiling needs, not by the causes of costgov_run_time_usd_total; "
        "what is spent after the latest step counts once no other comes. Absent where nobody reports for the run.",
        _wasted,
    ),
    Metric("costgov_run_time_seconds_total", "counter", (*RUN_LABELS, "cause"), "Time by its cause.",
           _time(0, NS_PER_S)),
    Metric("costgov_run_time_usd_total", "counter", (*RUN_LABELS, "cause"), "Spend by the cause of its time.",
           _time(1, MICROS_PER_USD)),
    _run("costgov_run_unpriced_seconds", "gauge",
         "Of its time, what nothing is charged for as no price was known; its spend and its waste are at least what is "
         "told then, and its all-in price is absent.",
         lambda run: run.prices.unpriced_ns / NS_PER_S),
    _run("costgov_run_time_left_seconds", "gauge", "To the last token, as of the last step; absent without a goal.",
         lambda run: run.left.hours_left.mid * 3600 if run.left is not None else None),
    _run("costgov_run_cost_left_usd", "gauge", "To the last token, at the present rate; absent without a price.",
         lambda run: run.cost_left.mid if run.cost_left is not None else None),
    _run("costgov_run_ceiling_reached_in_seconds", "gauge",
         "Until spend and reserve meet the first of its ceilings at the present rate; absent without a ceiling.",
         lambda run: run.ceiling.met.after_ns / NS_PER_S if run.ceiling is not None else None),
    _run("costgov_run_expected_usd_per_mtok", "gauge", "From the policy's [expected]: while it trains.",
         lambda run: _usd(run.plan.usd_micros_per_mtok)),
    _run("costgov_run_expected_usd_per_mtok_all_in", "gauge", "From the policy's [expected]: with starts and pauses.",
         lambda run: _usd(run.plan.usd_micros_per_mtok_all_in)),
    _run("costgov_run_expected_tokens_per_second", "gauge", "From the policy's [expected], of the whole run.",
         lambda run: run.plan.tokens_per_s),
    _run("costgov_run_window_drift_ratio", "gauge",
         "The last window's price, without the start of an attempt, over the expected one, less 1; "
         "0.1 is 10 % dearer.",
         lambda run: run.last_pace.drift_frac if run.last_pace is not None else None),
    _run("costgov_run_window_burn_rate", "gauge",
         "Its price over what the ceiling has for a million tokens; at 1 the run lands exactly on its ceiling.",
         lambda run: run.last_pace.burn_rate if run.last_pace is not None else None),
    _run("costgov_run_usd_per_mtok_steady", "gauge", steady.MEANING,
         lambda run: _usd(run.prices.steady)),
    _run("costgov_run_drift_ratio", "gauge", "As the window's, of the steady price.",
         lambda run: run.run_pace.drift_frac if run.run_pace is not None else None),
    _run("costgov_run_drift_all_in_ratio", "gauge", "The all-in price over the expected all-in one, less 1.",
         lambda run: run.drift_all_in_frac),
    _run("costgov_run_burn_rate", "gauge",
         "The useful price of now over what the ceiling has for a million tokens. It rises while the run hangs.",
         lambda run: run.run_pace.burn_rate if run.run_pace is not None else None),
    _run("costgov_run_incidents_total", "counter", "Halts opened, over all attempts.",
         lambda run: run.incidents_total),
    Metric(
        "costgov_halt_stage",
        "gauge",
        ("run", "node", "cloud_instance", "scheduler_job", "stage"),
        "1 for the stage in which the halt of this attempt is, 0 for the others; absent without a halt.",
        _halt_stages,
    ),
    _governor("costgov_runs_summed", "gauge", f'1 if runs had to be summed up under run="{OTHER_RUNS}".',
              lambda snapshot: any(run.run == OTHER_RUNS for run in snapshot.runs)),
    _budget("costgov_budget_ceiling_usd", "Of each budget in force, set live or in costgov.toml.",
            lambda budget: budget.ceiling_usd_micros),
    _budget("costgov_budget_spend_usd", "What its scope has spent on this node; of `day` since 00:00 UTC.",
            lambda budget: budget.spend_usd_micros),
    _budget("costgov_budget_reserve_usd", "What halting everybody in its scope may cost now; kept below the ceiling.",
            lambda budget: budget.reserve_usd_micros),
    Metric("costgov_node_price_usd_per_hour", "gauge", NODE_LABELS, "Of the whole node; absent while unknown.",
           _of_node(lambda snapshot: _usd(snapshot.price_usd_micros_per_hour))),
    Metric("costgov_line_usd_per_hour", "gauge", (*NODE_LABELS, "kind", "line"),
           "What is billed by time beside the node, as [[line]] says.", _lines),
    Metric("costgov_node_can_stop", "gauge", NODE_LABELS, "1 if the provider would let a halt end this node's billing.",
           _of_node(lambda snapshot: snapshot.can_stop)),
    Metric("costgov_node_idle_seconds", "gauge", NODE_LABELS,
           "Since when no use of the node is seen; 0 while it is used, absent while this is unknown.",
           _of_node(lambda snapshot: snapshot.idle_s)),
    Metric("costgov_node_idle_stop_seconds", "gauge", NODE_LABELS,
           "Until the node is stopped if nobody comes; absent while nothing would stop it.",
           _of_node(lambda snapshot: snapshot.stops_in_s)),
    Metric("costgov_node_stop_stage", "gauge", (*NODE_LABELS, "stage"),
           "1 for the stage in which the node's own stop is, 0 for the others; absent without one.", _stop_stages),
    Metric("costgov_unallocated_usd_total", "counter", NODE_LABELS,
           "What the node has cost while no run held it and no launched command waited for its first rank. "
           "It falls when one of these takes over the time before it; increase() "
           "takes that for a reset: use `delta(costgov_unallocated_usd_total[1h])`.",
           _of_node(lambda snapshot: _usd(snapshot.unallocated_usd_micros))),
    Metric("costgov_unattached_gpu_processes", "gauge", NODE_LABELS,
           "GPU processes that no run announced: unwatched spending. Absent without NVML.",
           _of_node(lambda snapshot: snapshot.health.unattached_gpu_processes)),
    _governor("costgov_frames_received_total", "counter", "Frames accepted from trainers.",
              lambda snapshot: snapshot.frames_received_total),
    _governor("costgov_frames_dropped_total", "counter", "Frames lost on the way or unusable, counted by either side.",
              lambda snapshot: snapshot.frames_dropped_total),
    _governor("costgov_frames_malformed_total", "counter", "Packets that are no valid frame.",
              lambda snapshot: snapshot.health.frames_malformed_total),
    _governor("costgov_journal_errors_total", "counter", "Journal writes that were not durable in time.",
              lambda snapshot: snapshot.health.journal_errors_total),
    _governor("costgov_observer_errors_total", "counter", "Calls of console, reports or metrics that failed.",
              lambda snapshot: snapshot.health.observer_errors_total),
    _governor("costgov_request_errors_total", "counter", "Control requests that a fault of the governor ended.",
              lambda snapshot: snapshot.health.request_errors_total),
    _governor("costgov_recording_lost_total", "counter",
              "Lines of what runs send that were not kept for replay; absent where nothing is recorded.",
              lambda snapshot: snapshot.health.recording_lost_total),
    _receiver("costgov_alerts_sent_total", "Alerts that the receiver took.", lambda counts: counts.sent_total),
    _receiver("costgov_alerts_failed_total", "Attempts that the receiver did not take.",
              lambda counts: counts.failed_total),
    _receiver("costgov_alerts_dropped_total", "Alerts that were given up: refused, too many, too old, or at our end.",
              lambda counts: counts.dropped_total),
    Metric("costgov_loop_lag_seconds", "histogram", NODE_LABELS, "How late the 250 ms tick came.", lambda _: ()),
    _governor("costgov_config_last_reload_successful", "gauge", "1 if the last (re)load of the policies succeeded.",
              lambda snapshot: snapshot.health.config_last_reload_ok),
    _governor("costgov_config_last_reload_success_timestamp_seconds", "gauge", "Wall time of the last success.",
              lambda snapshot: _in_s(snapshot.health.config_last_reload_wall)),
    *MACHINE_METRICS,
)  # fmt: skip


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    rows = []
    for metric in (*METRICS, *info_metrics("", "")):
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.meaning} |")
    return "\n".join(
        (
            "# Metrics",
            "",
            "Served at `http://127.0.0.1:9477/metrics` (`[metrics]` in costgov.toml). Generated from the code: edit",
            "`governor/adapters/exporters/prometheus_metrics.py` or `prometheus_machine.py`, then run `make docs`.",
            "",
            f'At most {RUNS_SHOWN_MAX} runs have series of their own; the rest is summed under `run="{OTHER_RUNS}"`.',
            "Unknown is absent, never 0. The usual `process_*` metrics of the governor itself stand beside these.",
            "Values of the label `cause` are the [causes](causes.md); `spent_on` is",
            "the [coarse answer](causes.md#waste-is-the-coarse-answer). Series by `cause` grow as windows of steps are",
            "divided, so they lag behind the run's spend by 10 s, and where ranks seldom meet by up to 5 minutes.",
            "",
            "| Metric | Type | Labels | Meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )
