"""The incident report, in Markdown for people and JSON for machines. Pure: a snapshot in, text out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from governor.core.base.printable import at_step, escaped
from governor.core.base.shell_words import REDACTED
from governor.core.base.units import MICROS_PER_USD, NS_PER_MS, NS_PER_S, format_duration
from governor.reports.incident.told import collectives_told, next_attempt, not_observed, summary
from governor.reports.node_stop import is_of_node, last_runs
from governor.reports.resume_text import (
    BEGINS_ANEW,
    command_to_copy,
    is_loaded,
    none_known,
    raised_command,
    refused,
    resume_command,
    resume_from,
    resume_with,
    sought_elsewhere,
)
from governor.reports.terminal import last_at_text, loss_text
from governor.text.failure_modes import modes_of
from governor.text.incident_money import spent_text, stays_billed_text, stop_target, without_unknown_spend
from governor.text.markdown import cell, literal, with_code
from governor.text.moments import Snapshot, last_good_text, moments, none_is_left, processes_text
from governor.text.nodes import decided_text, nodes_text
from governor.text.table import plain
from trainer_shim.wire import worded

SCHEMA: Final = "costgov.incident/1"
STACK_FRAMES_SHOWN: Final = 8  # The innermost frames. The JSON has all.


def incident_document(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as stored, plus what a reader would have to derive. Non-finite numbers are words.

    What was spent and is not known is null, under each of its names.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "summary": summary(snapshot),
        "not_observed": not_observed(snapshot),
        "failure_modes": [mode.row() for mode in modes_of(snapshot)],
        "since_verdict": [
            {
                "ms": round(moment.since_ns / NS_PER_MS, 3),
                "what": moment.what,
                "text": moment.text,
                "clock": "wall" if moment.by_wall else "monotonic",
            }
            for moment in moments(snapshot)
        ],
        "spend_usd": _usd(snapshot, "spend_usd_micros"),
        "spend_at_verdict_usd": _usd(snapshot, "spend_at_verdict_usd_micros"),
        **without_unknown_spend(snapshot),
    }
    if "resume" in snapshot:
        document["resume"] = resume_command(snapshot)
        document["resume_raised"] = raised_command(snapshot)
        document["resume_needs"] = resume_with(snapshot) if document["resume"] else None
    told: dict[str, Any] = worded(document)
    return told


def incident_json(snapshot: Snapshot) -> str:
    """The document as JSON. `default=str`: evidence is whatever a trigger recorded."""
    return json.dumps(incident_document(snapshot), indent=2, allow_nan=False, default=str) + "\n"


def incident_markdown(snapshot: Snapshot) -> str:
    """The document as Markdown."""
    sections = [
        f"# Incident {literal(snapshot['incident_id'])}",
        literal(summary(snapshot)),
        "\n".join(
            ["| | |", "|---|---|"] + [f"| {name} | {with_code(text)} |" for name, text in fact_rows(snapshot).items()]
        ),
        "## Timeline\n\n" + "\n".join(_timeline(snapshot)),
        "## What was not observed\n\n"
        + (
            "\n".join(f"- {literal(line)}" for line in not_observed(snapshot))
            or "Everything that was asked for was observed."
        ),
        *([] if is_of_node(snapshot) else [_ranks(snapshot)]),
        "## Evidence\n\n" + _evidence(snapshot),
    ]
    sections.extend(f"## Failure mode: {mode.name}\n\n{mode.advice}" for mode in modes_of(snapshot))
    command = command_to_copy(snapshot)
    if command:
        sections.insert(3, f"## Resume\n\n{_fenced([command])}\n\n{with_code(resume_advice(snapshot))}")
    elif snapshot.get("resume"):
        sections.insert(3, f"## Resume\n\n{with_code(resumes_from(snapshot))}")
    return "\n\n".join(sections) + "\n"


def fact_rows(snapshot: Snapshot) -> dict[str, str]:
    """Name and text of each. A text is one line of Markdown without links: paths stand between backquotes."""
    checkpoint = snapshot.get("checkpoint")
    last_good = snapshot.get("last_good")
    plan = {"processes": "the run's processes", "job": "the scheduler's job", "instance": "the instance"}
    machine = f"{snapshot.get('cloud') or 'none'} {snapshot.get('instance_id') or ''}".strip()
    rows = {
        "Opened": _wall(snapshot["opened_wall_ns"]),
        "Closed": _closed(snapshot),
        "Run": f"`{_inline(snapshot['run'])}`, attempt `{_inline(snapshot['attempt'])}`, uid {snapshot['uid']}"
        + (f", stage {_inline(snapshot['stage'])}" if snapshot.get("stage") else ""),
        "Trigger": f"`{_inline(snapshot['trigger'])}`, reason `{_inline(snapshot['reason'])}`",
        "Last known": f"{at_step(snapshot.get('step')).removeprefix('at ')}, loss {loss_text(snapshot.get('loss'))}, "
        f"tokens {_tokens(snapshot.get('tokens_total'))}{last_at_text(snapshot)}",
        "Checkpoint": f"`{_inline(checkpoint.get('path'))}`" if checkpoint else "none",
        "Last good": _last_good(last_good) if last_good else none_known(snapshot) or "none known",
        "Ended": f"{_inline(processes_text(snapshot) or 'no process was known')}; "
        f"plan: {plan.get(stop_target(snapshot), '?')}",
    }
    if is_of_node(snapshot):
        rows = {"Opened": rows["Opened"], "Closed": rows["Closed"], "Last runs": last_runs(snapshot)}
    if (decided := decided_text(snapshot)) is not None:
        rows["Decided"] = _inline(decided)
    rows |= {f"Node {number}": _inline(text) for number, text in enumerate(nodes_text(snapshot), start=1)}
    rows |= {
        "Machine": _inline(machine),
        "Spent": spent_text(snapshot),
        "Stays billed": _inline(stays_billed_text(snapshot)),
    }
    if (told := next_attempt(snapshot)) is not None:
        rows["Next attempt"] = _inline(told)
    return rows


def _last_good(last_good: Mapping[str, Any]) -> str:
    left = "NONE IS LEFT; " if none_is_left(last_good) else ""
    return f"{left}step {last_good.get('step')}, `{_inline(last_good_text(last_good))}`"


def _closed(snapshot: Snapshot) -> str:
    closed = snapshot.get("closed_wall_ns")
    if closed is None:
        return f"not yet: stage {snapshot['halt_stage']}"
    elapsed = max(0, closed - snapshot["opened_wall_ns"])
    return f"{_wall(closed)}, {snapshot['halt_stage']} after {format_duration(elapsed)}"


def _timeline(snapshot: Snapshot) -> list[str]:
    rows = ["| ms since verdict | | |", "|---:|---|---|"]
    for moment in moments(snapshot):
        about = "~" if moment.by_wall else ""
        rows.append(f"| {about}{moment.since_ns / NS_PER_MS:,.1f} | {cell(moment.label)} | {cell(moment.text)} |")
    return rows


def resume_advice(snapshot: Snapshot) -> str:
    """What has to be known to go on, beside the command."""
    other = snapshot["evidence"].get("resume_with")
    said = f" Not as it was started: the rule says to resume with {_inline(other)}." if other else ""
    told = [f" It needs {_inline(text)}." for text in (resume_with(snapshot),) if text is not None]
    hidden = REDACTED in str(snapshot["resume"])
    fill = f" It is shown without its secrets: fill in again what `{REDACTED}` stands for." if hidden else ""
    return resumes_from(snapshot) + said + "".join(told) + fill


def resumes_from(snapshot: Snapshot) -> str:
    """What it goes on from."""
    told, harmed = resume_from(snapshot), refused(snapshot)
    if harmed is not None and told is None:
        return (
            f"Nothing is known to resume from: {_inline(harmed.text)}. The command might take it, so it is not shown."
        )
    if told is not None and (BEGINS_ANEW in told or sought_elsewhere(snapshot) is not None):
        return f"To go on from {_inline(told)}."
    if told is not None and snapshot.get("framework") == "hf" and snapshot.get("resumes") != "called":
        return f"The Trainer begins anew unless it is told to go on from {_inline(told)}."
    if told is not None:
        return f"`latest` may name one that is not finite, or not whole: tell it to go on from {_inline(told)}."
    checkpoint = snapshot.get("checkpoint") or {}
    if checkpoint.get("nonfinite"):
        place, what = _inline(checkpoint.get("path")), _inline(checkpoint["nonfinite"])
        return f"Weights in {place} are not finite ({what}), and `latest` may name it: resume from another one."
    unknown = none_known(snapshot)
    if unknown is not None:
        known = unknown.removeprefix("none ")
        if not checkpoint:
            return f"No good checkpoint is {known}."
        return f"The checkpoint of this halt is suspect and `latest` was not moved; no good one before it is {known}."
    if checkpoint.get("kind") == "suspect" and (snapshot.get("last_good") or {}).get("gone"):
        return "The checkpoint of this halt is suspect, and the last good one is gone: nothing is known to resume from."
    if is_loaded(snapshot):
        return f"The script loads by its own means. The last good one that was seen is {_last_good_place(snapshot)}."
    if checkpoint.get("kind") == "suspect":
        return "The checkpoint of this halt is suspect and `latest` was not moved: this resumes from the last good one."
    return "It resumes from whatever `latest` names when it is started."


def _last_good_place(snapshot: Snapshot) -> str:
    known = snapshot.get("last_good") or snapshot.get("checkpoint") or {}
    return f"step {known.get('step')}, `{_inline(known.get('path'))}`"


def _ranks(snapshot: Snapshot) -> str:
    told = "\n\n".join(_rank(rank) for rank in snapshot["ranks"]) or "None was known."
    behind = "".join(f"\n- {literal(line)}" for line in collectives_told(snapshot))
    return f"## Ranks at the verdict\n\n{told}" + (f"\n\n## Collectives at the halt\n{behind}" if behind else "")


def _rank(rank: Mapping[str, Any]) -> str:
    head, collective = rank_words(rank)
    lines = [f"**rank {literal(rank['rank'])}** {with_code(head)}", literal(collective)]
    stack = list(rank.get("stack") or [])
    shown = stack[:STACK_FRAMES_SHOWN]
    if shown:
        left = [f"… {len(stack) - len(shown)} more"] if len(stack) > len(shown) else []
        lines.append(_fenced([*shown, *left]))
    return "\n\n".join(lines)


def rank_words(rank: Mapping[str, Any]) -> tuple[str, str]:
    """Where it was, as a fact's text is: names of others stand between backquotes. And its last collective, as text."""
    collective = rank.get("collective")
    head = (
        f"(pid {rank.get('pid', '?')}): phase {_inline(rank.get('phase') or 'unknown')}, "
        f"step {rank.get('step') if rank.get('step') is not None else 'unknown'}, "
        f"last hook {_code(rank.get('last_hook'))}"
    )
    if rank.get("device_wait"):
        head += f", waiting for the device in {_code(rank['device_wait'])}"
    return head, f"last collective: {_collective(collective) if collective else 'none seen'}"


def _collective(collective: Mapping[str, Any]) -> str:
    state = {True: "finished", False: "NOT finished"}.get(collective.get("done"), "state unknown")  # type: ignore[arg-type]
    count = f", number {collective['count']}" if collective.get("count") is not None else ""
    return f"{plain(collective.get('op', '?'))}{count}, {state}"


def _evidence(snapshot: Snapshot) -> str:
    if not snapshot["evidence"]:
        return "None was recorded."
    return "```json\n" + json.dumps(worded(dict(snapshot["evidence"])), indent=2, default=str) + "\n```"


def _usd(snapshot: Snapshot, key: str) -> float | None:
    known = without_unknown_spend(snapshot).get(key)
    return None if known is None else float(known) / MICROS_PER_USD


def _tokens(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def _wall(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _fenced(lines: Sequence[object]) -> str:
    """Untrusted lines as a block of code, which none of them can end."""
    shown = [escaped(str(line)) for line in lines]
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence, *shown, fence])


def _inline(value: object) -> str:
    """Untrusted text in a fact's: no line break, no code span. What else is markup is escaped where it is written."""
    return plain(value).replace("`", "'")


def _code(name: object) -> str:
    return f"`{_inline(name)}`" if name else "unknown"
