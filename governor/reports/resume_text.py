"""What stands between the resume command of a halt and a run that goes on: a checkpoint to name, a ceiling to raise."""

from __future__ import annotations

from governor.core.base.units import format_usd
from governor.text.moments import Snapshot
from governor.text.table import plain


def resume_from(snapshot: Snapshot) -> str | None:
    """For a trainer that begins anew unless it is told: the checkpoint, and how to tell it. None for any other."""
    path = (snapshot.get("last_good") or {}).get("path")
    if snapshot.get("framework") != "hf" or not path:
        return None
    return f'{plain(path)}: shim.resume() in the script, or trainer.train(resume_from_checkpoint="{plain(path)}")'


def resume_with(snapshot: Snapshot) -> str | None:
    """After a halt by a ceiling: the same command under the same ceiling would be halted at once. None else."""
    evidence = snapshot["evidence"]
    ceiling, reserve = evidence.get("ceiling_usd_micros"), evidence.get("reserve_usd_micros")
    spent = evidence.get("spend_usd_micros")
    if not (isinstance(ceiling, int) and isinstance(reserve, int) and isinstance(spent, int)):
        return None
    scope = str(evidence.get("scope", "run"))
    if scope == f"run:{snapshot['run']}":
        spent = max(spent, int(snapshot.get("spend_usd_micros") or 0))
    which = "--ceiling" if "--ceiling" in str(snapshot.get("resume")) else f"ceiling of {plain(scope)}"
    return (
        f"a higher {which} than {format_usd(ceiling)}: {format_usd(spent)} is spent, and {format_usd(reserve)} "
        "stays reserved for a halt"
    )
