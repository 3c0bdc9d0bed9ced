"""What the commands that read a journal tell of a run: `cost`, `cost stages`, and `status` of one that has ended."""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from governor.adapters.journal.writer import open_journal
from governor.cli.main import cli
from governor.core.base.units import MonoNs, WallNs
from governor.core.engine.incidents import persist_incident
from governor.core.money.charges import charge_row
from governor.ports import Row
from tests.hand_table.cases import CAUSES, STAGE_FIGURES
from tests.hand_table.told import ALL_TOKENS, CLOSING, Told, amount, in_text, micros, percent
from tests.unit.core.engine.test_metering import World

PRICES = ("usd_per_mtok", "usd_per_mtok_all_in", "usd_per_mtok_useful", "usd_per_mtok_steady")
# In dollars: the names of a row of `cost stages --json` and `--csv`.
_DOLLARS = {
    "spend": "actual_usd",
    "expected": "expected_usd",
    "wasted": "wasted_usd",
    "ceiling": "ceiling_usd",
    "usd_per_mtok_all_in": "usd_per_mtok_all_in",
    "usd_per_mtok_useful": "usd_per_mtok_useful",
    "usd_per_mtok_steady_stage": "usd_per_mtok_steady_stage",
    "burn_rate": "burn_rate",
    "lands at": "lands_at_usd",
    "hours": "hours",
    "tokens/s": "tokens_per_s",
    "unpriced": "unpriced_s",
    "drift_stage": "drift_stage_frac",
    "drift_all_in": "drift_all_in_frac",
}
_CAUSE = "wasted_usd_by_cause"
_PERCENTS = {"used": "used_percent"}
_COUNTS = {"tokens": "tokens", "tokens wasted": "tokens_wasted"}
_COLUMNS = {
    "spend": "ACTUAL",
    "expected": "EXPECTED",
    "wasted": "WASTED",
    "ceiling": "CEILING",
    "usd_per_mtok_all_in": "$/1M ALL-IN",
    "usd_per_mtok_useful": "$/1M USEFUL",
    "usd_per_mtok_steady_stage": "$/1M STEADY, STAGE",
    "burn_rate": "BURN RATE",
    "lands at": "LANDS AT",
    "hours": "HOURS",
    "tokens/s": "TOK/S STEADY",
}
# Told by the one row of `cost stages` alone: of several stages, each has its own.
OF_ONE_STAGE = frozenset({
    "expected", "used", "usd_per_mtok_steady_stage", "drift_stage", "lands at", "tokens/s", "tokens",
})  # fmt: skip
_PERCENT_COLUMNS = {"used": "USED", "drift_stage": "DRIFT STEADY, STAGE"}


@contextmanager
def journal_of(world: World, *others: str) -> Iterator[Mapping[str, str]]:
    """The environment of commands that read what the world's governors have persisted.

    `others`: names of journals of runs that went the same way, under the same name.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("llama", *others):
            _write(world, Path(folder, "state", "runs", name))
        yield {
            "COSTGOV_PATHS__STATE_DIR": f"{folder}/state",
            "COSTGOV_PATHS__RUNTIME_DIR": f"{folder}/run",
            "COSTGOV_CONTROL": f"{folder}/run/control.sock",
        }


def told_by_commands(world: World) -> Iterator[Told]:
    with journal_of(world) as env:
        yield from _cost(env)
        if not world.node.runs["llama"].run.alive:
            yield from _ended(env)
        asked = ("cost", "stages", "--run", "llama")
        stages = json.loads(called(env, *asked, "--json"))["stages"]
        if len(stages) > 1:
            yield from _by_stage("cost stages --json", stages)
            yield from _by_stage("cost stages --csv", csv.DictReader(called(env, *asked, "--csv").splitlines()))
            return
        [stage] = stages
        yield from _stage("cost stages --json", stage)
        causes = (stage[_CAUSE] or {}).items()
        yield from (amount("cost stages --json", f"wasted {cause}", str(usd or "")) for cause, usd in causes)
        [row] = csv.DictReader(called(env, *asked, "--csv").splitlines())
        yield from _stage("cost stages --csv", row)
        yield from (amount("cost stages --csv", f"wasted {c}", row[f"{_CAUSE}.{c}"]) for c in CAUSES)
        yield from _table(called(env, *asked))
        yield from _markdown(called(env, *asked, "--md"))


def _write(world: World, folder: Path) -> None:
    """All that the world's governors have persisted."""
    folder.mkdir(parents=True)
    journal, problem = open_journal(f"{folder}/costgov.db", str(folder))
    assert problem is None
    wall = WallNs(world.boot + world.wall_offset)
    rows = [Row("window", "llama", None, MonoNs(0), wall, "boot-1", window) for window in world.windows]
    for managed in world.node.runs.values():
        if managed.incident is not None:
            kept = persist_incident(world.node, managed)
            journal.save_incident(kept.incident_id, kept.snapshot)  # close() waits longer for the disk than it does.
    assert journal.save_runs(world.runs, [charge_row(one) for one in world.charges.values()], rows)
    journal.close()


def called(env: Mapping[str, str], *words: str) -> str:
    result = CliRunner().invoke(cli, words, env={**os.environ, **env}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _cost(env: Mapping[str, str]) -> Iterator[Told]:
    [group] = json.loads(called(env, "cost", "--run", "llama", "--json"))["groups"]
    [row] = csv.DictReader(called(env, "cost", "--run", "llama", "--csv").splitlines())
    for view, shown in (("cost --json", group), ("cost --csv", row)):
        yield Told(view, "spend", micros(shown["usd"]))
        yield Told(view, "hours", micros(shown["hours"]))
    heads, cells = (line.split() for line in called(env, "cost", "--run", "llama").splitlines()[:2])
    yield amount("table of cost", "spend", cells[heads.index("AMOUNT")])
    yield amount("table of cost", "hours", cells[heads.index("HOURS")])


def _stage(view: str, row: Mapping[str, Any]) -> Iterator[Told]:
    yield from (amount(view, figure, str(row[name] or "")) for figure, name in _DOLLARS.items())
    yield from (percent(view, figure, str(row[name] or "")) for figure, name in _PERCENTS.items())
    yield from (Told(view, figure, int(row[name])) for figure, name in _COUNTS.items())


def _by_stage(view: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Told]:
    for row in rows:
        for told in _stage(view, row):
            if told.figure in STAGE_FIGURES:
                yield told._replace(figure=f"{row['stage']} {told.figure}")


def _table(text: str) -> Iterator[Told]:
    heads, cells = (re.split(r"\s{2,}", line) for line in text.splitlines()[:2])
    yield from _columns("table of cost stages", dict(zip(heads, cells, strict=True)))


def _markdown(text: str) -> Iterator[Told]:
    heads, _, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[:3])
    spelt = {head.removesuffix(" $").upper(): cell for head, cell in zip(heads, cells, strict=True)}
    yield from _columns("cost stages --md", spelt)


def _columns(view: str, shown: Mapping[str, str]) -> Iterator[Told]:
    yield from (amount(view, figure, shown[head]) for figure, head in _COLUMNS.items())
    yield from (percent(view, figure, shown[head]) for figure, head in _PERCENT_COLUMNS.items())


def _ended(env: Mapping[str, str]) -> Iterator[Told]:
    [status] = json.loads(called(env, "status", "llama", "--json"))["runs"]
    view = "status, ended"
    yield Told(view, "spend", micros(status["spend_usd"]))
    yield from (Told(view, name, micros(status[name])) for name in PRICES)
    yield Told(view, "ceiling", micros(status["ceiling_usd"]))
    yield Told(view, "wasted", micros(status["wasted_usd"]))
    yield from (Told(view, f"wasted {c}", micros(usd)) for c, usd in status["wasted_usd_by_cause"].items())
    yield Told(view, "tokens wasted", status["tokens_wasted"])
    yield Told(view, ALL_TOKENS, status["tokens_total"])
    yield Told(view, "unpriced", micros(status["unpriced_s"]))
    yield from in_text("status in words, ended", called(env, "status", "llama"), CLOSING)
