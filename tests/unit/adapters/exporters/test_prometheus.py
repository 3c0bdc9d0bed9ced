"""The exposition, read back by prometheus-client's own parser, and the server against rude clients."""

import contextlib
import math
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from governor.adapters.exporters.bounded import OTHER_RUNS, RUNS_SHOWN_MAX
from governor.adapters.exporters.metric import LABEL_CHARS_MAX
from governor.adapters.exporters.prometheus import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    MetricsUnavailable,
    PrometheusExporter,
    ScrapeServer,
)
from governor.adapters.exporters.prometheus_metrics import METRICS, info_metrics
from governor.core.base.model_speed import ModelSpeed
from governor.core.base.units import NS_PER_MS, NS_PER_S, DurationNs, UsdMicros, WallNs
from governor.core.engine.run_forecast import Pace
from governor.core.halt.state import HaltState
from governor.core.money.ceiling_forecast import CeilingHit, Met
from governor.core.money.expected import ExpectedCost
from governor.core.money.forecast import Forecast, Interval
from governor.core.money.token_price import TokenPrices
from governor.core.views.machines import OverNodes
from governor.core.views.metrics import (
    AlertCounts,
    BudgetReading,
    GovernorHealth,
    LagReading,
    MetricsSnapshot,
    RunReading,
)
from tests.unit.adapters.exporters.test_prometheus_machine import MACHINE
from tests.unit.core.engine.test_step import at, make_node, rule, training

FULL = RunReading(
    run="llama",
    stage="8b",
    scheduler_job="slurm:4711",
    attempt="a1",
    mode="enforce",
    step=120,
    skipped_steps=1,
    tokens_total=5_000_000,
    tokens_nonpad=3_850_000,
    tokens_per_s=41_000.5,
    step_s=1.25,
    loss=math.nan,
    grad_norm=0.5,
    loss_unseen=True,
    trains_beside=False,
    spend_usd_micros=UsdMicros(12_345_678),
    prices=TokenPrices(2_469_135, 3_000_001, 3_100_002, 2_400_000),
    spend_rate_usd_micros_per_hour=55_040_000,
    over_nodes=OverNodes(2, UsdMicros(20_000_000)),
    ceiling_usd_micros=300_000_000,
    last_frame_wall=WallNs(1_800_000_000_500_000_000),
    speed=ModelSpeed(4.8e15, 0.61, 12_500.0),
    ranks_connected=8,
    world_size=16,
    incidents_total=1,
    halt_stage="verifying",
    tokens_wasted=250_000,
    wasted_usd_micros={"start_up": 1_000_000, "after_last_step": 0, "halt": 250_000, "trained_twice": 750_000},
    time={"halt": (500_000_000, 250_000), "productive": (3_000_000_000, 1_500_000)},
    left=Forecast(1_000_000, Interval(0.5), 10),
    cost_left=Interval(27.5),
    ceiling=CeilingHit(Met(*(DurationNs(90 * NS_PER_S),) * 3)),
    plan=ExpectedCost(2_000_000, 50_000.0, usd_micros_per_mtok_all_in=2_300_000),
    last_pace=Pace(0.25, 1.5),
    run_pace=Pace(0.2, 1.25),
    drift_all_in_frac=0.3,
)
_NODE = {"node": "gpu-17", "cloud_instance": "i-0abc"}
NODE_A = {"node": "node-a", "cloud_instance": "i-1"}
LABELS = {"run": "llama", "stage": "8b", "scheduler_job": "slurm:4711", **_NODE}


def snapshot(*runs: RunReading, unattached: int | None = None, price: int | None = None) -> MetricsSnapshot:
    return MetricsSnapshot(
        node="gpu-17",
        cloud_instance="i-0abc",
        can_stop=True,
        price_usd_micros_per_hour=price,
        lines=(("storage", "vol-1", 54_795),) if price is not None else (),
        runs=runs,
        frames_received_total=100,
        frames_dropped_total=3,
        lag=LagReading((5, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1), 6.5),
        health=GovernorHealth(unattached_gpu_processes=unattached),
    )


@pytest.fixture
def exporter() -> Iterator[PrometheusExporter]:
    with closing(PrometheusExporter("127.0.0.1", 0, health=GovernorHealth, tick_ns=250 * NS_PER_MS)) as running:
        yield running


def samples(exporter: PrometheusExporter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(exporter.render().decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(exporter: PrometheusExporter, name: str, **labels: str) -> float | None:
    return samples(exporter).get((name, frozenset(labels.items())))


def test_a_run_shows_every_known_value_under_its_labels(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(FULL))
    expected = {
        "costgov_run_step": 120,
        "costgov_run_tokens_total": 5_000_000,
        "costgov_run_drift_all_in_ratio": 0.3,
        "costgov_run_nonpad_tokens_total": 3_850_000,
        "costgov_run_tokens_per_second": 41_000.5,
        "costgov_run_gpu_tokens_per_second": 12_500,
        "costgov_run_model_flops_per_second": 4.8e15,
        "costgov_run_mfu_ratio": 0.61,
        "costgov_run_step_duration_seconds": 1.25,
        "costgov_run_spend_usd_total": 12.345678,
        "costgov_run_usd_per_mtok": 2.469135,
        "costgov_run_spend_rate_usd_per_hour": 55.04,
        "costgov_run_ceiling_usd": 300,
        "costgov_run_last_frame_timestamp_seconds": 1_800_000_000.5,
        "costgov_run_ranks_connected": 8,
        "costgov_run_world_size": 16,
        "costgov_run_watched": 1,
    }
    assert {name: value(exporter, name, **LABELS) for name in expected} == expected
    assert math.isnan(value(exporter, "costgov_run_loss", **LABELS) or 0.0)


def test_unknown_is_absent_and_not_zero(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(RunReading(run="new")))
    names = {name for name, _ in samples(exporter)}
    for absent in (
        "costgov_run_loss",
        "costgov_run_usd_per_mtok",
        "costgov_run_spend_rate_usd_per_hour",
        "costgov_run_ceiling_usd",
        "costgov_run_last_frame_timestamp_seconds",
        "costgov_node_price_usd_per_hour",
        "costgov_unattached_gpu_processes",
        "costgov_halt_stage",
    ):
        assert absent not in names
    assert "costgov_run_spend_usd_total" in names


def test_zero_is_shown(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(unattached=0, price=0))
    for name in ("costgov_unattached_gpu_processes", "costgov_node_price_usd_per_hour"):
        assert value(exporter, name, node="gpu-17", cloud_instance="i-0abc") == 0


def test_the_halt_stage_is_one_among_all(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(FULL))
    rest = {name: label for name, label in LABELS.items() if name != "stage"}
    shown = {stage: value(exporter, "costgov_halt_stage", stage=stage.value, **rest) for stage in HaltState}
    assert shown == {stage: float(stage is HaltState.VERIFYING) for stage in HaltState}


def test_lag_is_a_cumulative_histogram(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot())
    assert value(exporter, "costgov_loop_lag_seconds_bucket", **_NODE, le="0.001") == 5
    assert value(exporter, "costgov_loop_lag_seconds_bucket", **_NODE, le="5.0") == 9
    assert value(exporter, "costgov_loop_lag_seconds_bucket", **_NODE, le="+Inf") == 10
    assert [value(exporter, f"costgov_loop_lag_seconds_{what}", **_NODE) for what in ("count", "sum")] == [10, 6.5]


def test_every_declared_metric_appears_when_everything_is_known(exporter: PrometheusExporter) -> None:
    counts = (AlertCounts("pager", 1, 2, 3),)
    health = GovernorHealth(
        unattached_gpu_processes=2, config_last_reload_wall=WallNs(1), alerts=counts, recording_lost_total=4,
        machine=MACHINE,
    )  # fmt: skip
    full = snapshot(FULL, price=98_320_000)
    known = {"health": health, "budgets": (BudgetReading("stage:s1", 9_000_000, 4_500_000, 250_000),)}
    known |= {"idle_s": 600.0, "stops_in_s": 300.0, "stop_stage": "verifying", "unallocated_usd_micros": 2_500_000}
    exporter.publish(MetricsSnapshot(**{name: getattr(full, name) for name in full.__slots__} | known))
    families = [*text_string_to_metric_families(exporter.render().decode())]
    rendered = {(one.name, family.type) for family in families for one in family.samples}
    declared = {
        (f"{metric.name}{suffix}", metric.type)
        for metric in (*METRICS, *info_metrics("", ""))
        for suffix in (("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",))
    }
    assert declared <= rendered, f"not shown, give FULL or `known` their values: {declared - rendered}"
    ours = {sample for sample in rendered if sample[0].startswith("costgov_")}
    assert ours <= declared, f"shown and not declared: {ours - declared}"
    names = [f"costgov_budget_{what}_usd" for what in ("ceiling", "spend", "reserve")]
    assert [value(exporter, name, scope="stage:s1", **_NODE) for name in names] == [9, 4.5, 0.25]
    assert [value(exporter, f"costgov_node_idle{what}_seconds", **_NODE) for what in ("", "_stop")] == [600, 300]
    assert value(exporter, "costgov_node_stop_stage", **_NODE, stage="verifying") == 1
    assert value(exporter, "costgov_unallocated_usd_total", **_NODE) == 2.5


def test_before_the_first_snapshot_only_the_process_shows(exporter: PrometheusExporter) -> None:
    names = " ".join(name for name, _ in samples(exporter))
    assert ("process_resident_memory_bytes" in names, "costgov" in names) == (True, False)


def test_runs_beyond_the_bound_are_summed_and_said(exporter: PrometheusExporter) -> None:
    runs = [RunReading(run=f"r{n}", spend_usd_micros=UsdMicros(1_000_000), tokens_total=10) for n in range(100)]
    exporter.publish(snapshot(*runs))
    found = samples(exporter)
    spends = {dict(labels)["run"]: spend for (name, labels), spend in found.items() if name.endswith("spend_usd_total")}
    assert len(spends) == RUNS_SHOWN_MAX + 1
    assert spends[OTHER_RUNS] == 100 - RUNS_SHOWN_MAX
    assert value(exporter, "costgov_runs_summed", **_NODE) == 1


def test_every_counter_of_a_run_is_summed(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(*(replace(FULL, run=f"r{n}") for n in range(RUNS_SHOWN_MAX + 2))))
    found = {(name, dict(labels).get("run")): counted for (name, labels), counted in samples(exporter).items()}
    for name in [metric.name for metric in METRICS if metric.type == "counter" and "run" in metric.labels]:
        assert found.get((name, OTHER_RUNS)) == 2 * found[name, "r0"], f"{name} needs its line in _summed"


@pytest.mark.parametrize(
    "name",
    [
        'a"} 1\nevil_metric{x="',
        "back\\slash",
        "line\nbreak\r",
        "half \ud800 pair",
        "x" * 10_000,
        "",
        OTHER_RUNS,
        "\N{SNOWMAN}",
    ],
)
def test_a_hostile_run_name_cannot_break_the_page(exporter: PrometheusExporter, name: str) -> None:
    exporter.publish(snapshot(RunReading(run=name, attempt=name, stage=name), RunReading(run="good")))
    found = samples(exporter)
    runs = {dict(labels)["run"] for _, labels in found if "run" in dict(labels)}
    assert "good" in runs
    assert not [shown for shown, _ in found if shown.startswith("evil")]
    assert all(len(run) <= LABEL_CHARS_MAX for run in runs)


def test_runs_that_look_alike_once_cut_do_not_collide(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(RunReading(run="x" * 200 + "a"), RunReading(run="x" * 200 + "b")))
    samples(exporter)  # Asserts that no series comes twice.
    assert value(exporter, "costgov_runs_summed", **_NODE) == 1


def test_numbers_too_large_for_a_float_are_infinite(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(RunReading(run="huge", tokens_total=10**400, step=-(10**400))))
    empty = {**LABELS, "run": "huge", "stage": "", "scheduler_job": ""}
    assert value(exporter, "costgov_run_tokens_total", **empty) == math.inf
    assert value(exporter, "costgov_run_step", **empty) == -math.inf


# --- the server ------------------------------------------------------------------------------------------


def address_of(exporter: PrometheusExporter) -> tuple[str, int]:
    url = httpx.URL(exporter.url)
    assert url.port is not None
    return url.host, url.port


def scrapers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("metrics")]


def talk(exporter: PrometheusExporter, request: bytes) -> bytes:
    with socket.create_connection(address_of(exporter), timeout=30) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def test_a_scrape_over_http(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(FULL))
    reply = httpx.get(exporter.url, trust_env=False)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"costgov_run_spend_usd_total{" in reply.content
    head = httpx.head(exporter.url, trust_env=False)
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", b"405"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", b"405"),
        (b"get /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET\r\n\r\n", b"405"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"405"),
        (b"\0 \xff\xfe \0\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.1\n\n", b"200"),
        (b"GET /metrics/../metrics HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\xff: \xff\r\n\r\n", b"200"),
        (b"GET /" + b"a" * REQUEST_BYTES_MAX, b"431"),
    ],
)
def test_answers(exporter: PrometheusExporter, request_bytes: bytes, status: bytes) -> None:
    assert talk(exporter, request_bytes).split(b" ", 2)[1] == status


def test_every_answer_says_its_length_and_that_it_is_the_last(exporter: PrometheusExporter) -> None:
    for path in ("/metrics", "/"):
        head, _, body = talk(exporter, f"GET {path} HTTP/1.1\r\n\r\n".encode()).partition(b"\r\n\r\n")
        names = [line.partition(b":")[0] for line in head.splitlines()[1:]]
        assert names == [b"Content-Type", b"Content-Length", b"Connection"], "nor our version, nor our clock"
        assert f"Content-Length: {len(body)}".encode() in head


def test_a_request_without_end_costs_its_connection_alone(exporter: PrometheusExporter) -> None:
    with contextlib.suppress(ConnectionError), socket.create_connection(address_of(exporter), timeout=30) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X-Header: x\r\n" * 100_000)  # It hangs up amid this.
        while client.recv(65_536):
            pass
    assert httpx.get(exporter.url, trust_env=False, timeout=30).status_code == 200


def test_a_client_that_drips_is_hung_up_on() -> None:
    """A bound on each wait alone would never end it."""
    with closing(ScrapeServer("127.0.0.1", 0, lambda: b"", "text/plain")) as server:
        server.bound_s = 0.5
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX-Never-Ends: ")
            with contextlib.suppress(ConnectionError):
                while not select.select([client], [], [], 0.02)[0]:
                    client.sendall(b"x")
                assert client.recv(1) == b""


def test_many_clients_get_no_more_than_the_bound(exporter: PrometheusExporter) -> None:
    clients = [socket.create_connection(address_of(exporter), timeout=30) for _ in range(200)]
    assert httpx.get(exporter.url, trust_env=False, timeout=30).status_code == 200
    assert len(scrapers()) <= CONNECTIONS_MAX + 1, "and who accepts them"
    for client in clients[: 200 - CONNECTIONS_MAX]:
        assert client.recv(1) == b""
    for client in clients:
        client.close()


def test_no_thread_outlives_it() -> None:
    exporter = PrometheusExporter("127.0.0.1", 0, health=GovernorHealth, tick_ns=1)
    clients = [socket.create_connection(address_of(exporter), timeout=30) for _ in range(4)]
    clients[0].sendall(b"GET /metrics HTTP/1.1\r\n")
    assert httpx.get(exporter.url, trust_env=False, timeout=30).status_code == 200
    exporter.close()
    assert not scrapers()
    for client in clients:
        assert client.recv(1) == b""
        client.close()


def test_silent_clients_do_not_keep_others_out(exporter: PrometheusExporter) -> None:
    exporter.publish(snapshot(FULL))
    silent = [socket.create_connection(address_of(exporter)) for _ in range(CONNECTIONS_MAX + 4)]
    for client in silent:
        client.setblocking(True)
    assert httpx.get(exporter.url, trust_env=False, timeout=30).status_code == 200
    for client in silent[:4]:  # The oldest made room.
        client.settimeout(30)
        assert client.recv(1) == b""
    for client in silent:
        client.close()


def test_an_address_in_use_is_one_clear_line(exporter: PrometheusExporter) -> None:
    port = httpx.URL(exporter.url).port
    assert port is not None
    with pytest.raises(MetricsUnavailable, match=rf"cannot listen on 127.0.0.1:{port}: .*in use.*; set \[metrics\]"):
        PrometheusExporter("127.0.0.1", port, health=GovernorHealth, tick_ns=1)


def test_the_loop_feeds_it_by_ticking(exporter: PrometheusExporter) -> None:
    node = make_node(rule())
    training(node, 30)
    exporter.tick(node, at(30))
    exporter.tick(node, at(30.26))
    assert value(exporter, "costgov_run_step", run="llama", stage="", scheduler_job="", **NODE_A) == 30
    assert [value(exporter, "costgov_loop_lag_seconds_bucket", **NODE_A, le=le) for le in ("0.005", "0.01")] == [0, 1]
