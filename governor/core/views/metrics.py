"""The metrics of the endpoint as one immutable snapshot: taken by the loop, read by the thread that serves scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.model_speed import ModelSpeed
from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros, WallNs
from governor.core.engine.command import ceilings
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.run_forecast import Pace, outlook
from governor.core.events.hardware import UNTOLD, GpuFigures
from governor.core.events.machine import NodeUse
from governor.core.money.budgets import Cap
from governor.core.money.ceiling_forecast import CeilingHit
from governor.core.money.expected import ExpectedCost
from governor.core.money.forecast import Forecast, Interval
from governor.core.money.token_price import TokenPrices
from governor.core.runs.stepless import stepless_ns
from governor.core.views.machines import OverNodes, spent_over_nodes
from governor.core.views.status import node_status, speed_of

# A lag up to a quarter second (one tick) is within the promise; beyond it halts start late.
LAG_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class LagReading:
    """How late ticks came: `counts` per bucket of LAG_BOUNDS_S, plus one above the last; not cumulative."""

    counts: tuple[int, ...] = (0,) * (len(LAG_BOUNDS_S) + 1)
    sum_s: float = 0.0


@dataclass(slots=True)
class LagMeter:
    """Ticks are due at multiples of `tick_ns`. Call observe() with the time of each."""

    tick_ns: int
    _last: MonoNs | None = None
    _counts: list[int] = field(default_factory=lambda: [0] * (len(LAG_BOUNDS_S) + 1))
    _sum_ns: int = 0

    def observe(self, at: MonoNs) -> None:
        if self._last is not None:
            lag_ns = max(0, at - (self._last // self.tick_ns + 1) * self.tick_ns)
            self._counts[bisect_left(LAG_BOUNDS_S, lag_ns / NS_PER_S)] += 1
            self._sum_ns += lag_ns
        self._last = at

    def reading(self) -> LagReading:
        return LagReading(tuple(self._counts), self._sum_ns / NS_PER_S)


@dataclass(frozen=True, slots=True)
class AlertCounts:
    """One receiver of alerts: alerts that it took, attempts that failed, alerts that were dropped."""

    receiver: str
    sent_total: int = 0
    failed_total: int = 0
    dropped_total: int = 0


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """One GPU as the driver shows it. `index`: NVML's, as nvidia-smi numbers it."""

    index: int
    uuid: str
    busy_frac: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    processes: int | None = None
    figures: GpuFigures = UNTOLD


@dataclass(frozen=True, slots=True)
class MachineMetrics:
    """What the samplers know of the machine now."""

    gpus: tuple[GpuMetrics, ...] = ()
    node: NodeUse | None = None


@dataclass(frozen=True, slots=True)
class GovernorHealth:
    """The part of the governor's health that the engine does not know; the wiring collects it."""

    journal_errors_total: int = 0
    observer_errors_total: int = 0
    frames_malformed_total: int = 0
    request_errors_total: int = 0
    config_last_reload_ok: bool = True
    config_last_reload_wall: WallNs | None = None
    unattached_gpu_processes: int | None = None  # None: unknown, without NVML.
    alerts: tuple[AlertCounts, ...] = ()
    recording_lost_total: int | None = None  # Lines; None: recording is off.
    machine: MachineMetrics = MachineMetrics()


@dataclass(frozen=True, slots=True)
class RunReading:
    """One run. None is unknown and is not exported. A loss that is not a number is NaN."""

    run: str
    stage: str = ""
    scheduler_job: str = ""
    attempt: str = ""
    mode: str = ""
    alive: bool = True
    watched: bool | None = True  # None: the run has ended.
    step: int | None = None
    skipped_steps: int | None = None
    tokens_total: int | None = None
    tokens_nonpad: int | None = None
    tokens_per_s: float | None = None
    speed: ModelSpeed = ModelSpeed()
    step_s: float | None = None
    loss: float | None = None
    loss_unseen: bool | None = None  # None: the run has ended.
    trains_beside: bool | None = None  # Likewise.
    grad_norm: float | None = None
    spend_usd_micros: UsdMicros = UsdMicros(0)
    prices: TokenPrices = TokenPrices()
    spend_rate_usd_micros_per_hour: int | None = None
    over_nodes: OverNodes | None = None  # None: no other node has spoken for it.
    ceiling_usd_micros: int | None = None
    tokens_wasted: int | None = None
    wasted_usd_micros: Mapping[str, int] | None = None  # By cause.
    time: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # By cause: ns, micro-dollars. Closed windows.
    left: Forecast | None = None
    cost_left: Interval | None = None
    ceiling: CeilingHit | None = None
    plan: ExpectedCost = ExpectedCost()
    last_pace: Pace | None = None
    run_pace: Pace | None = None
    drift_all_in_frac: float | None = None
    last_frame_wall: WallNs | None = None
    ranks_connected: int = 0
    world_size: int = 1
    incidents_total: int = 0
    halt_stage: str | None = None


@dataclass(frozen=True, slots=True)
class BudgetReading:
    """One budget in force."""

    scope: str
    ceiling_usd_micros: int
    spend_usd_micros: int
    reserve_usd_micros: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    node: str
    cloud_instance: str = ""
    cloud: str = ""
    region: str = ""
    can_stop: bool = False
    price_usd_micros_per_hour: int | None = None
    idle_s: float | None = None  # None: unknown.
    stops_in_s: float | None = None  # None: nothing would stop the node now.
    stop_stage: str | None = None  # Of the node's own stop, while it is open.
    unallocated_usd_micros: int | None = None  # None: the price is unknown.
    lines: tuple[tuple[str, str, int], ...] = ()  # Without the machine: kind, name, micro-dollars per hour.
    runs: tuple[RunReading, ...] = ()
    budgets: tuple[BudgetReading, ...] = ()
    frames_received_total: int = 0
    frames_dropped_total: int = 0
    lag: LagReading = LagReading()
    health: GovernorHealth = GovernorHealth()


def take_snapshot(
    node: Node, at: MonoNs, health: GovernorHealth, lag: LagReading, scheduler_job: str
) -> MetricsSnapshot:
    """Read the engine's state. `scheduler_job` is the node's; a run's own label of that name comes first."""
    unused = node_status(node, at)
    return MetricsSnapshot(
        node=node.facts.node,
        cloud_instance=node.facts.instance_id or "",
        cloud=node.facts.cloud,
        region=node.facts.region or "",
        can_stop=node.facts.can_stop,
        price_usd_micros_per_hour=node.ledger.price_usd_micros_per_hour,
        idle_s=unused["idle_s"],
        stops_in_s=unused["stops_in_s"],
        stop_stage=unused["stop"]["stage"].lower() if unused["stop"] else None,
        unallocated_usd_micros=(
            ceilings.unallocated(node) if node.ledger.price_usd_micros_per_hour is not None else None
        ),
        lines=tuple((m.line.kind.value, m.line.name, m.usd_micros_per_hour) for m in node.ledger.other_lines),
        # Live runs first: if there is no room for all, the runs that spend are shown.
        runs=tuple(
            _run_reading(managed, at, scheduler_job)
            for managed in sorted(node.runs.values(), key=lambda managed: not managed.run.alive)
        ),
        budgets=tuple(_budget_reading(cap) for cap in node.budgets.caps),
        frames_received_total=node.frames_total,
        frames_dropped_total=node.frames_lost_total,
        lag=lag,
        health=health,
    )


def _budget_reading(cap: Cap) -> BudgetReading:
    return BudgetReading(cap.scope, cap.ceiling_usd_micros, cap.spend_usd_micros, cap.reserve_usd_micros)


def _run_reading(managed: ManagedRun, at: MonoNs, scheduler_job: str) -> RunReading:
    run, ahead = managed.run, outlook(managed, at)
    return RunReading(
        run=run.run,
        stage=run.stage or "",
        scheduler_job=run.labels.get("scheduler_job", scheduler_job),
        attempt=run.attempt,
        mode=managed.policy.mode.value,
        alive=run.alive,
        watched=not run.is_unwatched(at) if run.alive else None,
        step=run.step,
        skipped_steps=run.skipped_steps,
        tokens_total=managed.trained_tokens,
        tokens_nonpad=run.nonpad_tokens,
        tokens_per_s=run.tokens_per_s if stepless_ns(run, at) is None else None,
        speed=speed_of(run, at),
        step_s=run.step_times.median(),
        loss=run.loss,
        loss_unseen=managed.shows_no_loss if run.alive else None,
        trains_beside=run.beside is not None if run.alive else None,
        grad_norm=run.grad_norm,
        spend_usd_micros=run.spend_usd_micros,
        prices=ahead.prices,
        spend_rate_usd_micros_per_hour=run.spend_rate_usd_micros_per_hour,
        over_nodes=spent_over_nodes(managed, at),
        ceiling_usd_micros=managed.policy.budget.ceiling_usd_micros,
        tokens_wasted=managed.history.meter.wasted_tokens if managed.history.meter is not None else None,
        wasted_usd_micros=managed.history.split.wasted_usd_micros(),
        time={cause.value: (one.ns, one.usd_micros) for cause, one in managed.history.time.by_cause.items()},
        left=ahead.left,
        cost_left=ahead.cost_left,
        ceiling=ahead.ceiling,
        plan=ahead.plan,
        last_pace=ahead.last_pace,
        run_pace=ahead.run_pace,
        drift_all_in_frac=ahead.drift_all_in_frac,
        last_frame_wall=WallNs(run.last_frame_wall_ns) if run.last_frame_wall_ns is not None else None,
        ranks_connected=len(run.connected_ranks()),
        world_size=run.world_size,
        incidents_total=managed.history.incidents_total,
        halt_stage=managed.incident.stage_name.lower() if managed.incident is not None else None,
    )
