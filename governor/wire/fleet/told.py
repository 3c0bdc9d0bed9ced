"""What a governor tells others ↔ the body of one datagram: JSON, of one run or of none.

A body is untrusted although it is signed: another version wrote it, or a governor that somebody else has taken over. It
becomes a `NodeTold` or a fault, never an exception. Fields that are not known here are a newer governor's, and ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, TypeGuard, cast

from governor.core.base.identity import RUN_NAME
from governor.core.base.printable import printable, storable
from governor.core.base.units import COUNT_MAX, NS_PER_MS, DurationNs
from governor.core.events.peers import (
    BEAT_NS,
    BEAT_NS_MAX,
    NODE_BYTES_MAX,
    NODES_MAX,
    RUNS_TOLD_MAX,
    NodeTold,
    ToldHalt,
    ToldRun,
)
from governor.wire.frames import WORLD_SIZE_MAX
from trainer_shim.wire import CHECKPOINT_KINDS

# A datagram with its envelope is at most 8 KiB: six fragments on Ethernet. A body leaves room for the envelope.
DATAGRAM_BYTES_MAX: Final = 8_192
BODY_BYTES_MAX: Final = 6_144

# In bytes of UTF-8. Quotes and backslashes take two in JSON: all names together stay below 6,000.
INCIDENT_BYTES_MAX: Final = 640  # It is made of run, node and rule.
RULE_BYTES_MAX: Final = 130
JOB_BYTES_MAX: Final = 256
TEXT_BYTES_MAX: Final = 512
WORD_BYTES_MAX: Final = 64  # Cloud, region, boot, stage.
_INSTANCE_BYTES_MAX: Final = 256

_UID_MAX: Final = 2**32 - 2  # The last one means none.
_COMMON: Final = ("node", "boot_id", "cloud", "instance_id", "region")
# A word for it that only a newer governor knows: saved beside the good ones, which is harmless whatever was meant.
_OTHER_CHECKPOINT: Final = "suspect"

_read_json = json.JSONDecoder().raw_decode
_JSON_SPACE = " \t\n\r"


def parts(told: NodeTold) -> tuple[NodeTold, ...]:
    """The message as datagrams carry it: one run each, halts first. A node without runs has one that is its beat."""
    runs = sorted(told.runs, key=lambda run: run.halt is None)[:RUNS_TOLD_MAX]
    return tuple(replace(told, runs=(run,)) for run in runs) or (told,)


def body(part: NodeTold) -> bytes:
    """One of the `parts` as JSON of at most BODY_BYTES_MAX. `left` is cut to what fits, a halt's text before that.

    ValueError: a name of the node or of its run is none that others would take.
    """
    document: dict[str, Any] = {name: getattr(part, name) for name in _COMMON}
    if part.beat_ns != BEAT_NS:
        document["beat_ms"] = part.beat_ns // NS_PER_MS
    if part.runs:
        run = _run_document(part.runs[0])
        document["run"] = run
        free = BODY_BYTES_MAX - len(_encoded(document))
        if free < 0:
            run["halt"]["text"] = ""
            free = BODY_BYTES_MAX - len(_encoded(document))
        run["left"] = _left_that_fits(part.runs[0].left, free)
    found = _encoded(document)
    assert len(found) <= BODY_BYTES_MAX, "names are longer than their bounds"
    fault = read(found)
    if isinstance(fault, str):
        raise ValueError(fault)
    return found


def read(data: bytes) -> NodeTold | str:
    """The message of a body, or what is wrong with it, in our own words."""
    try:
        text = data.decode("utf-8").strip(_JSON_SPACE)
        document, end = _read_json(text)
    # Also UnicodeError, and integers of thousands of digits.
    except (ValueError, RecursionError) as error:
        return f"not JSON: {type(error).__name__}"
    if end != len(text) or not isinstance(document, dict):
        return "not one JSON object"
    try:
        return _node(document)
    except _FaultError as fault:
        return str(fault)


class _FaultError(ValueError):
    """Names a field, and repeats nothing of it."""


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _run_document(run: ToldRun) -> dict[str, Any]:
    document: dict[str, Any] = {
        "run": run.run, "job": run.job, "uid": run.uid, "is_alive": run.is_alive, "ranks": run.ranks,
        "has_first": run.has_first, "step": run.step, "still_ns": _amount(run.still_ns), "is_excused": run.is_excused,
        "may_stop": run.may_stop, "left": [],
        "spend_usd_micros": _amount(run.spend_usd_micros),
        "rate_usd_micros_per_hour": _amount(run.rate_usd_micros_per_hour),
    }  # fmt: skip
    if run.halt is not None:
        document["halt"] = _halt_document(run.halt)
    return document


def _halt_document(halt: ToldHalt) -> dict[str, Any]:
    return {
        "incident_id": halt.incident_id, "node": halt.node, "rule": _cut(halt.rule, RULE_BYTES_MAX),
        "trigger": _cut(halt.trigger, WORD_BYTES_MAX),
        "reason": _cut(halt.reason, TEXT_BYTES_MAX), "text": _cut(halt.text, TEXT_BYTES_MAX),
        "checkpoint": halt.checkpoint, "stage": halt.stage, "gone": halt.gone, "stopped": halt.stopped,
        "verified": halt.verified,
    }  # fmt: skip


def _cut(text: str, bytes_max: int) -> str:
    """Words about a halt, which identify nothing: shorter rather than refused."""
    return storable(printable(text)).encode()[:bytes_max].decode("utf-8", "ignore")


def _amount(micros: int | None) -> int | None:
    return None if micros is None else min(micros, COUNT_MAX)


def _left_that_fits(left: tuple[tuple[str, int], ...], free: int) -> list[list[str | int]]:
    """The largest amounts first: what is left out is the least money."""
    found: list[list[str | int]] = []
    for node, micros in sorted(left, key=lambda one: (-one[1], one[0]))[:NODES_MAX]:
        entry: list[str | int] = [node, min(micros, COUNT_MAX)]
        size = len(json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()) + 1
        if size <= free:
            found.append(entry)
            free -= size
    return found


# --- reading ---------------------------------------------------------------------------------------------


def _node(document: dict[str, Any]) -> NodeTold:
    run = document.get("run")
    if run is not None and not isinstance(run, dict):
        raise _FaultError("run is no object")
    return NodeTold(
        node=_text(document, "node", NODE_BYTES_MAX),
        boot_id=_text(document, "boot_id", WORD_BYTES_MAX),
        cloud=_text(document, "cloud", WORD_BYTES_MAX),
        instance_id=_text_or_none(document, "instance_id", _INSTANCE_BYTES_MAX),
        region=_text_or_none(document, "region", WORD_BYTES_MAX),
        runs=() if run is None else (_run(run),),
        beat_ns=_beat_ns(document),
    )


def _beat_ns(document: dict[str, Any]) -> DurationNs:
    """An older governor tells none, and beats each second. No word makes a node's silence longer than our longest."""
    if "beat_ms" not in document:
        return DurationNs(BEAT_NS)
    return DurationNs(max(BEAT_NS, min(BEAT_NS_MAX, _count(document, "beat_ms", COUNT_MAX) * NS_PER_MS)))


def _run(found: dict[str, Any]) -> ToldRun:
    name = found.get("run")
    if not isinstance(name, str) or RUN_NAME.fullmatch(name) is None:
        raise _FaultError("run.run is no name of a run")
    halt = found.get("halt")
    if halt is not None and not isinstance(halt, dict):
        raise _FaultError("run.halt is no object")
    return ToldRun(
        run=name,
        job=_text(found, "job", JOB_BYTES_MAX),
        uid=_count(found, "uid", _UID_MAX),
        is_alive=_flag(found, "is_alive"),
        ranks=_count(found, "ranks", WORLD_SIZE_MAX),
        has_first=_flag(found, "has_first"),
        step=_count_or_none(found, "step"),
        still_ns=_count_or_none(found, "still_ns"),
        is_excused=_flag_or_none(found, "is_excused") or False,
        spend_usd_micros=_count_or_none(found, "spend_usd_micros"),
        rate_usd_micros_per_hour=_count_or_none(found, "rate_usd_micros_per_hour"),
        may_stop=_flag_or_none(found, "may_stop") or False,
        halt=None if halt is None else _halt(halt),
        left=tuple(_left(found.get("left", []))),
    )


def _halt(found: dict[str, Any]) -> ToldHalt:
    checkpoint = _text(found, "checkpoint", WORD_BYTES_MAX)
    return ToldHalt(
        incident_id=_text(found, "incident_id", INCIDENT_BYTES_MAX),
        node=_text(found, "node", NODE_BYTES_MAX),
        rule=_text(found, "rule", RULE_BYTES_MAX),
        trigger=_text(found, "trigger", WORD_BYTES_MAX, may_be_empty=True),
        reason=_text(found, "reason", TEXT_BYTES_MAX, may_be_empty=True),
        text=_text(found, "text", TEXT_BYTES_MAX, may_be_empty=True),
        checkpoint=checkpoint if checkpoint in (*CHECKPOINT_KINDS, "none") else _OTHER_CHECKPOINT,
        stage=_text(found, "stage", WORD_BYTES_MAX),
        gone=_flag(found, "gone"),
        stopped=_flag_or_none(found, "stopped"),
        verified=_flag_or_none(found, "verified"),
    )


def _left(found: object) -> Iterator[tuple[str, int]]:
    if not isinstance(found, list) or len(found) > NODES_MAX:
        raise _FaultError("run.left is no list, or too long")
    for one in found:
        if not isinstance(one, list) or len(one) != 2 or not _is_name(one[0], NODE_BYTES_MAX):
            raise _FaultError("run.left has an entry that is no node with an amount")
        if not _is_count(one[1], COUNT_MAX):
            raise _FaultError("run.left has an amount that is none")
        yield one[0], one[1]


def _is_name(value: object, bytes_max: int) -> bool:
    # Nothing that is printable is half of a surrogate pair, so it can be encoded.
    return isinstance(value, str) and value != "" and value.isprintable() and len(value.encode()) <= bytes_max


def _is_count(value: object, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _text(found: dict[str, Any], key: str, bytes_max: int, *, may_be_empty: bool = False) -> str:
    value = found.get(key)
    if not _is_name(value, bytes_max) and not (may_be_empty and value == ""):
        raise _FaultError(f"{key} is no printable text of at most {bytes_max} bytes")
    return cast(str, value)


def _text_or_none(found: dict[str, Any], key: str, bytes_max: int) -> str | None:
    return None if found.get(key) is None else _text(found, key, bytes_max)


def _count(found: dict[str, Any], key: str, most: int) -> int:
    value = found.get(key)
    if not _is_count(value, most):
        raise _FaultError(f"{key} is no whole number from 0 to {most}")
    return value


def _count_or_none(found: dict[str, Any], key: str) -> int | None:
    return None if found.get(key) is None else _count(found, key, COUNT_MAX)


def _flag(found: dict[str, Any], key: str) -> bool:
    value = found.get(key)
    if not isinstance(value, bool):
        raise _FaultError(f"{key} is neither true nor false")
    return value


def _flag_or_none(found: dict[str, Any], key: str) -> bool | None:
    return None if found.get(key) is None else _flag(found, key)
