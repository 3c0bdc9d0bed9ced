"""Files that people write: costgov.toml and its environment, policies, tests of policies, plans, bills, prices."""

from __future__ import annotations

import functools
import io
import json
import math
import tomllib
from pathlib import Path
from random import Random
from typing import Any

from governor.app.settings_file import load_settings
from governor.core.base.policy import PolicySet
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import NodeFacts, new_node
from governor.core.events.inputs import Tick
from governor.core.events.streams import StreamOpened
from governor.planner.keys import PlanUnreadableError, from_toml
from governor.policies.loading import ceiling_fault
from governor.policies.parse import load_policies
from governor.replay.user_tests import run_file
from governor.wire.bill_map import bill_map
from governor.wire.bills import Wanted, read_bill
from governor.wire.csv_table import TableError
from governor.wire.price_table import PriceTableError, parse_table
from governor.wire.records import RecordReader
from tests.fuzz import mutate
from tests.paths import ROOT

SETTINGS: dict[str, Any] = {
    "node": {"name": "n1", "price_usd_per_hour": 22.5, "price_as_of": "2026-11-09", "price_kind": "spot",
    "idle_stop": "15m"},
    "paths": {"state_dir": "/var/lib/costgov", "runtime_dir": "/run/costgov", "socket": "/run/costgov/t.sock"},
    "trainer": {"allow_uids": ["root", 1001], "socket_mode": "0666"}, "control": {"mode": "0660"},
    "metrics": {"enabled": True, "address": "127.0.0.1", "port": 9478}, "log": {"level": "info"},
    "cloud": {"provider": "command", "command": {"argv": ["/bin/true", "{instance}"], "timeout_s": 5}},
    "price": {"source": "vast", "vast": {"api_key_file": "/x"}, "ask_again": "1h", "stale_after_days": 9},
    "jsonl": [{"run": "log", "path": "/logs/a.jsonl", "pidfile": "/run/a.pid", "fields": {"loss": "train.ce",
    "step": ["it"]},
               "labels": {"team": "nlp"}, "stage": "sft"}],
    "alert": [{"kind": "webhook", "url": "https://example.org/x", "secret_file": "/s"}],
    "budget": [{"scope": "label:team=nlp", "ceiling_usd": 500.0, "alert_at": [0.5]}, {"scope": "day",
    "ceiling_usd": 9}],
    "line": [{"kind": "storage", "name": "vol-0a gp3", "gb": 500, "price_usd_per_gb_month": 0.08,
    "as_of": "2026-11-01"},
             {"kind": "fixed", "name": "support", "price_usd_per_hour": 0.1}],
    "record": {"enabled": True, "run_max_mb": 256, "keep_days": 30},
}  # fmt: skip
PLAN: dict[str, Any] = {
    "model": "llama-7b",
    "tokens": "1T",
    "gpus": 64,
    "gpu": "H100-SXM-80GB",
    "sequence": 4096,
    "mfu": 0.4,
}
BILL = (
    "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ResourceId,ServiceCategory,PricingQuantity,"
    "PricingUnit\n2.5,USD,Usage,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,i-0a,Compute,1,Hours\n"
    "-1.0,USD,Credit,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,i-0a,Compute,,\n"
)
PLAIN_BILL = (
    "Time,End,Cost,Hours,Machine,Unit,What\n"
    "2026-11-02T10:00:00+02:00,2026-11-02T11:00:00+02:00,$55.04,1,i-0aaa,GPU-Hours,instance\n"
    "2026-11-02,2026-11-30,(5.00),720,i-0aaa,Hours,credit\n"
    "1793606400,,0.125,3600,vol-1,seconds,storage\n"
)
PLAIN_MAP = bill_map(
    ("date=Time", "end=End", "amount=Cost", "hours=Hours", "resource=Machine", "unit=Unit", "kind=What")
)
CUR_BILL = (
    "identity/LineItemId,lineItem/LineItemType,lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/UnblendedCost,"
    "lineItem/ResourceId,lineItem/UsageAmount,lineItem/UsageType\n"
    "a,Usage,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,98.32,i-0a,1,BoxUsage:p5.48xlarge\n"
)


def toml(table: Any) -> str:
    """A document with these keys; what TOML cannot hold becomes a text. Keys dotted, inline or in tables."""
    if not isinstance(table, dict):
        return f"a = {_toml_value(table)}\n"
    lines = [f"{_key(key)} = {_toml_value(value)}" for key, value in table.items() if not _is_table(value)]
    for key, value in table.items():
        if isinstance(value, dict) and _is_table(value):
            lines += [f"[{_key(key)}]", *(f"{_key(inner)} = {_toml_value(one)}" for inner, one in value.items())]
        elif _is_table(value):
            for one in value:
                lines += [f"[[{_key(key)}]]", *(f"{_key(inner)} = {_toml_value(leaf)}" for inner, leaf in one.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, dict) or (isinstance(value, list) and all(isinstance(one, dict) for one in value))
    ) and bool(value)


def _key(key: Any) -> str:
    text = str(key)
    return text if text.isidentifier() and text.isascii() else json.dumps(text)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return "''" if value is None else json.dumps(value, ensure_ascii=False)


def broken_toml(random: Random, sample: dict[str, Any], text: str = "") -> bytes:
    if text and random.random() < 0.4:
        return mutate.damaged(random, text.encode(), 0.9)
    written = toml(mutate.broken(random, sample, random.choice((1, 1, 2, 3)))).encode("utf-8", "surrogatepass")
    return mutate.damaged(random, written, 0.2)


def one_line_each(problems: list[str]) -> None:
    for problem in problems:
        assert problem, "a problem without words"
        assert "\n" not in problem, problem


class _Files:
    block = 1_000

    def begin(self, work: Path) -> None:
        self._work = work

    def end(self) -> None: ...


class SettingsFile(_Files):
    """costgov.toml, and keys of it in the environment."""

    name = "settings"
    share = 0.01

    def draw(self, random: Random) -> Any:
        sample = {key: SETTINGS[key] for key in random.sample(list(SETTINGS), random.choice((1, 3, 6)))}
        environ = {"HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0"}
        if random.random() < 0.2:
            table = random.choice(list(SETTINGS))
            inner = SETTINGS[table] if isinstance(SETTINGS[table], dict) else {"x": SETTINGS[table]}
            name = random.choice(
                [f"COSTGOV_{table}__{random.choice(list(inner))}", f"COSTGOV_{table}", "COSTGOV_PATHS__A__B"]
            )
            texts = [
                "1",
                "[1",
                '{"a":',
                "[" * 5_000,
                '["a"]',
                json.dumps(mutate.value(random), default=str),
                *mutate.TEXTS,
            ]
            environ[name.upper()] = random.choice(texts).replace("\0", "")
        return broken_toml(random, sample), environ, random.random() < 0.1

    def play(self, one: Any) -> None:
        data, environ, is_run = one
        path = self._work / "costgov.toml"
        path.write_bytes(data)
        settings, problems = load_settings(path, environ=environ, run="train" if is_run else None)
        one_line_each(problems)
        assert settings is not None or problems


class Policies(_Files):
    """A policy; one that is accepted judges a short log."""

    name = "policies"
    share = 0.02

    def __init__(self) -> None:
        self._texts = [path.read_text() for path in sorted((ROOT / "policies").glob("*.toml"))]
        self._samples = [tomllib.loads(text) for text in self._texts]

    def draw(self, random: Random) -> Any:
        place = random.randrange(len(self._texts))
        return broken_toml(random, self._samples[place], self._texts[place])

    def play(self, one: Any) -> None:
        text = one.decode("utf-8", "replace")
        policies, problems = load_policies([("p.toml", text)])
        one_line_each([str(problem) for problem in problems])
        assert policies is not None or problems
        if policies is not None:
            self._judges(policies)

    def _judges(self, policies: PolicySet) -> None:
        facts = NodeFacts("node", "boot", UsdMicros(98_320_000), "test")
        ceiling_fault(facts, policies)
        node = new_node(facts, policies, BootNs(0), WallNs(10**18))
        engine.step(node, StreamOpened(MonoNs(0), "log", 1000, None, {}))
        reader = RecordReader("log")
        for number, loss in enumerate((2.0, 2.5, 1e9, None, "nan", 2.0), start=1):
            at = MonoNs(number * 30 * NS_PER_S)
            found = reader.read({"step": number, "loss": loss, "tokens": 4096, "lr": 0.0}, at)
            for event in (*found, Tick(at, BootNs(at), WallNs(10**18 + at))):
                engine.step(node, event)  # type: ignore[arg-type]


class PolicyTests(_Files):
    """A user's tests of policies: rules and series in one file."""

    name = "tests"
    share = 0.002

    def __init__(self) -> None:
        paths = [
            *sorted((ROOT / "tests" / "timelines").glob("*.toml")),
            *sorted((ROOT / "policies" / "tests").glob("*.toml")),
        ]
        self._texts = [text for path in paths if len(text := path.read_text()) < 6_000]

    def draw(self, random: Random) -> Any:
        return broken_toml(random, tomllib.loads(random.choice(self._texts)), random.choice(self._texts))

    def play(self, one: Any) -> None:
        path = self._work / "tests.toml"
        path.write_bytes(one)
        outcomes, lines = run_file(path)
        one_line_each(lines)
        for outcome in outcomes:
            assert isinstance(outcome.ok, bool)


class Tables(_Files):
    """Bills of providers, the table of prices, a plan."""

    name = "tables"
    share = 0.08

    @functools.cached_property
    def _prices(self) -> str:
        lines = (ROOT / "governor" / "data" / "prices.csv").read_text().splitlines()
        head = [line for line in lines if line.startswith("#")]
        rows = [line for line in lines if not line.startswith("#")][:6]
        return (
            "\n".join([*(f"# rows: {len(rows) - 1}" if line.startswith("# rows") else line for line in head), *rows])
            + "\n"
        )

    def draw(self, random: Random) -> Any:
        kind = random.choice(("bill", "bill", "prices", "plan"))
        if kind == "plan":
            return kind, broken_toml(random, PLAN)
        text = self._prices if kind == "prices" else random.choice((BILL, CUR_BILL, PLAIN_BILL))
        rows = [line.split(",") for line in text.splitlines()]
        for _ in range(random.choice((1, 1, 3))):
            row = random.choice(rows)
            row[random.randrange(len(row))] = str(
                random.choice((*mutate.TEXTS, "1e400", "-5", "1e99", "²", "1e-400", "0/0"))
            )
        data = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
        return kind, mutate.damaged(random, data, 0.3)

    def play(self, one: Any) -> None:
        kind, data = one
        try:
            if kind == "plan":
                path = self._work / "plan.toml"
                path.write_bytes(data)
                from_toml(path)
            elif kind == "bill":
                is_plain = data.lstrip(b"\xef\xbb\xbf").startswith(PLAIN_BILL[:10].encode())
                read_bill(_Raw(data), "bill.csv", Wanted(columns=PLAIN_MAP) if is_plain else Wanted())
            else:
                parse_table(data.decode("utf-8", "replace"))
        except (TableError, PriceTableError, PlanUnreadableError) as error:
            one_line_each([str(error)])


class _Raw(io.RawIOBase):
    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._inner.readinto(buffer)
