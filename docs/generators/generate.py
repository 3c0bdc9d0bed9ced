"""`make docs`: pages, configs and schema made from the code. A tidy test fails while one of them is stale."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docs.generators import (
    adr_page,
    alerts_page,
    causes_page,
    cli_page,
    clouds_page,
    dashboard,
    failure_modes_page,
    halt_page,
    low_precision_page,
    man_page,
    policies_page,
    prices_page,
    references_page,
    sparse_attention_page,
    stages_page,
    terminal_picture,
    triggers_page,
)
from governor.adapters.exporters.prometheus_metrics import metrics_page
from governor.planner.model.training_stages import STAGES
from governor.policies.schema import schema

PAGES: dict[str, Callable[[], str]] = {
    "docs/adr/README.md": adr_page.render,
    "docs/start/halt.svg": terminal_picture.render,
    "docs/reference/alerts.md": alerts_page.render,
    "docs/reference/causes.md": causes_page.render,
    "docs/reference/cli.md": cli_page.render,
    "docs/reference/clouds.md": clouds_page.render,
    "docs/reference/failure_modes.md": failure_modes_page.render,
    "docs/reference/halt.md": halt_page.render,
    "docs/reference/low_precision.md": low_precision_page.render,
    **low_precision_page.files(),
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/policies.md": policies_page.render,
    "docs/reference/prices.md": prices_page.render,
    "docs/reference/reference_configs.md": references_page.render,
    **references_page.files(),
    "docs/reference/sparse_attention.md": sparse_attention_page.render,
    "docs/reference/sparse_attention.svg": sparse_attention_page.drawn,
    "docs/reference/stages.md": stages_page.render,
    "docs/reference/triggers.md": triggers_page.render,
    "deploy/grafana/costgov.json": dashboard.render,
    "deploy/man/costgov.1": man_page.render,
    "policies/policy.schema.json": lambda: json.dumps(schema(), indent=1, ensure_ascii=False) + "\n",
    **{
        f"configs/{stage.name}/{which}.json": partial(stages_page.config_text, stage.name, which)
        for stage in STAGES
        for which in ("primary", "fallback")
    },
}


ROOT = Path(__file__).parents[2]


def main(pages: Mapping[str, Callable[[], str]] = PAGES) -> int:
    for name, render in pages.items():
        try:
            text = render()
        except AssertionError as error:
            if not str(error):
                raise
            # A file of a scanned folder does not have what its folder asks for, such as its name in NAME.
            sys.stderr.write(f"make docs: {name} is not drawn: {error}\n")
            return 2
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
