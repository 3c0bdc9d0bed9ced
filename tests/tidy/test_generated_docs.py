"""Pages that are drawn from the code show the code as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.generators.generate import PAGES, main
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
