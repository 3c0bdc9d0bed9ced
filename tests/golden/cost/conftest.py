"""`costgov cost …` in this process, on a state directory of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from governor.cli.common import ExitCode, Failed
from governor.cli.main import cli
from tests.unit.cost.ledger_file import a_month, write_ledger


class Done(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Done]
AsAgreed = Callable[[str, str], None]


@pytest.fixture
def as_agreed() -> AsAgreed:
    """Compare a text with the file of that name. `make golden-update` rewrites the files; read the diff."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / name
        if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text

    return compare


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ledger is looked for. It is empty."""
    for name in ("COSTGOV_CONFIG", "COSTGOV_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COSTGOV_PATHS__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COSTGOV_PATHS__RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("COSTGOV_PATHS__POLICIES_DIR", str(tmp_path / "none"))
    return tmp_path / "state"


@pytest.fixture
def ledger(state_dir: Path) -> Path:
    """A month of charges in it: most in the service's journal, the last run's in its own."""
    write_ledger(state_dir / "costgov.db", a_month()[:-1])
    write_ledger(state_dir / "runs/anna/costgov.db", a_month()[-1:])
    return state_dir


@pytest.fixture
def costgov(anything: Call) -> Call:
    """`costgov cost WORDS`."""
    return lambda *words: anything("cost", *words)


@pytest.fixture
def anything(capsys: pytest.CaptureFixture[str]) -> Call:
    """`costgov WORDS`."""

    def call(*words: str) -> Done:
        error = ""
        try:
            code = cli.main([*words], prog_name="costgov", standalone_mode=False) or 0
        except Failed as failed:
            code, error = failed.code, failed.format_message() + "\n"
        except click.UsageError as wrong:
            code, error = ExitCode.USAGE, wrong.format_message() + "\n"
        out, err = capsys.readouterr()
        return Done(int(code), out, err + error)

    return call
