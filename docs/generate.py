"""Draws what comes from the code, pages of docs and the schema of policies: `make docs`. A tidy test holds it fresh."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs import (
    alerts_page,
    cli_page,
    clouds_page,
    halt_page,
    low_precision_page,
    policies_page,
    prices_page,
    references_page,
    sparse_attention_page,
    stages_page,
    triggers_page,
)
from governor.adapters.exporters.prometheus_metrics import metrics_page
from governor.planner.model.training_stages import STAGES
from governor.policies.schema import schema

PAGES: dict[str, Callable[[], str]] = {
    "alerts.md": alerts_page.render,
    "cli.md": cli_page.render,
    "clouds.md": clouds_page.render,
    "halt.md": halt_page.render,
    "low_precision.md": low_precision_page.render,
    **low_precision_page.files(),
    "metrics.md": metrics_page,
    "policies.md": policies_page.render,
    "prices.md": prices_page.render,
    "reference_configs.md": references_page.render,
    **references_page.files(),
    "sparse_attention.md": sparse_attention_page.render,
    "sparse_attention.svg": sparse_attention_page.drawn,
    "stages.md": stages_page.render,
    "triggers.md": triggers_page.render,
    "../policies/policy.schema.json": lambda: json.dumps(schema(), indent=1, ensure_ascii=False) + "\n",
    **{
        f"../configs/{stage.name}/{which}.json": partial(stages_page.config_text, stage.name, which)
        for stage in STAGES
        for which in ("primary", "fallback")
    },
}


def main() -> None:
    for name, render in PAGES.items():
        path = Path(__file__).parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
