"""A short part of the fuzzing, and every input that once did what it must not."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import governor
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.providers import ROLE
from tests.fuzz.runner import run

SEED = 1
# A reader is a process, and a file of tests some hundred steps of an engine.
INPUTS = {
    "readers": 1,
    "tests": 4,
    "settings": 10,
    "replay": 12,
    "policies": 20,
    "providers": 30,
    "frames": 300,
    "lines": 300,
    "logfiles": 300,
    "peers": 300,
}

NESTED = b"[" * 20_000
PAIR = "\ud83d"


def priced(gpus: str) -> bytes:
    """The built-in table, with this number of GPUs in its first row of eight."""
    table = Path(governor.__file__).with_name("data") / "prices.csv"
    return table.read_text().replace(",H100-SXM-80GB,8,", f",H100-SXM-80GB,{gpus},", 1).encode()


def manifest(*files: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"step": 1, "files": list(files), **more}).encode()


def safetensors(**tensor: Any) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [128], "data_offsets": [0, 512], **tensor}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(512)


def answered(body: Any, place: int, call: str = "stop", date: str = "") -> tuple[str, str, Any, str]:
    """AWS answers so to this one of the questions of a call. The token is asked for first."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return "cloud", "aws", {place: (200, data, {"Date": date} if date else {})}, call


KEPT: tuple[tuple[str, str, Any], ...] = (
    ("manifests", "half a pair in a name", manifest({"path": PAIR, "bytes": 1})),
    ("manifests", "sizes beyond every float", manifest({"path": "model.safetensors", "bytes": 10**400})),
    ("manifests", "counts beyond every float", manifest({"path": "a", "bytes": 8}, parameters=10**400,
     bytes_min=10**400)),
    ("weights", "an offset that is no number", ("a.safetensors", safetensors(data_offsets=[0, float("inf")]))),
    ("weights", "an offset beyond every file", ("a.safetensors", safetensors(data_offsets=[2**70, 2**70 + 512]))),
    ("settings", "brackets in brackets", (b"a = " + NESTED, {}, False)),
    ("settings", "a number without end", (b"a = " + b"9" * 5_000, {}, False)),
    ("settings", "brackets in the environment", (b"", {"COSTGOV_NODE__NAME": "[" * 20_000}, False)),
    ("settings", "a descriptor for a secret's file", (b"[price.vast]\napi_key_file = 9223372036854775808\n", {},
     False)),
    ("settings", "a kind that steers a terminal", (b'[[alert]]\nkind = "\\u001b[2J\\n"\n', {}, False)),
    ("settings", "wrong everywhere", (b"[[jsonl]]\nrun = 1\npath = 2\nx = 3\n" * 3_000, {}, False)),
    ("settings", "half a pair in the environment", (b"", {"COSTGOV_NODE__NAME": "\udc80"}, False)),
    ("policies", "a value of two lines", b'[policy]\nname = "a"\n[budget]\ntokens = "a\\nb"\n'),
    ("tests", "a key of two lines", b'"a\\nb" = 1\n[[case]]\nname = "x"\n'),
    ("tables", "a plan in brackets", ("plan", b"gpus = " + NESTED)),
    ("tables", "a cell of two lines", ("bill",
     b"BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,"
                                       b'ResourceId,ServiceCategory\n"1\n2",USD,Usage,2026-11-01,2026-11-02,i-0,Compute\n')),
    ("tables", "a head without words", ("prices", b"# The table: ")),
    ("tables", "a cell of 5,000 digits", ("bill", b"BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,"
     b"ChargePeriodEnd,ResourceId,ServiceCategory\n"
     + b"2" * 5_000 + b",USD,Usage,2026-11-01,2026-11-02,i-0,Compute\n")),
    ("tables", "a number of GPUs of 5,000 digits", ("prices", priced("9" * 5_000))),
    ("tables", "a plan with a key of two lines", ("plan", b'tokens = "1T"\n"a\\nb" = 1\n')),
    ("providers", "a token that no header holds", answered(b"\xe2\x80\xae", 0)),
    ("providers", "brackets for an identity", answered(NESTED, 1)),
    ("providers", "a role that no URL holds", answered(b"ro\x1ble", 2)),
    ("providers", "keys that are no texts", answered({**ROLE, "Token": 1.5}, 3)),
    ("providers", "keys that no header holds", answered({**ROLE, "AccessKeyId": "\N{SNOWMAN}"}, 3)),
    ("providers", "a year beyond all time", answered(b"<DescribeInstancesResponse/>", 4, "billing",
     "Mon, 01 Jan 99999999999999999999 00:00:00 GMT")),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _without_a_log() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_comes_of_broken_inputs(name: str, tmp_path: Path) -> None:
    figures = run(TARGETS[name](), tmp_path / "work", SEED, range(INPUTS.get(name, 60)))
    assert not figures.findings, "\n".join(f"{one.what}\n{one.trace}" for one in figures.findings.values())


@pytest.mark.parametrize(("name", "one"), [(name, one) for name, _, one in KEPT], ids=[what for _, what, _ in KEPT])
def test_what_once_came_of_an_input_does_not_come_again(name: str, one: Any, tmp_path: Path) -> None:
    target: Any = TARGETS[name]()
    target.draw = lambda _random: one
    figures = run(target, tmp_path / "work", SEED, range(1))
    assert not figures.findings, "\n".join(f"{one.what}\n{one.trace}" for one in figures.findings.values())
