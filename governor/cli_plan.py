"""`costgov plan …`: what a training would need, before a dollar is spent."""

from __future__ import annotations

import click

from governor.cli_plan_sparse import sparse


@click.group(short_help="What a training would need, before a dollar is spent.")
def plan() -> None:
    """Say what a training would need and gain, before a dollar is spent."""


plan.add_command(sparse)
