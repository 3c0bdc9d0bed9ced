"""Ranks are started here as they are for the engines of the shim."""

from tests.drills.shim_engines.conftest import run_ranks, warm

__all__ = ["run_ranks", "warm"]
