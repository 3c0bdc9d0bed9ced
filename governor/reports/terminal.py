"""The terminal's view of a run and of its halt: what `costgov run`, `incident show` and the demo print."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.units import (
    MICROS_PER_USD,
    NS_PER_MINUTE,
    NS_PER_S,
    format_duration,
    format_usd,
    is_spend_known,
    per_mtok_text,
)
from governor.core.engine.idle_state import NODE
from governor.core.halt.incident import NO_BOUNDARY
from governor.reports.resume_text import none_known, refused, resume_rows, steps_behind
from governor.text.incident_money import spent_text, stays_billed_text, unpriced_text
from governor.text.moments import Moment, Snapshot, last_good_text, moments, none_is_left, since_text
from governor.text.nodes import decided_text, nodes_text
from governor.text.screen import FILE, Screen, Styled, shown_lines, width
from governor.text.table import plain

# Half a terminal, so that the trainer's last output stays visible above.
LINES_MAX: Final = 25
LIVE_COLUMNS_MAX: Final = 100
_LIVE_LOSS, _LIVE_SPEED, _LIVE_PER_MTOK = 2, 3, 5  # Places in the live line.
_LABEL_COLUMNS: Final = 10
_NODES_SHOWN: Final = 8  # The report has all.
_SINCE_COLUMNS: Final = 9
_FOOT_COLUMNS: Final = 13
WASTE_TOLD_FRAC: Final = 0.05  # The closing line names a larger waste.
_NOT_FINISHED: Final = "NOT FINISHED"


def timeline_lines(snapshot: Snapshot, fault_mono_ns: int | None = None, screen: Screen = FILE) -> list[str]:
    """Return at most LINES_MAX aligned lines: the halt as observed, then money, checkpoint and resume.

    Times count from the fault if the caller knows it (a demo, a drill), else from the verdict. Nothing is cut. On a
    terminal a long line continues below its text.
    """
    origin = "fault" if fault_mono_ns is not None else "verdict"
    what = "NODE STOP" if snapshot["run"] == NODE else "HALT"
    head = f"{what} {plain(snapshot['incident_id'])} (times since the {origin})"
    foot = [(f"{label:<{_FOOT_COLUMNS}} {text}", may_wrap) for label, text, may_wrap in _foot(snapshot)]
    told = moments(snapshot, fault_mono_ns)
    shown = _shortened([_moment_line(moment) for moment in told], LINES_MAX - 1 - len(foot))
    if screen.columns is None:
        return [head, *shown, *(line for line, _ in foot)]
    hang = _SINCE_COLUMNS + 2 + _LABEL_COLUMNS + 1
    lines = shown_lines(Styled(head, "bold red"), screen)
    lines += [line for one in shown for line in shown_lines(one, screen, hang=hang - _lead(one))]
    for line, may_wrap in foot:
        style = "bold red" if line.startswith(_NOT_FINISHED) else ""
        # Text to copy is wrapped by the terminal only, which joins it again in the copy.
        lines += shown_lines(Styled(line, style), screen, hang=_FOOT_COLUMNS + 1) if may_wrap else [line]
    return lines


def _lead(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def is_spent_known(run_status: Mapping[str, Any]) -> bool:
    return is_spend_known(run_status.get("spend_rate_usd_per_hour"), run_status["spend_usd"])


def live_line(run_status: Mapping[str, Any], columns: int = LIVE_COLUMNS_MAX) -> str:
    """One line of at most `columns` columns from a run of the `status` answer. Unknown values show as "-".

    In a narrow line the least important parts go first: the price of tokens, the speed, the loss.
    """
    total = run_status.get("total_steps")
    step = f"step {_count(run_status.get('step'))}" + (f"/{total:,}" if total else "")
    spend = format_usd(round(float(run_status["spend_usd"]) * MICROS_PER_USD))
    known = is_spent_known(run_status)
    per_mtok = run_status.get("usd_per_mtok")
    stepless_s = run_status.get("stepless_s")
    parts = [
        f"{plain(run_status.get('state', '?')):<10}",
        f"{step:<12}",
        f"loss {loss_text(run_status.get('loss'))}",
        f"{_count(run_status.get('tokens_per_s'))} tok/s" if stepless_s is None else no_step_text(stepless_s),
        spend if known else _unpaid(run_status),
        (_per_mtok(per_mtok) if per_mtok is not None else "$ -") + "/1M now",
    ]
    if run_status.get("loss_unseen_steps"):
        parts.append("NO LOSS SEEN")
    if run_status.get("unwatched_beside"):
        parts.append("TRAINS MORE, UNWATCHED")
    halt, hold = run_status.get("halt"), run_status.get("hold")
    if halt:
        parts.append(f"{halt['stage']}: {plain(halt['reason'])}")
    elif hold:
        parts.append(f"HELD {format_duration(round(hold['left_s'] / 60) * NS_PER_MINUTE)}")
    # From the right, so that the places of the other parts stay valid.
    for spared in (_LIVE_PER_MTOK, _LIVE_SPEED, _LIVE_LOSS):
        if width("  ".join(parts)) > columns < LIVE_COLUMNS_MAX:
            del parts[spared]
    return _cut("  ".join(parts), columns)


def no_step_text(stepless_s: float) -> str:
    """What stands in the place of a speed that is no longer the present one."""
    return f"no step for {format_duration(round(stepless_s) * NS_PER_S)}"


def stands_still_text(run: Mapping[str, Any]) -> str | None:
    """Of a run of the `status` answer for which no step has come for long: when it is halted, and how to look at it."""
    if run.get("stepless_s") is None or run.get("halt"):
        return None
    text, left_s = no_step_text(run["stepless_s"]), run.get("halts_in_s")
    if left_s is not None:
        text += f": halts in {format_duration(round(left_s) * NS_PER_S)} if none comes"
    return f"{text}; costgov evidence {plain(run['run'])}" if run.get("ranks_connected") else text


def closing_line(run_status: Mapping[str, Any], ended: str) -> str:
    """A run's result in one uncut line: a path in it is there to be copied."""
    total = run_status.get("total_steps")
    step, tokens = run_status.get("step"), run_status.get("tokens_total")
    saved = run_status.get("last_good")
    known = is_spent_known(run_status)
    spend = format_usd(round(float(run_status["spend_usd"]) * MICROS_PER_USD))
    parts = [
        f"{run_status['run']}: {ended}",
        "no step was seen" if step is None else f"step {_count(step)}" + (f"/{total:,}" if total else ""),
        *([f"{_count(tokens)} tokens{_twice(run_status)}{last_at_text(run_status)}"] if tokens else []),
        f"spent {spend if known else _unpaid(run_status)}",
        *command_ceiling_text(run_status),
        *token_prices_text(run_status),
        *wasted_text(run_status, WASTE_TOLD_FRAC),
        f"last checkpoint: step {_count(saved.get('step'))}, {last_good_text(saved)}"
        if saved
        else "no checkpoint seen",
    ]
    return plain("; ".join(parts))


def _twice(run_status: Mapping[str, Any]) -> str:
    """The all-in price is over these too."""
    wasted = run_status.get("tokens_wasted")
    return f" (and {_count(wasted)} trained again)" if wasted else ""


def last_at_text(told: Mapping[str, Any]) -> str:
    """Where the last step was, if that is behind all that the run has trained. Else empty."""
    at = told.get("tokens_at")
    return f", last at {_count(at)}" if at is not None and at != told.get("tokens_total") else ""


def command_ceiling_text(run_status: Mapping[str, Any]) -> list[str]:
    """How far the ceiling is used that counts more than this run: other users' runs below its command. Else empty."""
    cap = run_status.get("command_ceiling")
    if cap is None:
        return []
    spend, ceiling = (format_usd(round(float(cap[key]) * MICROS_PER_USD)) for key in ("spend_usd", "ceiling_usd"))
    return [f"{cap['scope']}: {spend} of {ceiling} spent, by all runs of its command"]


def token_prices_text(run_status: Mapping[str, Any]) -> list[str]:
    """What a million tokens cost in all; and without what was trained twice, where anything was. Empty if unknown."""
    all_in, useful = run_status.get("usd_per_mtok_all_in"), run_status.get("usd_per_mtok_useful")
    if all_in is None:
        unpriced_s = run_status.get("unpriced_s")
        if not unpriced_s or not is_spent_known(run_status):
            return []
        return [unpriced_text(round(unpriced_s * NS_PER_S))]
    twice = f" ({_per_mtok(useful)} useful)" if useful is not None and useful != all_in else ""
    return [f"{_per_mtok(all_in)}/1M tokens all-in{twice}"]


_CAUSES: Final = {
    # All that an attempt costs until a step of it ends, also while it hangs there: the ledger does not know why.
    "start_up": "until its first step",
    "after_last_step": "after the last step",
    "halt": "in a halt",
    "trained_twice": "for tokens trained twice",
}


def wasted_text(run_status: Mapping[str, Any], above_frac: float = 0.0) -> list[str]:
    """What bought no training that lasts, by cause. Empty where that is no larger part of the spend, or nothing known.

    Where some of the run's time has no price it is the least that it can be, and is told in any case.
    """
    wasted, spent = run_status.get("wasted_usd"), run_status["spend_usd"]
    is_part = bool(run_status.get("unpriced_s"))
    if is_part and not wasted and wasted is not None and is_spent_known(run_status):
        return ["what it wasted is unknown"]
    if not wasted or (wasted <= above_frac * spent and not is_part):
        return []
    # That is training if another step comes, and has no cause before: see core.money.waste.
    stands = ", without what is spent since its last step" if _is_standing(run_status) else ""
    by_cause = run_status.get("wasted_usd_by_cause") or {}
    parts = [f"{_dollars(amount)} {_CAUSES.get(cause, cause)}" for cause, amount in by_cause.items() if amount]
    causes = f" ({', '.join(parts)})" if parts else ""
    return [f"wasted {'at least ' if is_part else ''}{_dollars(wasted)}{causes}{stands}"]


def _is_standing(run_status: Mapping[str, Any]) -> bool:
    is_open = not run_status.get("halt") and run_status.get("end") is None and run_status.get("state") != "finished"
    return run_status.get("stepless_s") is not None and run_status.get("step") is not None and is_open


def _dollars(amount: float) -> str:
    return format_usd(round(amount * MICROS_PER_USD))


def _per_mtok(dollars: float) -> str:
    return per_mtok_text(round(dollars * MICROS_PER_USD))


def _unpaid(run_status: Mapping[str, Any]) -> str:
    payer = run_status.get("paid_by")
    return "$ - (no price)" if payer is None else f"$ - (paid by {plain(payer)})"


def loss_text(loss: object) -> str:
    """A loss as text. Non-finite losses arrive as floats or as the wire's words; None is absent."""
    if loss is None:
        return "-"
    if isinstance(loss, (int, float)) and math.isfinite(loss):
        return f"{loss:.4f}"
    return {"inf": "Inf", "-inf": "-Inf"}.get(str(loss), "NaN")


def _count(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def _moment_line(moment: Moment) -> str:
    since = ("~" if moment.by_wall else "") + since_text(moment.since_ns)
    return f"{since:>{_SINCE_COLUMNS}}  {moment.label:<{_LABEL_COLUMNS}} {moment.text}".rstrip()


def _shortened(lines: list[str], limit: int) -> list[str]:
    """Leave out the middle: the reader wants to see how it began and how it ended."""
    if len(lines) <= limit:
        return lines
    tail = limit // 2
    head = limit - tail - 1
    gap = f"{'…':>{_SINCE_COLUMNS}}  {len(lines) - head - tail} more in the incident report"
    return [*lines[:head], gap, *lines[-tail:]]


def _foot(snapshot: Snapshot) -> list[tuple[str, str, bool]]:
    """Label, text, and whether we may wrap it: paths and commands are there to be copied."""
    rows: list[tuple[str, str, bool]] = []
    if snapshot.get("closed_wall_ns") is None:
        goes_on = "its governor goes on with it, or else the next one that is started"
        rows.append((_NOT_FINISHED, f"stage {snapshot['halt_stage']}; {goes_on}", True))
    rows += [("decided", text, True)] if (text := decided_text(snapshot)) is not None else []
    rows += [("node", text, True) for text in nodes_text(snapshot)[:_NODES_SHOWN]]
    rows.append(("spent", spent_text(snapshot), True))
    rows.append(("stays billed", stays_billed_text(snapshot), True))
    checkpoint = snapshot.get("checkpoint")
    if checkpoint:
        by, step = checkpoint.get("verified_by", "nobody"), f"{checkpoint.get('step', '?')}{steps_behind(snapshot)}"
        text = f"{checkpoint.get('kind', '?')}, step {step}, verified by {by}"
        rows.append(("checkpoint", plain(f"{text}: {checkpoint.get('path', '?')}"), False))
    elif snapshot["run"] != NODE:
        why = boundary_missed(snapshot)
        rows.append(("checkpoint", f"none was saved by this halt{f': {why}' if why is not None else ''}", True))
    last_good = snapshot.get("last_good")
    if last_good and last_good.get("path") != (checkpoint or {}).get("path"):
        left = "NONE IS LEFT; " if none_is_left(last_good) else ""
        text = f"{left}step {last_good.get('step', '?')}: {last_good_text(last_good)}"
        rows.append(("last good", plain(text), False))
    elif snapshot["run"] != NODE:
        rows += _none_known(snapshot)
    rows += _resume(snapshot)
    if snapshot["run"] != NODE:
        rows.append((*_whole_run(snapshot["run"]), False))
    rows.append(("report", f"costgov incident show {plain(snapshot['incident_id'])}", False))
    return rows


def boundary_missed(snapshot: Snapshot) -> str | None:
    """Which rank came to no step boundary while it was asked to save. None: each did, or none was asked."""
    return next((moment.text for moment in moments(snapshot) if moment.what == NO_BOUNDARY), None)


def _none_known(snapshot: Snapshot) -> list[tuple[str, str, bool]]:
    known = none_known(snapshot)
    return [] if known is None else [("last good", known, False)]


def _resume(snapshot: Snapshot) -> list[tuple[str, str, bool]]:
    rows = [(label, text, False) for label, text in resume_rows(snapshot)]
    if not rows and snapshot.get("resume"):
        harmed = refused(snapshot)
        what = harmed.lacks if harmed is not None else "whole"
        why = f"no known checkpoint is {what}, and the command might take one that is not"
        return [("resume", f"not shown: {why}", True)]
    return rows


def resume_lines(snapshot: Snapshot) -> list[str]:
    """How a run goes on that has ended badly without a halt, in the words of a halt. Nothing is cut."""
    rows = _resume(snapshot)
    if rows and snapshot.get("resumes") is not None:  # Of a command that nobody has attached nothing is expected.
        rows = [*_none_known(snapshot), *rows]
    return [f"{label:<{_FOOT_COLUMNS}} {text}" for label, text, _ in rows]


def _whole_run(run: str) -> tuple[str, str]:
    return "whole run", f"costgov report {plain(run)}"


def report_line(run: str) -> str:
    """Where the whole account of a run is that has ended without a halt, in the words of a halt."""
    label, text = _whole_run(run)
    return f"{label:<{_FOOT_COLUMNS}} {text}"


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: columns - 1].rstrip() + "…"
