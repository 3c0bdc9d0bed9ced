"""The wire between a training rank and the governor: one JSON object per SEQPACKET packet.

This table is the only definition of the format. The shim builds frames from it, `governor.wire`
validates against it, and the JSONL stream is the same objects one per line.

Rules that the table cannot say:
- Numbers that are not finite travel as the strings "nan", "inf", "-inf". `null` means absent.
- `mono_ns` is CLOCK_MONOTONIC of the sender's node: of a step, its end, by which the governor says what it cost. It
  decides on arrival.
- `hello`, `ack` and `bye` carry `seq` and are resent until the governor answers `confirm`.
  `step`, `beat` and `phase` are sent once; what was dropped is counted in `dropped`.
- Unknown fields are ignored by the receiver, so a newer shim can talk to an older governor.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional

WIRE_VERSION = 1
FRAME_BYTES_MAX = 64 * 1024  # SEQPACKET packets above ~212 kB are EMSGSIZE; a beat is ~2 kB.
TEXT_CHARS_MAX = 512  # A label, a reason, a path: longer is truncated by the shim, refused by the governor.
PATH_CHARS_MAX = 4096  # PATH_MAX.
LIST_ITEMS_MAX = 64  # Stack frames and GPU uuids: deeper stacks say nothing more.
LABELS_MAX = 32  # Prometheus label sets above this are a cardinality accident.
OUTBOX_SLOTS = 16  # hello + the acks of two incidents + bye, twice over.
BEAT_PERIOD_S = 1.0
PROFILE_STEPS_MAX = 10  # A profiled step takes two to three times as long.

# Innermost activity of a rank's main thread, as `phase` and `beat` frames name it.
PHASES = ("init", "compile", "train", "eval", "agree", "checkpoint", "idle", "finish")
# What a rank reports about an incident, in the order in which it can happen.
ACKS = ("received", "agreed", "saving", "saved", "failed", "aborted", "merged", "declined")
CHECKPOINT_KINDS = ("good", "suspect", "none")
CAPABILITIES = ("ask", "agree", "beat", "exit_after", "durable", "timing", "show")
# Why a halt is asked for where a step's own values are what is wrong: each rank knows whether they were finite before.
# As the governor's trigger `nonfinite` calls it, which may not import this; a test plays each.
REASONS_OF_VALUES = ("loss_nan", "loss_inf", "gradient_nonfinite")
# Under `costgov run` a halted command ends with this code, which schedulers read as do-not-requeue.
# 75 (EX_TEMPFAIL) invites a retry, 1 is every crash: 86 is unused by sysexits, shells and torchrun.
HALT_EXIT_CODE = 86


class Field(NamedTuple):
    """One field: `kind` is int|num|str|path|bool|map|texts|record; absent and null are the same."""

    kind: str
    required: bool = False


_HEAD = {"v": Field("int", True), "kind": Field("str", True), "rank": Field("int", True), "mono_ns": Field("int", True)}
_RELIABLE = dict(_HEAD, seq=Field("int", True))
_COUNTED = dict(_HEAD, dropped=Field("map"))  # {"step": n, "beat": n, "phase": n} since hello.

FRAMES: Dict[str, Dict[str, Field]] = {
    "hello": dict(
        _RELIABLE,
        run=Field("str", True),  # Stable over restarts; owned by the first uid seen with it.
        attempt=Field("str", True),  # One launch: changes with every restart of the launcher or agent.
        stage=Field("str"),
        local_rank=Field("int", True),
        world_size=Field("int", True),
        labels=Field("map"),  # str -> str, for policy `match` and metrics.
        gpu_uuids=Field("texts"),
        framework=Field("str"),  # deepspeed | pipeline | hf | lightning | composer | megatron | torch
        zero_stage=Field("int"),
        parameters=Field("int"),
        tokens_per_step=Field("int"),  # Whole global batch; absent where it varies (then `step.tokens`).
        # Of ranks that see different tokens: how many there are, and this one's number among them. Ranks of one number
        # see the same tokens. Known with the first batch: then hello comes again.
        data_parallel_size=Field("int"),
        data_parallel_rank=Field("int"),
        total_steps=Field("int"),
        checkpoint_dir=Field("path"),
        resume_argv=Field("texts"),  # Command line of this rank, for the resume command.
        cwd=Field("path"),
        signal=Field("int", True),  # SignalWakeup signal number; 0 = none: requests come by the socket alone.
        capabilities=Field("texts"),
        shim_version=Field("str"),
        started_mono_ns=Field("int"),  # attach() was called then: start of the attempt as the rank knows it.
        resumed_step=Field("int"),
        # Where what this run trains began: {} with nothing, {"run", "step", "tokens_total"} with that checkpoint of
        # another run, whose total may be missing. Absent: nobody knows.
        origin=Field("record"),
        loaded_at=Field("int"),  # `step.attempt_step` behind which `origin` holds: earlier steps may arrive after it.
        resume_called=Field("bool"),  # Whether resume() was called where a directory was known, whatever came of it.
        # {"step", "tokens_total", "path", "mono_ns"} of the newest whole checkpoint. "sought_in": resume(), as it was
        # called, looks there and not where that is. "own_finite": all trained parameters were finite in this rank's
        # part; "trained_finite": in every rank's.
        last_good=Field("record"),
        # {"step", "path"} of the newest one saved while a trained parameter in this rank's part was not finite.
        harmed_save=Field("record"),
        # The class of another object of this process that attach() was given while this one trains: it is not watched.
        beside=Field("str"),
        mark=Field("int"),  # mark.py: believed if the kernel says the same of the sender.
        job=Field("str"),  # What all ranks of one start, on all nodes, call their launch. Settled in their store.
        master=Field("str"),  # MASTER_ADDR, unless that is a loopback.
        open_incident=Field("record"),  # On reconnect: {"incident", "what", "step"} as the rank knows it.
    ),
    "step": dict(
        _COUNTED,
        step=Field("int", True),  # Optimizer updates, absolute over the run.
        attempt_step=Field("int", True),
        tokens=Field("int"),  # Of this step's whole global batch, counted once whatever the parallelism.
        tokens_total=Field("int"),  # Absolute over the run, from the checkpoint's count on resume.
        tokens_nonpad=Field("int"),  # Those of `tokens` that are no padding, where an attention mask tells.
        # This rank's own, since attach() or its last resume. `tokens` are such a rank's times data_parallel_size.
        tokens_own_total=Field("int"),
        nonpad_own_total=Field("int"),
        loss=Field("num"),  # This rank's, taken at backward.
        loss_expected=Field("bool"),  # True when a loss should be there: then null means it vanished.
        grad_norm=Field("num"),  # Absent when the engine's value is known to be stale (overflow).
        grad_finite=Field("bool"),  # Where no norm is known: whether a sample of this rank's gradient is finite.
        lr=Field("num"),
        loss_scale=Field("num"),
        skipped_steps=Field("int"),  # Cumulative since launch.
        applied=Field("bool"),  # The optimizer update happened.
        step_s=Field("num"),  # Wall time since the previous step's end; the parts below sum to it with `other`.
        data_s=Field("num"),  # Waiting for data; see `data_bound`.
        forward_s=Field("num"),  # To the start of backward(), where that is seen: the loop computes its loss there.
        backward_s=Field("num"),
        optimizer_s=Field("num"),
        checkpoint_s=Field("num"),
        hold_s=Field("num"),  # Waiting for the agreement.
        # "Of which": both lie in the parts above, never in each other. In collectives by the host's clock, in none of
        # a save or an evaluation. Absent where the step's were not read; 0 where it had none (torch_comm.py).
        comm_s=Field("num"),
        comm_between_s=Field("num"),  # Of it: between the passes, so in loop_s, or in data_s. Absent: none.
        recompute_s=Field("num"),  # Of the backward pass, in computing again what activation checkpointing left out.
        device_timed=Field("bool"),  # Parts come from device events, not the host clock.
        mem_allocated_bytes=Field("int"),
        mem_reserved_bytes=Field("int"),
        rss_bytes=Field("int"),
        progress_seq=Field("int"),
        # Two more parts of step_s: evaluation (absent: none), and the loop's own code between (micro-)steps. Where no
        # fetch of data was seen, `data_s` has that code, too, and is an upper bound: `data_bound` stands for `loop_s`.
        eval_s=Field("num"),
        loop_s=Field("num"),
        data_bound=Field("bool"),
        bubble_s=Field("num"),  # A part, too: a stage of a pipeline sends, receives and waits for other stages.
        # Of optimizer_s, where the configuration offloads the optimizer: its steps on the CPU, and the copies behind.
        offload_s=Field("num"),
    ),
    "phase": dict(
        _COUNTED,
        phase=Field("str", True),
        step=Field("int"),
        detail=Field("str"),
        since_ns=Field("int"),  # mono_ns when it began, where that was seen only later. Absent: it begins now.
        progress_seq=Field("int"),
        failure=Field("record"),  # {"name", "text", "place", "thread"} of an exception that nobody caught.
    ),
    "beat": dict(
        _COUNTED,
        progress_seq=Field("int", True),  # Bumped by the training thread at every hook.
        phase=Field("str", True),
        phase_since_ns=Field("int", True),  # mono_ns of the last phase change.
        step=Field("int"),
        in_step=Field("bool"),  # The last hook was inside an optimizer step (forward .. step end).
        last_hook=Field("str"),  # forward, backward, step, pipe:<Instruction>, comm:<op>, data, boundary
        last_hook_ns=Field("int"),
        device_wait=Field("str"),  # item|cpu|tolist|synchronize|wait|barrier when innermost, else absent.
        stack=Field("texts"),  # Innermost first, "file.py:function:line".
        stack_digest=Field("str"),
        collective=Field("record"),  # {"op", "count", "entered_ns", "done": bool} last one entered.
        # Data that the main thread fetched: {"longest_ns", "since_ns", "starts"}. `since_ns` only while it is inside a
        # fetch, `starts` only for a loader's first batch: how often that loader was started before. Absent: unknown.
        fetch=Field("record"),
        # Forward passes since the last optimizer step, where several steps would have been made of so many: {"count",
        # "seen", "nonfinite"}: at how many outputs, or told losses, the shim has looked, and how many are not finite.
        forwards=Field("record"),
        main_cpu_ns=Field("int"),
    ),
    "ack": dict(
        _RELIABLE,
        incident=Field("str", True),
        what=Field("str", True),
        step=Field("int"),
        reason=Field("str"),
        merged_into=Field("str"),
        exit_after=Field("bool"),  # What the request said: a governor that did not write it joins only a halt.
        checkpoint=Field("record"),  # {"path", "manifest", "files", "bytes", "hashed": bool, "kind", "tokens_total"}
    ),
    "bye": dict(_RELIABLE, reason=Field("str"), step=Field("int"), completed=Field("bool")),
    # The answer to a `show`. Sent once, and lost where nobody reads it.
    "shown": dict(
        _HEAD,
        look=Field("str", True),  # As the `show` has it.
        what=Field("str", True),
        # Of `collectives`, each a JSON list: group, number, operation, state, sizes, p2p, over. Oldest first.
        entries=Field("texts"),
        path=Field("path"),  # Of `profile`: where the trace is.
        step=Field("int"),  # Of `profile`: the last step in it.
        problem=Field("str"),  # Why there is nothing to show, in one line.
    ),
}

# Governor -> rank.
GOVERNOR_FRAMES: Dict[str, Dict[str, Field]] = {
    "letter": {
        "v": Field("int", True),
        "kind": Field("str", True),
        "incident": Field("str", True),
        "checkpoint": Field("str", True),  # good | suspect | none
        "deadline_mono_ns": Field("int", True),  # The governor gives up waiting then; a save begun is finished.
        "exit_after": Field("bool", True),  # True: park after the save until ended. False: train on.
        "exit_code": Field("int", True),
        "reason": Field("str"),
    },
    # Only to ranks that have said `show` among their capabilities: an older shim would complain of it.
    "show": {
        "v": Field("int", True),
        "kind": Field("str", True),
        "look": Field("str", True),
        "what": Field("str", True),  # collectives | profile
        "steps": Field("int"),  # Of `profile`.
    },
    "confirm": {"v": Field("int", True), "kind": Field("str", True), "seq": Field("int", True)},
    "refuse": {"v": Field("int", True), "kind": Field("str", True), "reason": Field("str", True)},
}


def _make_encode() -> Callable[[Any], str]:
    # Made once: json.dumps() with any option builds an encoder at each call. Frames are trees, so no circularity check.
    encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)
    # encode() itself makes the C one anew at each call.
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # An interpreter without the C accelerator.
        return encoder.encode
    in_c = make(None, encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda value: "".join(in_c(value, 0))


_encode = _make_encode()
_WORDS_OF_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(frame: Dict[str, Any]) -> bytes:
    """Return one packet. Non-finite floats become words. ValueError when it exceeds FRAME_BYTES_MAX."""
    return _packet(_text(frame))


def encode_post(kind: str, rank: int, mono_ns: int, fields: Dict[str, Any]) -> bytes:
    """Return encode() of head() and `fields`, without building that frame: a fifth less time, at every step."""
    assert fields, "a frame says something"
    opened = '{"v":%d,"kind":"%s","rank":%d,"mono_ns":%d,' % (WIRE_VERSION, kind, rank, mono_ns)
    return _packet(opened + _text(fields)[1:])


def _text(frame: Dict[str, Any]) -> str:
    try:
        return _encode(frame)
    except ValueError:
        return _encode(worded(frame))


def _packet(text: str) -> bytes:
    packet = text.encode("ascii")  # What is not ASCII was escaped.
    if len(packet) > FRAME_BYTES_MAX:
        raise ValueError("frame of %d bytes exceeds %d" % (len(packet), FRAME_BYTES_MAX))
    return packet


def number(value: Any) -> Optional[float]:
    """Read a `num`: a JSON number, one of the three words, or None for absent. ValueError otherwise."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and value in _WORDS_OF_NONFINITE:
        return _WORDS_OF_NONFINITE[value]
    raise ValueError("not a number: %.40r" % (value,))


def head(kind: str, rank: int, mono_ns: int) -> Dict[str, Any]:
    """Return the fields that every frame starts with."""
    return {"v": WIRE_VERSION, "kind": kind, "rank": rank, "mono_ns": mono_ns}


def faults(frame: Any, table: Dict[str, Dict[str, Field]]) -> List[str]:
    """Name everything that is wrong with a decoded frame; empty when it is valid."""
    if not isinstance(frame, dict):
        return ["not an object"]
    if frame.get("v") != WIRE_VERSION:
        return ["version %.20r is not %d" % (frame.get("v"), WIRE_VERSION)]
    kind = frame.get("kind")
    fields = table.get(kind) if isinstance(kind, str) else None
    if fields is None:
        return ["unknown kind %.40r" % (kind,)]
    found: List[str] = []
    if _is_right(frame, fields):
        return found
    for name, field in fields.items():
        value = frame.get(name)
        if value is None:
            if field.required:
                found.append("%s.%s is missing" % (kind, name))
        elif not _CHECKS[field.kind](value):
            found.append("%s.%s is not %s" % (kind, name, field.kind))
    return found


def _is_right(frame: Dict[str, Any], fields: Dict[str, Field]) -> bool:
    """Whether nothing is wrong with a frame of one of the tables here. Faster than to look for what is.

    It walks the frame instead of the table, of which a step has half the fields, and avoids a call per number.
    """
    if id(fields) not in _FAST:
        return False
    required, kinds = _FAST[id(fields)]
    for name in required:
        if frame.get(name) is None:
            return False
    for name, value in frame.items():
        is_a = type(value)
        want = kinds.get(name)
        if is_a is float:
            if want == "num":
                continue
        elif is_a is int:
            if (want == "int" or want == "num") and _INT_MIN <= value < _INT_END:
                continue
        elif is_a is bool and want == "bool":
            continue
        if value is not None and want is not None and not _CHECKS[want](value):
            return False
    return True


# 2**63: monotonic nanoseconds and token counts fit with centuries to spare.
_INT_MIN, _INT_END = -(2**63), 2**63


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and _INT_MIN <= value < _INT_END


def _is_num(value: Any) -> bool:
    if isinstance(value, str):
        return value in _WORDS_OF_NONFINITE
    return isinstance(value, float) or _is_int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_CHARS_MAX


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= PATH_CHARS_MAX and "\0" not in value


def _is_map(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= LABELS_MAX
        and all(_is_text(k) and (_is_text(v) or _is_int(v)) for k, v in value.items())
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= LIST_ITEMS_MAX and all(_is_path(v) for v in value)


def _is_record(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= LABELS_MAX
        and all(
            _is_text(k) and (v is None or isinstance(v, bool) or _is_num(v) or _is_path(v)) for k, v in value.items()
        )
    )


_CHECKS = {
    "int": _is_int,
    "num": _is_num,
    "str": _is_text,
    "path": _is_path,
    "bool": lambda value: isinstance(value, bool),
    "map": _is_map,
    "texts": _is_texts,
    "record": _is_record,
}

# By the identity of a kind's fields: what of them has to be there, and of which kind each is.
_FAST = {
    id(fields): (frozenset(n for n, f in fields.items() if f.required), {n: f.kind for n, f in fields.items()})
    for table in (FRAMES, GOVERNOR_FRAMES)
    for fields in table.values()
}


def worded(value: Any) -> Any:
    """Return a copy in which non-finite floats are the wire's words: strict JSON has no other way to say them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: worded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [worded(v) for v in value]
    return value
