"""Pages that are drawn from the code show the code as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docs.generators.generate import PAGES, main
from docs.generators.man_page import LAID_OUT_COLUMNS
from governor.adapters.plugins import Kind
from tests.tidy.sources import ROOT


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_is_fresh(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "stale: run `make docs`"


def test_make_docs_names_a_module_with_a_wrong_name_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "planted_clouds").mkdir()
    (tmp_path / "planted_clouds" / "acme.py").write_text('NAME = "acne"\n')
    monkeypatch.syspath_prepend(tmp_path)
    clouds: Kind[Any] = Kind("cloud", "cloud", "planted_clouds", [str(tmp_path / "planted_clouds")])
    assert main({"docs/reference/clouds.md": lambda: str(clouds.module("acme"))}) == 2
    assert capsys.readouterr().err == (
        'make docs: docs/reference/clouds.md is not drawn: NAME of planted_clouds.acme is "acne" and must be "acme"\n'
    )


def test_the_manuals_examples_stand_inside_its_text_and_80_columns_hold_them() -> None:
    page = PAGES["deploy/man/costgov.1"]()
    examples = re.findall(r"^\.RS (\d+)n\n\.EX\n(.*?)^\.EE\n\.RE\n", page, flags=re.DOTALL | re.MULTILINE)
    assert len(examples) >= 10
    assert all(int(indent) > 0 for indent, _ in examples)
    assert ".in -" not in page
    lines = [_plain(line) for _, text in examples for line in text.splitlines()]
    assert not [line for line in lines if len(line) > LAID_OUT_COLUMNS]


def _plain(line: str) -> str:
    """A line of roff as it is shown, one character for each."""
    return re.sub(r"\\\[u\w{4}\]|\\f[BR]|\\&|\\(.)", r"\1", line)
