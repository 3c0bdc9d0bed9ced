"""What stands between the resume command of a halt and a run that goes on: a checkpoint to name, a ceiling to raise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD, format_usd
from governor.text.moments import Snapshot, none_is_left
from governor.text.table import plain

# The option of `costgov run` itself: only options and their values stand before it.
_CEILING: Final = re.compile(
    r"((?:^|&& )(?:\S*/)?costgov run (?:-[\w-]+(?:[ =](?:'[^']*'|[^\s'-]\S*))? )*?--ceiling[ =])"
    r"(\d+(?:\.\d+)?)(?=\s|$)"
)


BEGINS_ANEW: Final = (
    "add shim.resume() after attach(); the script has not called it, and begins at step 0 unless it loads this itself"
)


def resume_command(snapshot: Snapshot) -> str | None:
    """The command of the run, unless all that it can go on from is torn or not finite: it might take that."""
    last_good = snapshot.get("last_good")
    is_fit = last_good and not none_is_left(last_good)
    return snapshot.get("resume") if is_fit or refused(snapshot) is None else None


def resume_rows(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Label and text of each line that says how the run goes on, after a halt or another bad end. To be copied."""
    command = command_to_copy(snapshot)
    if command is None:
        return []
    told = (("resume from", resume_from(snapshot)), ("resume with", resume_with(snapshot)))
    return [("resume", plain(command)), *((label, text) for label, text in told if text is not None)]


def command_to_copy(snapshot: Snapshot) -> str | None:
    """resume_command() for people: after a halt by its own --ceiling with a higher one, which resume_with() names.

    What programs read keeps the old ceiling: none of them shall raise it by itself.
    """
    command, higher = resume_command(snapshot), _higher_ceiling(snapshot)
    if command is None or higher is None:
        return command
    return _CEILING.sub(lambda found: f"{found[1]}{_amount(higher)}", command, count=1)


def resume_from(snapshot: Snapshot) -> str | None:
    """For a trainer that begins anew unless it is told: the checkpoint, and how to tell it. None for any other.

    Whatever the trainer, it may have to be told where it takes the newest, and the newest is torn or not finite.
    """
    last_good = snapshot.get("last_good") or {}
    path = plain(last_good.get("path") or "")
    if not path or none_is_left(last_good):
        return None
    harmed = refused(snapshot)
    told = [f"not {harmed}"] if harmed is not None else []
    resumes = snapshot.get("resumes")
    if snapshot.get("framework") == "hf" and resumes != "called":
        told.insert(0, f'shim.resume() in the script, or trainer.train(resume_from_checkpoint="{path}")')
    elif resumes == "never":
        told.insert(0, BEGINS_ANEW)
    return f"{path}: {'; '.join(told)}" if told else None


def unseen_last_good(snapshot: Snapshot) -> list[str]:
    """What nobody has seen of the checkpoint that the report names."""
    last_good = snapshot.get("last_good") or {}
    if last_good.get("unseen"):
        return [f"The last good checkpoint was not looked at: {plain(last_good['unseen'])}."]
    if last_good.get("unsampled"):
        return [f"The weights of the last good checkpoint were not looked into: {plain(last_good['unsampled'])}."]
    return []


def refused(snapshot: Snapshot) -> str | None:
    """The newest checkpoint that was named as good and is not finite, or not whole, and why."""
    last_good = snapshot.get("last_good") or {}
    saved = snapshot.get("checkpoint") or {}
    # Only what is saved as good moves `latest`. One whose weights are not finite was saved as good too.
    halts_own = (saved,) if saved.get("kind") == "good" or saved.get("nonfinite") else ()
    for one in (last_good, *last_good.get("passed_over", ()), *halts_own):
        torn = torn_text(one)
        if one.get("nonfinite"):
            return f"{plain(one.get('path') or '?')} (NOT FINITE: {plain(one['nonfinite'])})"
        if torn is not None:
            return f"{plain(one.get('path') or '?')} (NOT WHOLE: {plain(torn)})"
    return None


def torn_text(checkpoint: Mapping[str, Any]) -> str | None:
    """What of a checkpoint is missing or cut short."""
    return checkpoint.get("torn") or checkpoint.get("fault")  # "fault": in older rows.


def resume_with(snapshot: Snapshot) -> str | None:
    """After a halt by a ceiling: the same command under the same ceiling would be halted at once. None else."""
    evidence = snapshot.get("evidence") or {}
    ceiling, reserve = evidence.get("ceiling_usd_micros"), evidence.get("reserve_usd_micros")
    spent = evidence.get("spend_usd_micros")
    if not (isinstance(ceiling, int) and isinstance(reserve, int) and isinstance(spent, int)):
        return None
    scope = str(evidence.get("scope", "run"))
    if scope == f"run:{snapshot['run']}":
        spent = max(spent, int(snapshot.get("spend_usd_micros") or 0))
    known = f"{format_usd(spent)} is spent, and {format_usd(reserve)} stays reserved for a halt"
    higher = _higher_ceiling(snapshot)
    if higher is not None:
        return (
            f"a higher --ceiling than {format_usd(ceiling)}: {known}. The command has {_amount(higher)}, "
            "the old one and as much again: write there what it may cost in all"
        )
    which = "--ceiling" if "--ceiling" in str(snapshot.get("resume")) else f"ceiling of {plain(scope)}"
    return f"a higher {which} than {format_usd(ceiling)}: {known}"


def _higher_ceiling(snapshot: Snapshot) -> int | None:
    """Micro-dollars: the ceiling of the command and as much again. None where another ceiling has halted it."""
    evidence = snapshot.get("evidence") or {}
    ceiling, found = evidence.get("ceiling_usd_micros"), _CEILING.search(str(snapshot.get("resume") or ""))
    if not isinstance(ceiling, int) or found is None or not str(evidence.get("scope", "run")).startswith("run"):
        return None
    return 2 * ceiling if round(float(found[2]) * MICROS_PER_USD) == ceiling else None


def _amount(micros: int) -> str:
    """As --ceiling takes it, exactly: 50, 0.50, 0.123456."""
    whole, part = divmod(micros, MICROS_PER_USD)
    digits = f"{part:06}".rstrip("0")
    return f"{whole}.{digits:0<2}" if digits else str(whole)
