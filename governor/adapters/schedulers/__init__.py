"""Schedulers whose jobs a halt may end, one module each. `found` tells which one manages this machine."""

from __future__ import annotations

from collections.abc import Mapping

from governor.adapters.schedulers.slurm import Slurm
from governor.remote_ports import Scheduler


def found(use: str, environ: Mapping[str, str]) -> Scheduler | None:
    """Slurm, if `use` ("auto" | "on" | "off") and the surroundings say so. Asks the controller once for its times."""
    return Slurm.of(use, environ)
