"""docs/metrics.md is made from the list that the exposition is made from."""

from __future__ import annotations

from governor.adapters.exporters.prometheus_metrics import metrics_page
from tests.tidy.sources import ROOT


def test_the_metrics_page_is_fresh() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == metrics_page(), "stale: run `make docs`"
