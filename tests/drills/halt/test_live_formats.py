"""Each format followed for a minute by one daemon, beside a writer that rotates, truncates and restarts its log."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.core.base.units import NS_PER_S
from tests.drills.halt.conftest import ROOT, SAFETY_S, Service
from tests.unit.wire.formats.written import GPUS, LENGTH, WRITERS

MINUTE_S = 60.0
HALTED_WITHIN_S = 2.0
FILES = ("csv", "tensorboard", "wandb")
NAMES = ("jsonl", *WRITERS, *FILES)
NO_TOKENS = frozenset({"hf", "modded-nanogpt", "torchtune", "lightning"})  # As docs/howto/replay.md has it.

FROM_0 = frozenset({"nemo"})  # Its first step is 0.


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    made: dict[str, subprocess.Popen[str]] = {}
    for name in NAMES:
        log, pidfile = tmp_path / f"{name}.log", tmp_path / f"{name}.pid"
        log.mkdir() if name in ("tensorboard", "wandb") else log.touch()
        words = [sys.executable, "-m", "tests.drills.halt.format_writer", name, str(log), str(pidfile), str(MINUTE_S)]
        made[name] = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    yield made
    for process in made.values():
        process.kill()
        process.communicate()


def test_a_minute_of_each_format_is_known_as_its_writer_knows_it(
    service: Callable[..., Service], tmp_path: Path, writers: dict[str, subprocess.Popen[str]]
) -> None:
    governor = service()
    with governor.config.open("a") as config:
        for name in NAMES:
            config.write(
                f'[[log]]\npath = "{tmp_path}/{name}.log"\nrun = "{name}"\npidfile = "{tmp_path}/{name}.pid"\n'
                f'format = "{name}"\n' + ("" if name not in WRITERS else f"sequence_length = {LENGTH}\ngpus = {GPUS}\n")
            )
    governor.start()
    said = {name: json.loads(line_of(writer)) for name, writer in writers.items()}
    for name, told in said.items():
        run = until_step(governor, name, told["step"] - (name in FROM_0))
        assert run["loss"] == pytest.approx(told["loss"], abs=5e-4), name
        if name in NO_TOKENS:
            assert run["tokens_per_s"] is None, name
            continue
        assert run["tokens_per_s"] == pytest.approx(told["tokens_per_s"], rel=0.1), name
        usd_per_mtok = run["spend_rate_usd_per_hour"] / (told["tokens_per_s"] * 3600) * 1e6
        assert run["usd_per_mtok"] == pytest.approx(usd_per_mtok, rel=0.1), name
    assert governor.incidents() == []
    broken = {}
    for name, writer in writers.items():
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
        broken[name] = float(line_of(writer))
    for writer in writers.values():
        writer.wait(SAFETY_S)
    halts = {incident["run"]: incident for incident in governor.incidents()}
    late = {name: halts[name]["opened_wall_ns"] / NS_PER_S - broken[name] for name in NAMES}
    assert {name for name, seconds in late.items() if seconds > HALTED_WITHIN_S} == set(), late


def line_of(writer: subprocess.Popen[str]) -> str:
    assert writer.stdout is not None
    deadline = time.monotonic() + MINUTE_S + SAFETY_S
    assert select.select([writer.stdout], [], [], deadline - time.monotonic())[0]
    return writer.stdout.readline()


def until_step(governor: Service, name: str, step: int) -> Any:
    def look() -> Any:
        runs = governor.ask({"cmd": "status"})["runs"]
        return next((run for run in runs if run["run"] == name and run["step"] == step), None)

    return governor.until(look, f"step {step} of {name}")
