"""The variables of a CEL expression in a policy: one number or string each, of the run that it judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_S, MonoNs, is_spend_known
from governor.core.money import steady
from governor.core.money.token_price import whole_micros
from governor.core.runs.state import Run

Value = int | float | str
GPUS_FRESH_NS: Final = 30 * NS_PER_S  # Samples come every few seconds; an older one is out of date.

INT: Final = "int"
DOUBLE: Final = "double"
STRING: Final = "string"


@dataclass(frozen=True, slots=True)
class Variable:
    kind: str  # INT, DOUBLE or STRING, as CEL calls them.
    meaning: str
    read: Callable[[Run, MonoNs], Value | None]  # None: unknown now.


def _since(then: MonoNs | None, at: MonoNs) -> float | None:
    return None if then is None else max(0, at - then) / NS_PER_S


def _usd(micros: int | None) -> float | None:
    return micros / MICROS_PER_USD if micros is not None else None


def _price(per_mtok: Fraction | None) -> float | None:
    """As every view shows it."""
    return _usd(whole_micros(per_mtok))


def _settled(run: Run, per_mtok: Fraction | None) -> float | None:
    """Unknown while tokens of its money may not have been told."""
    return _price(per_mtok) if run.unheard_ns is None else None


def _spend(run: Run, _at: MonoNs) -> float | None:
    is_known = is_spend_known(run.spend_rate_usd_micros_per_hour, run.spend_usd_micros)
    return _usd(run.spend_usd_micros) if is_known else None


def _gpu_busy_min(run: Run, at: MonoNs) -> float | None:
    busy = run.gpus.busy_frac if run.gpus is not None and at - run.gpus.at <= GPUS_FRESH_NS else ()
    return min((one for one in busy if one is not None), default=None) if None not in busy else None


def _gpu_memory_max(run: Run, at: MonoNs) -> float | None:
    sample = run.gpus
    if (
        sample is None
        or at - sample.at > GPUS_FRESH_NS
        or len(sample.memory_used_bytes) != len(sample.memory_total_bytes)
    ):
        return None
    return max(
        (
            used / total
            for used, total in zip(sample.memory_used_bytes, sample.memory_total_bytes, strict=True)
            if used is not None and total
        ),
        default=None,
    )


def _host_memory_left(run: Run, _at: MonoNs) -> float | None:
    known = [memory for memory in (run.host_memory, run.group_memory) if memory is not None and memory.total_bytes > 0]
    return min((memory.available_bytes / memory.total_bytes for memory in known), default=None)


def _phase(run: Run, _at: MonoNs) -> str | None:
    if run.jsonl_only:
        return run.stream.phase
    connected = run.connected_ranks()
    return min(connected, key=lambda rank: rank.rank).phase if connected else None


VARIABLES: Final[Mapping[str, Variable]] = {
    "step": Variable(INT, "Optimizer step, absolute.", lambda run, _at: run.step),
    "attempt_step": Variable(INT, "Steps of this attempt; of a log, lines.", lambda run, _at: run.attempt_step or None),
    "tokens": Variable(
        INT, "Tokens trained in the whole run by its last step, each once.", lambda run, _at: run.tokens_total
    ),
    "loss": Variable(DOUBLE, "Of the last step.", lambda run, _at: run.loss),
    "grad_norm": Variable(DOUBLE, "Of the last step.", lambda run, _at: run.grad_norm),
    "lr": Variable(DOUBLE, "Learning rate.", lambda run, _at: run.lr),
    "loss_scale": Variable(DOUBLE, "Of fp16.", lambda run, _at: run.loss_scale),
    "skipped_steps": Variable(INT, "Updates skipped, as the trainer counts them.", lambda run, _at: run.skipped_steps),
    "tokens_per_s": Variable(DOUBLE, "Over the last 20 steps.", lambda run, _at: run.tokens_per_s),
    "step_s": Variable(DOUBLE, "Median step time of this attempt, seconds.", lambda run, _at: run.step_times.median()),
    "phase": Variable(STRING, "What the lowest rank does: init, compile, train, eval, checkpoint.", _phase),
    "stage": Variable(STRING, "As the run reports it.", lambda run, _at: run.stage),
    "attempt": Variable(STRING, "Name of this attempt.", lambda run, _at: run.attempt or None),
    "ranks": Variable(INT, "Connected ranks.", lambda run, _at: len(run.connected_ranks()) or None),
    "world_size": Variable(INT, "Ranks of the whole job.", lambda run, _at: run.world_size),
    "age_s": Variable(DOUBLE, "Seconds since the run was first seen.", lambda run, at: _since(run.first_seen_at, at)),
    "attempt_age_s": Variable(DOUBLE, "Seconds since this attempt began.", lambda run, at: _since(run.attempt_at, at)),
    "since_step_s": Variable(DOUBLE, "Seconds since the last step.", lambda run, at: _since(run.step_at, at)),
    "since_save_s": Variable(
        DOUBLE, "Seconds since the last good checkpoint.", lambda run, at: _since(run.last_good_at, at)
    ),
    "unsaved_s": Variable(
        DOUBLE, "Seconds of work that a kill now would lose.",
        lambda run, at: run.unsaved_ns(at) / NS_PER_S if run.working_since is not None else None,
    ),
    "spend_usd": Variable(DOUBLE, "What the run has cost.", _spend),
    "spend_rate_usd_per_hour": Variable(
        DOUBLE, "What it costs an hour now.", lambda run, _at: _usd(run.spend_rate_usd_micros_per_hour)
    ),
    "usd_per_mtok": Variable(
        DOUBLE, "Dollars for a million tokens, of the last window.",
        lambda run, _at: _settled(run, run.paid_tokens.last()),
    ),
    "usd_per_mtok_all_in": Variable(
        DOUBLE, "Of all that the run has spent, over all tokens that it trained.",
        lambda run, _at: _settled(run, run.paid_tokens.all_in(run.spend_usd_micros)),
    ),
    "usd_per_mtok_useful": Variable(
        DOUBLE, "The same over its tokens of progress: those trained twice count once.",
        lambda run, _at: _settled(run, run.paid_tokens.useful(run.spend_usd_micros)),
    ),
    "usd_per_mtok_steady": Variable(
        DOUBLE, steady.MEANING, lambda run, _at: _price(run.paid_tokens.steady()),
    ),
    "gpu_busy_min": Variable(DOUBLE, "Of the least busy of its GPUs, 0 to 1.", _gpu_busy_min),
    "gpu_memory_max": Variable(DOUBLE, "Used part of the fullest of its GPUs, 0 to 1.", _gpu_memory_max),
    "host_memory_left": Variable(DOUBLE, "Part of main memory, or of its limit, that is left.", _host_memory_left),
}  # fmt: skip
