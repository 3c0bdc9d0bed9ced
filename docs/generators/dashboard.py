"""deploy/grafana/costgov.json: one dashboard over the metrics, as Grafana 10 and newer import it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 39  # Grafana 10.3 and newer write it; later ones migrate it.
COLUMNS: Final = 24  # The width of Grafana's grid.
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_OF: Final = 'node=~"$node", run=~"$run"'
_RUNS: Final = f"{{{_OF}}}"
_NODES: Final = '{node=~"$node"}'
_TIME: Final = f"costgov_run_time_seconds_total{_RUNS}"
_TIME_USD: Final = f"costgov_run_time_usd_total{_RUNS}"
_TRAINED: Final = f'costgov_run_time_seconds_total{{{_OF}, cause="productive"}}'
_PLAN: Final = "a policy with [expected]"
_CEILING: Final = "a ceiling"


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: PromQL and the legend of each. `needs`: without it the panel is empty, and its description says so."""

    title: str
    meaning: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"  # timeseries | stat | bargauge
    columns: int = 8
    needs: str = ""
    is_stacked: bool = False

    @property
    def description(self) -> str:
        return f"{self.meaning} Empty without {self.needs}." if self.needs else self.meaning


def _of_run(title: str, meaning: str, unit: str, *metrics: str, **more: Any) -> Panel:
    """One line a run; with several metrics, one a run and metric."""
    queries = []
    for metric in metrics:
        name = metric.removeprefix("costgov_run_").replace("_", " ")
        queries.append((f"{metric}{_RUNS}", "{{run}}" if len(metrics) == 1 else f"{{{{run}}}} {name}"))
    return Panel(title, meaning, unit, tuple(queries), **more)


_MONEY: Final = (
    Panel("Spent", "By the ledger, all attempts of the runs that are shown.", "currencyUSD",
          ((f"sum(costgov_run_spend_usd_total{_RUNS})", ""),), "stat", 4),
    Panel("Spent an hour", "What the runs cost now.", "currencyUSD",
          ((f"sum(costgov_run_spend_rate_usd_per_hour{_RUNS})", ""),), "stat", 4),
    _of_run("$ per 1M tokens", "Of the last window.", "currencyUSD", "costgov_run_usd_per_mtok",
            kind="stat", columns=4),
    Panel("Goodput", "The part of the time range that trained something.", "percentunit",
          ((f"sum(increase({_TRAINED}[$__range])) / sum(increase({_TIME}[$__range]))", ""),), "stat", 4),
    _of_run("Runway", "Until spend and reserve meet the first ceiling, at the present rate.", "s",
            "costgov_run_ceiling_reached_in_seconds", kind="stat", columns=4, needs=_CEILING),
    _of_run("Dearer than planned", "The steady price over the expected one, less 1.", "percentunit",
            "costgov_run_drift_ratio", kind="stat", columns=4, needs=_PLAN),
    _of_run("Spend", "By the ledger.", "currencyUSD", "costgov_run_spend_usd_total"),
    _of_run("Price of 1M tokens", "Of the last window; while it trains (steady); over tokens of progress (useful); "
            "over all that was spent (all in).", "currencyUSD", "costgov_run_usd_per_mtok",
            "costgov_run_usd_per_mtok_steady", "costgov_run_usd_per_mtok_useful", "costgov_run_usd_per_mtok_all_in"),
    _of_run("Planned price of 1M tokens", "From the policy.", "currencyUSD", "costgov_run_expected_usd_per_mtok",
            "costgov_run_expected_usd_per_mtok_all_in", needs=_PLAN),
    Panel("Part of the ceiling that is spent", "At 100 % the run is halted.", "percentunit",
          ((f"costgov_run_spend_usd_total{_RUNS} / costgov_run_ceiling_usd{_RUNS}", "{{run}}"),), needs=_CEILING),
    _of_run("Cost to the last token", "At the present rate.", "currencyUSD", "costgov_run_cost_left_usd",
            needs="a goal in tokens or steps"),
    Panel("Budgets", "Spend and reserve over the ceiling, by scope.", "percentunit",
          ((f"(costgov_budget_spend_usd{_NODES} + costgov_budget_reserve_usd{_NODES})"
            f" / costgov_budget_ceiling_usd{_NODES}", "{{scope}} on {{node}}"),), needs="a [[budget]]"),
)  # fmt: skip
_PROGRESS: Final = (
    _of_run("Tokens a second", "Of the whole run. It ends while no step comes.", "short",
            "costgov_run_tokens_per_second"),
    _of_run("Planned tokens a second", "From the policy.", "short", "costgov_run_expected_tokens_per_second",
            needs=_PLAN),
    _of_run("Tokens", "Each counts once. They fall when a killed governor starts again.", "short",
            "costgov_run_tokens_total"),
    _of_run("Loss", "The last one.", "none", "costgov_run_loss", columns=6),
    _of_run("Gradient norm", "As the framework reports it.", "none", "costgov_run_gradient_norm", columns=6,
            needs="a trainer that reports it"),
    _of_run("Step time", "The median of recent steps.", "s", "costgov_run_step_duration_seconds", columns=6),
    _of_run("Time to the last token", "As of the last step.", "s", "costgov_run_time_left_seconds", columns=6,
            needs="a goal in tokens or steps"),
)  # fmt: skip
_CAUSES: Final = (
    Panel("Time by cause", "What the runs' seconds went to; one run is 100 %.", "percentunit",
          ((f"sum by (cause) (rate({_TIME}[$__rate_interval]))", "{{cause}}"),), columns=12, is_stacked=True),
    Panel("Dollars an hour by cause", "What the runs' money went to.", "currencyUSD",
          ((f"sum by (cause) (rate({_TIME_USD}[$__rate_interval])) * 3600", "{{cause}}"),), columns=12,
          is_stacked=True),
    Panel("Dollars lost in the time range", "By cause, without what trained.", "currencyUSD",
          ((f'sort_desc(sum by (cause) (increase(costgov_run_time_usd_total{{{_OF}, cause!="productive"}}[$__range])))',
            "{{cause}}"),), "bargauge", 12),
    Panel("Goodput", "The part of the time that trained something.", "percentunit",
          ((f"sum by (run) (rate({_TRAINED}[$__rate_interval])) / sum by (run) (rate({_TIME}[$__rate_interval]))",
            "{{run}}"),), columns=12),
)  # fmt: skip
_HALTS: Final = (
    Panel("Stage of the halt", "A line while a halt is in that stage.", "none",
          ((f"costgov_halt_stage{_RUNS} == 1", "{{run}} {{stage}}"),), needs="a halt"),
    _of_run("Halts", "Opened, over all attempts.", "none", "costgov_run_incidents_total"),
    _of_run("Watched", "1 while the run reports.", "bool_yes_no", "costgov_run_watched"),
    Panel("Ranks of this node that are connected", "And ranks of the whole job.", "none",
          ((f"costgov_run_ranks_connected{_RUNS}", "{{run}} connected"),
           (f"costgov_run_world_size{_RUNS}", "{{run}} of the job"))),
    _of_run("Skipped steps", "Updates that the framework skipped in this attempt.", "none",
            "costgov_run_skipped_steps", needs="a trainer that reports it"),
    _of_run("Tokens trained again", "After the run was set back.", "short", "costgov_run_wasted_tokens_total"),
)  # fmt: skip
_NODE: Final = (
    Panel("Price of the node", "An hour.", "currencyUSD", ((f"costgov_node_price_usd_per_hour{_NODES}", "{{node}}"),),
          columns=6, needs="a price"),
    Panel("Paid for and held by no run", "So far.", "currencyUSD",
          ((f"costgov_unallocated_usd_total{_NODES}", "{{node}}"),), columns=6, needs="a price"),
    Panel("Unused for", "0 while the node is used.", "s",
          ((f"costgov_node_idle_seconds{_NODES}", "{{node}}"),), columns=6),
    Panel("GPU processes of no run", "Unwatched spending.", "none",
          ((f"costgov_unattached_gpu_processes{_NODES}", "{{node}}"),), columns=6, needs="NVML"),
    Panel("Lateness of the governor (p99)", "Beyond a quarter of a second halts begin late.", "s",
          (("histogram_quantile(0.99, sum by (le, node) "
            f"(rate(costgov_loop_lag_seconds_bucket{_NODES}[$__rate_interval])))", "{{node}}"),), columns=6),
    Panel("Frames a second", "From trainers, and lost or unusable.", "none",
          ((f"rate(costgov_frames_received_total{_NODES}[$__rate_interval])", "{{node}} received"),
           (f"rate(costgov_frames_dropped_total{_NODES}[$__rate_interval])", "{{node}} dropped")), columns=6),
    Panel("Errors", "Journal writes that were late, and observers that failed.", "none",
          ((f"costgov_journal_errors_total{_NODES}", "{{node}} journal"),
           (f"costgov_observer_errors_total{_NODES}", "{{node}} observers")), columns=6),
    Panel("Alerts not taken", "Failed attempts, by receiver.", "none",
          ((f"costgov_alerts_failed_total{_NODES}", "{{receiver}} of {{node}}"),), columns=6, needs="a receiver"),
)  # fmt: skip


def _of_gpus(title: str, meaning: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """One line a GPU and query. `queries`: PromQL and what of the GPU it is."""
    told = tuple((query, f"{{{{node}}}} GPU {{{{gpu}}}} {what}".strip()) for query, what in queries)
    return Panel(title, meaning, unit, told, needs="NVML", **more)


def _of_nodes(title: str, meaning: str, unit: str, *queries: tuple[str, str], needs: str = "") -> Panel:
    return Panel(title, meaning, unit, tuple((query, f"{{{{node}}}} {what}".strip()) for query, what in queries),
                 needs=needs)  # fmt: skip


def _gpu(name: str) -> str:
    return f"costgov_gpu_{name}{_NODES}"


def _host(name: str) -> str:
    return f"costgov_node_{name}{_NODES}"


def _pace(name: str) -> str:
    return f"rate({_host(name)}[$__rate_interval])"


_GPUS: Final = (
    _of_gpus("GPU busy", "Part of the last second in which any kernel ran; not MFU. Absent with MIG.", "percentunit",
             (_gpu("busy_ratio"), "")),
    _of_gpus("GPU memory in use", "Of its size, the driver's own included.", "percentunit",
             (f"{_gpu('memory_used_bytes')} / {_gpu('memory_size_bytes')}", "")),
    _of_gpus("Processes on the GPU", "Those that compute, as the driver shows them.", "none", (_gpu("processes"), "")),
    _of_gpus("GPU power", "Drawn, and the limit in force.", "watt", (_gpu("power_watts"), ""),
             (_gpu("power_limit_watts"), "limit")),
    _of_gpus("GPU temperature", "Of the die.", "celsius", (_gpu("temperature_celsius"), "")),
    Panel("GPUs held down", "By heat, power supply or the hardware itself; a power cap is none.", "none",
          ((f"sum by (node, reason) ({_gpu('throttled')})", "{{node}} {{reason}}"),), needs="NVML"),
    _of_gpus("GPU clocks", "Of the highest clock. An idle GPU's fall.", "percentunit",
             (f"{_gpu('sm_clock_hertz')} / {_gpu('sm_clock_max_hertz')}", "SM"),
             (f"{_gpu('memory_clock_hertz')} / {_gpu('memory_clock_max_hertz')}", "memory")),
    _of_gpus("PCIe", "Seen from the GPU.", "Bps", (_gpu("pcie_receive_bytes_per_second"), "received"),
             (_gpu("pcie_transmit_bytes_per_second"), "sent")),
    _of_gpus("NVLink", "Of all links; absent without any.", "Bps",
             (_gpu("nvlink_receive_bytes_per_second"), "received"),
             (_gpu("nvlink_transmit_bytes_per_second"), "sent")),
    _of_gpus("ECC errors", "Since the driver was loaded.", "none",
             (_gpu("ecc_corrected_errors_total"), "corrected"), (_gpu("ecc_uncorrected_errors_total"), "uncorrected")),
    _of_gpus("XID errors", "Since the sampler began.", "none", (_gpu("xid_errors_total"), "")),
    Panel("Last XID", "Its number; NVIDIA's catalogue says what to do.", "none",
          ((_gpu("xid_last"), "{{node}} GPU {{gpu}}"),), columns=4, needs="an XID error"),
    Panel("GPUs lost or parted", "Fallen off the bus, or parted by MIG.", "none",
          ((f"sum by (node) ({_gpu('lost')})", "{{node}} lost"),
           (f"sum by (node) ({_gpu('mig_enabled')})", "{{node}} MIG")), columns=4, needs="NVML"),
)  # fmt: skip
_HOST: Final = (
    _of_nodes("Cores", "The part that worked, and that was idle while a task waited for storage.", "percentunit",
              (f"{_pace('cpu_busy_seconds_total')} / {_host('cpu_cores')}", "busy"),
              (f"{_pace('cpu_iowait_seconds_total')} / {_host('cpu_cores')}", "iowait")),
    _of_nodes("Memory in use", "The part that cannot be had without swapping.", "percentunit",
              (f"1 - {_host('memory_available_bytes')} / {_host('memory_size_bytes')}", "")),
    _of_nodes("Swap in use", "A trainer that swaps crawls.", "bytes", (_host("swap_used_bytes"), "")),
    _of_nodes("Disks", "All of them.", "Bps", (_pace("disk_read_bytes_total"), "read"),
              (_pace("disk_written_bytes_total"), "written")),
    _of_nodes("Network", "All cards without the loopback.", "Bps", (_pace("network_receive_bytes_total"), "received"),
              (_pace("network_transmit_bytes_total"), "sent")),
    _of_nodes("Pressure", "The part of the time in which some task waited (PSI).", "percentunit",
              (_pace("cpu_pressure_seconds_total"), "for a core"), (_pace("io_pressure_seconds_total"), "for storage"),
              (_pace("memory_pressure_seconds_total"), "for memory"), needs="a kernel with PSI"),
)  # fmt: skip
ROWS: Final = {
    "Money": _MONEY,
    "Progress": _PROGRESS,
    "Where time and money go": _CAUSES,
    "Halts": _HALTS,
    "GPUs": _GPUS,
    "The node's processors, memory, disks and network": _HOST,
    "Node and governor": _NODE,
}
PANELS: Final = tuple(panel for panels in ROWS.values() for panel in panels)


def render() -> str:
    dashboard = {
        "uid": "costgov",
        "title": "costgov",
        "description": "Spend, price of tokens, causes of lost time, halts. Drawn by `make docs`.",
        "tags": ["costgov"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for name, query in (
        ("node", "label_values(costgov_node_can_stop, node)"),
        ("run", 'label_values(costgov_run_info{node=~"$node"}, run)'),
    ):
        yield {
            "name": name, "label": name.capitalize(), "type": "query", "datasource": _SOURCE, "query": query,
            "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }  # fmt: skip


def _panels() -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in ROWS.items():
        number += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top, left, height = top + 1, 0, 0
        for panel in panels:
            if left + panel.columns > COLUMNS:
                top, left, height = top + height, 0, 0
            number, own = number + 1, 4 if panel.kind == "stat" else 8
            place = {"h": own, "w": panel.columns, "x": left, "y": top}
            left, height = left + panel.columns, max(height, own)
            yield _drawn(panel, number, place)
        top += height


def _drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    is_instant = panel.kind != "timeseries"
    custom: dict[str, Any] = {}
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if panel.kind == "timeseries":
        custom = {"fillOpacity": 60 if panel.is_stacked else 5, "lineWidth": 1, "showPoints": "never"}
        custom["stacking"] = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "bargauge":
        options |= {"orientation": "horizontal", "displayMode": "basic"}
    targets = [
        {
            "refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend or "__auto",
            "instant": is_instant, "range": not is_instant, "editorMode": "code",
        }
        for index, (query, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": options,
    }
