"""Pages that are drawn from the code show the code as it is."""

from __future__ import annotations

import pytest

from docs.generators.generate import PAGES
from tests.tidy.sources import ROOT


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_is_fresh(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "stale: run `make docs`"
