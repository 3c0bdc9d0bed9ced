"""Each gate closes on the mistake that it is for. The mistakes are planted beside the tree, never in it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from governor.adapters.exporters.metric import Metric
from governor.adapters.exporters.prometheus_metrics import METRICS, info_metrics
from governor.adapters.plugins import Kind
from governor.cli.common import OF_THE_COMMANDS, exits
from governor.core.rules import triggers
from governor.core.views.metrics import LagReading
from governor.remote_ports import Cloud
from tests.tidy import gates
from tests.tidy.sources import ROOT

Plant = Callable[..., ModuleType]

ACME = """
from governor.remote_ports import BillingReply

NAME = "acme"
KEYS = ()


def build(config, surroundings):
    return Cloud()


class Cloud:
    def billing(self):
        return BillingReply("ended", "from memory")
"""
LR_ZERO = """
class LrZero:
    KIND = "lr_zero"
    KEYS = ()
"""
HOARDER = """
from types import SimpleNamespace

SEEN = []


class Hoarder:
    counts = []

    def __init__(self):
        self._limits, self.seen, self._state = (1, 2), [], SimpleNamespace(seen=[])

    def observe(self, event):
        {where}.append(event)
"""
DEAF = """
from typing import Any


class Statsd:
    def tick(self, node: Any, at: Any) -> None: ...
    def incident(self, snapshot: Any) -> None: ...
"""
PART = """
class Line:
    text = "a part of an exporter, and none"
"""
RULES = '[[rule]]\nname = "lost"\ntrigger = "nonfinite"\nresponse = "warn"\n'
FIRES = """
[[case]]
name = "a NaN"
series = ["hello", "steps 3 every 1s loss=2.0", "steps 1 every 1s loss=nan"]
verdicts = ["4s lost loss_nan"]
"""
UNKNOWN = """
[[case]]
name = "no data"
series = ["hello", "steps 3 every 1s"]
readings = { lost = "unknown" }
"""
QUIET = """
[[case]]
name = "no NaN"
series = ["hello", "steps 3 every 1s loss=2.0"]
verdicts = []
"""


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """Write a package of these modules and import it; it is forgotten at the end."""

    def planted(**modules: str) -> ModuleType:
        folder = tmp_path / "planted"
        folder.mkdir()
        for name, text in {"__init__": "", **modules}.items():
            (folder / f"{name}.py").write_text(text)
        spec = importlib.util.spec_from_file_location("planted", folder / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        package = sys.modules["planted"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        return package

    yield planted
    for name in [name for name in sys.modules if name.partition(".")[0] == "planted"]:
        del sys.modules[name]


def test_a_gate_that_closes_says_every_line_and_one_that_does_not_says_nothing() -> None:
    gates.nothing_missing([], [])
    with pytest.raises(AssertionError, match=r"something is missing:\na\nb\nc$"):
        gates.nothing_missing(["a", "b"], [], ["c"])


def test_a_cloud_without_a_rig(plant: Plant) -> None:
    package = plant(acme=ACME)
    planted: Kind[Cloud] = Kind("cloud", "cloud", package.__name__, package.__path__)
    assert planted.module("acme").NAME == "acme", "it is what a provider looks like"
    assert gates.without_a_rig("cloud", planted.names(), {}, "rigs.py") == [
        "cloud acme has no rig: write one, name it in rigs.py"
    ]
    assert gates.without_a_rig("cloud", planted.names(), {"acme"}, "rigs.py") == []


def test_a_rig_whose_cloud_is_gone() -> None:
    assert gates.without_a_rig("cloud", (), {"acme"}, "rigs.py") == ["rigs.py has a rig for acme, which is no cloud"]


def test_a_trigger_without_a_timeline(plant: Plant, tmp_path: Path) -> None:
    package = plant(lr_zero=LR_ZERO)
    kinds = triggers.scan(package.__name__, package.__path__)
    [line] = gates.without_a_timeline(kinds, tmp_path)
    place = os.path.relpath(tmp_path / "lr_zero.toml", ROOT)
    assert line.startswith(f"trigger lr_zero has no {place}: ")


@pytest.mark.parametrize(
    ("cases", "missing"),
    [
        ((FIRES, QUIET), []),
        ((FIRES,), ["nonfinite stays quiet"]),
        ((QUIET,), ["nonfinite fires"]),
        ((UNKNOWN,), ["nonfinite fires", "nonfinite stays quiet"]),
    ],
)
def test_a_timeline_that_shows_half_of_it(tmp_path: Path, cases: tuple[str, ...], missing: list[str]) -> None:
    (tmp_path / "nonfinite.toml").write_text(f"rules = '''\n{RULES}'''\n{''.join(cases)}")
    place = os.path.relpath(tmp_path / "nonfinite.toml", ROOT)
    assert gates.without_a_timeline(["nonfinite"], tmp_path) == [
        f"{place} has no case in which {one}" for one in missing
    ]


def test_a_timeline_that_is_about_another_trigger(tmp_path: Path) -> None:
    (tmp_path / "hang.toml").write_text(f"rules = '''\n{RULES}'''\n{FIRES}{QUIET}")
    place = os.path.relpath(tmp_path / "hang.toml", ROOT)
    assert gates.without_a_timeline(["hang"], tmp_path) == [
        f"{place} has no case in which hang {one}" for one in ("fires", "stays quiet")
    ]


def test_a_timeline_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "hang.toml").write_text("[[case]]\n")
    lines = gates.without_a_timeline(["hang"], tmp_path)
    assert lines
    assert all(line.startswith(str(tmp_path / "hang.toml")) for line in lines)


@pytest.mark.parametrize(
    ("where", "told"),
    [("self._state.seen", []), ("self.seen", ["self.seen"]), ("self.counts", ["Hoarder.counts"]), ("SEEN", ["SEEN"])],
)
def test_a_trigger_that_keeps_what_it_saw_outside_its_state(plant: Plant, where: str, told: list[str]) -> None:
    plant(hoarder=HOARDER.format(where=where))
    trigger = importlib.import_module("planted.hoarder").Hoarder()
    before = gates.held_outside(trigger)
    trigger.observe(1)
    assert gates.kept_outside("hoarder", before, gates.held_outside(trigger)) == [
        f"trigger hoarder keeps {name} outside its _state: make it a field of the dataclass that _fresh makes"
        for name in told
    ]


def test_a_metric_whose_field_nobody_fills() -> None:
    text = "DEFAULT = LagReading()\n\ndef read():\n    return LagReading((1, 2){})\n"
    assert gates.never_filled(LagReading, text.format(", sum_s=0.5")) == []
    assert gates.never_filled(LagReading, text.format("")) == [
        "LagReading.sum_s is never filled: its metric would show the default for ever"
    ]
    assert gates.never_filled(LagReading, "DEFAULT = LagReading()\n") == ["LagReading is filled nowhere"]


def test_every_metric_is_named_as_prometheus_users_expect() -> None:
    gates.nothing_missing(gates.misnamed([*METRICS, *info_metrics("", "")]))


@pytest.mark.parametrize(
    ("name", "kind", "meaning", "wrong"),
    [
        ("costgov_run_saves_total", "counter", "Saves that were whole.", ()),
        ("costgov_run_spend_rate_usd_per_hour", "gauge", "1 is a dollar.", ()),
        ("costgov_run_save_ms", "counter", "longest save", ("a counter's", "ms is no base unit", "its meaning")),
        ("costgov_run_saves_total", "gauge", "Saves that were whole.", ("a counter's",)),
        ("costgov_run_saves", "counter", "Saves that were whole.", ("a counter's",)),
        ("costgov_run_seconds_saved", "gauge", "The longest save.", ("its unit stands last",)),
        ("costgov_run_usd_spend_total", "counter", "What it cost.", ("its unit stands last",)),
        ("costgov_run_saved_minutes", "gauge", "The longest save.", ("minutes is no base unit",)),
        ("costgov_run_spend_usd_micros", "gauge", "What it cost.", ("usd_micros is no base", "its unit stands last")),
        ("costgov_run_saved_percent", "gauge", "How much is saved.", ("percent is no base unit",)),
        ("costgov_runSaves", "gauge", "Saves.", ("a name is costgov_",)),
        ("run_saves", "gauge", "Saves.", ("a name is costgov_",)),
        ("costgov_run_saves", "summary", "Saves.", ("its type",)),
        ("costgov_run_saves", "gauge", "", ("its meaning",)),
        ("costgov_run_saves", "gauge", "Saves…", ("its meaning",)),
    ],
)
def test_a_metric_that_is_misnamed(name: str, kind: str, meaning: str, wrong: tuple[str, ...]) -> None:
    lines = gates.misnamed([Metric(name, kind, (), meaning, lambda _: ())])
    assert len(lines) == len(wrong), lines
    assert all(line.startswith(f"metric {name}: {what}") for line, what in zip(lines, wrong, strict=True))


def test_an_exporter_without_its_contract(plant: Plant) -> None:
    package = plant(statsd=DEAF + "\n    def alarm(self, name: Any, run: Any, text: Any) -> None: ...\n", line=PART)
    found = gates.observers_in(package)
    assert gates.without_a_rig("exporter", found, {}, "rigs.py") == [
        "exporter statsd has no rig: write one, name it in rigs.py"
    ]
    assert gates.without_a_call(found) == []


def test_an_exporter_that_cannot_be_told_everything(plant: Plant) -> None:
    assert gates.without_a_call(gates.observers_in(plant(statsd=DEAF))) == [
        "exporter statsd: Statsd has no alarm(): ports.Observer says what it is told"
    ]


def test_an_exporter_that_no_governor_has(plant: Plant) -> None:
    found = gates.observers_in(plant(statsd=DEAF))
    imported = gates.imported_outside("planted")
    assert gates.never_built("planted", found, imported) == [
        "exporter statsd is built nowhere: governor/app/wiring.py has one line for each"
    ]
    assert gates.never_built("planted", found, imported | {"planted.statsd"}) == []


def a_command(**given: Any) -> click.Group:
    """A program of one command, explained but for what is given."""
    explained = {"short_help": "Do.", "help": "Do it.\n\n    costgov do", "epilog": exits()}
    inner = click.Command("do", **{**explained, **given})
    return click.Group("costgov", [inner], help="A program.\n\nIt does.", epilog=exits())


PAGE = "# Commands\n\n## costgov\n\n## costgov do\n"


@pytest.mark.parametrize(
    ("given", "page", "missing"),
    [
        ({}, PAGE, ""),
        ({"short_help": None}, PAGE, "short_help"),
        ({"help": None}, PAGE, "a help text"),
        ({"help": "Do it."}, PAGE, "a help text"),
        ({"epilog": None}, PAGE, "its exit codes"),
        ({"epilog": "See the manual."}, PAGE, "its exit codes"),
        ({"epilog": OF_THE_COMMANDS}, PAGE, "its exit codes"),
        ({}, PAGE.replace("costgov do", "costgov do more"), "its section in docs/reference/cli.md"),
    ],
)
def test_a_command_that_is_not_explained(given: dict[str, Any], page: str, missing: str) -> None:
    lines = gates.unexplained("costgov", a_command(**given), page)
    assert [line.startswith(f"costgov do lacks {missing}") for line in lines] == ([True] if missing else [])


def test_a_command_that_is_found_only_when_it_is_asked_for() -> None:
    """As those of `costgov`, which are imported late: the gate must not stop at what is loaded already."""

    class Late(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return ["late"]

        def get_command(self, ctx: click.Context, name: str) -> click.Command:
            return click.Command(name)

    lines = gates.unexplained("costgov", Late("costgov"), "")
    assert {line.partition(" lacks ")[0] for line in lines} == {"costgov", "costgov late"}
    assert len([line for line in lines if line.startswith("costgov late")]) == 4
