"""A run's time and money by cause, as every view tells it: exact sums, how sure each is, and what to do about it.

How sure follows from what the frames can tell. "high": the trainer, or the engine itself, times it. "medium": it is
worked out of what they time. "low": it is a bound, or only a part of it was seen. Where more than WEAK_FRAC of a cause
was told in a weaker way than usual, the row of WEAKER holds: data without a fetch that was seen (`data_bound`), a
straggler by forward passes alone, waits of ranks that seldom meet, what a log's lines tell by their distance, and a
save or an evaluation that is what a line's step had beyond the usual (`checkpoint_bound`, `eval_bound`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import LOST, Amount, Cause
from governor.core.attribution.loader import Loader, loader_of
from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_S, DurationNs, MonoNs, format_duration


class Advice(NamedTuple):
    """Of one cause. `confidence` is how sure its seconds are: "high" where the trainer or the engine times them."""

    confidence: str
    evidence: str
    next_step: str | None


ADVICE: Final[Mapping[Cause, Advice]] = {
    Cause.DATA: Advice(
        "high", "the time in which ranks waited for a batch, or for a rank that did",
        "add loader workers, or tokenise beforehand; then look at the disk and the network",
    ),
    Cause.LOOP: Advice(
        "high", "the loop's own code between steps", "log less often, and move bookkeeping out of the loop"
    ),
    Cause.STRAGGLER: Advice(
        "medium", "one rank computes longer in each window, and the others wait for it",
        "look at that rank's GPU clocks, temperature and neighbours; replace its node if it stays slow",
    ),
    Cause.IMBALANCE: Advice(
        "medium", "some ranks compute less than the usual one in each window, and wait for it in collectives",
        "give all ranks as much to compute: batches of one size and length, experts and layers spread evenly",
    ),
    Cause.COMMUNICATION: Advice(
        "medium", "the time in collectives, less the wait for a late rank of this node",
        "overlap it with the backward pass, use larger buckets or a lower ZeRO stage; check the interconnect",
    ),
    Cause.BUBBLE: Advice(
        "high", "the time in which a stage sent to, received from and waited for other stages, beyond a slow stage's",
        "train with more micro-batches a step (gradient_accumulation_steps), or with fewer stages",
    ),
    Cause.OFFLOAD: Advice(
        "high", "the optimizer's steps on the CPU, and the copies behind them, as the configuration offloads it",
        "keep the optimizer on the GPU if memory allows it; else use DeepSpeedCPUAdam with more threads a rank",
    ),
    Cause.RECOMPUTE: Advice(
        "high", "activation checkpointing computes the forward pass again",
        "recompute fewer layers if memory allows it",
    ),
    Cause.CHECKPOINT: Advice(
        "high", "the time inside saves, and, where ranks agree on the step to save, until they had",
        "save less often, in the background, or to a faster disk",
    ),
    Cause.EVALUATION: Advice("high", "the time inside evaluations", "evaluate less often, or on fewer batches"),
    Cause.COMPILE: Advice(
        "medium", "what the first step of each attempt took beyond an ordinary one",
        "keep the compiler's cache between launches",
    ),
    Cause.START_UP: Advice(
        "high", "from the launch until the first step began", "cache the image, the data and the weights on the node"
    ),
    Cause.RESTART: Advice(
        "high", "held by the run, from an attempt's end or a later launch's begin until the next first step",
        "find why attempts end; load the checkpoint from a local disk",
    ),
    Cause.LOST_STEPS: Advice(
        "high", "steps that an earlier attempt had trained already", "save more often"
    ),
    Cause.THROTTLING: Advice(
        "medium", "the GPU's clock was held down", "check the cooling and the power limit of the node"
    ),
    Cause.OTHER_TENANTS: Advice(
        "medium", "a rank could run and had no processor, while processes outside the run used its cores",
        "give the run cores of its own, or move the other processes off the node",
    ),
    Cause.HARDWARE: Advice(
        "high", "from a fault of the run's GPU until the halt or the next attempt's first step",
        "leave the node out, and report the GPU to the provider",
    ),
    Cause.HANG: Advice(
        "high", "it stood still, and no step came",
        "ask `costgov evidence` while it stands still; afterwards read the stacks in the incident",
    ),
    Cause.HALT: Advice("high", "from the verdict until the halt was closed", None),
    Cause.SHUT_DOWN: Advice("high", "after the last step, until the run let go of the node", None),
    Cause.IDLE: Advice("high", "the trainer says that it does nothing", None),
    Cause.NOT_TOLD: Advice("low", "the step under way tells of itself when it ends", None),
    Cause.UNKNOWN: Advice("low", "no word says what was done then", None),
}  # fmt: skip


# Of a pipeline: its stages may have unlike shares of the model.
_SLOW_STAGE: Final = "move layers off that rank's stage if it is as slow on another node; else look at that rank's GPU"

_LOST_RANKS: Final = "find why its ranks ended, and why those that were launched after them, if any, never attached"
SILENT: Final = "no rank and no log has spoken"
RETOLD: Final = "as the export's account of the run tells it; `costgov report` says how sure that is, and by what"
WEAK_FRAC: Final = 0.1
_SURE: Final = ("low", "medium", "high")
# True of a log that tells by its lines alone, and of a phase that the run's end has cut.
_UNTIMED: Final = "up to: no word told how long it took"
# True of ranks whose frames tell no collectives, and of windows that told.py has as too short.
_ROUGHLY: Final = (
    "by forward passes alone (no frame tells collectives), or by ranks that meet too seldom in five minutes"
)
WEAKER: Final[Mapping[Cause, tuple[str, str]]] = {
    Cause.DATA: ("low", "up to: no fetch of a batch was seen, so the loop's own code between steps is in it"),
    Cause.STRAGGLER: (
        "low", f"one rank computes longer in each window, {_ROUGHLY}"
    ),
    Cause.IMBALANCE: (
        "low", f"some ranks compute less in each window, {_ROUGHLY}"
    ),
    Cause.COMMUNICATION: (
        "low", "up to: the wait for a late rank is in it, as one rank alone tells its time in collectives, "
        "or as ranks meet too seldom in five minutes",
    ),
    Cause.CHECKPOINT: (
        "medium", "up to: a save was told, and not how long it took; an evaluation told beside it may be in it"
    ),
    Cause.EVALUATION: (
        "medium", "up to: an evaluation was told, and not how long it took; a save told beside it may be in it"
    ),
    Cause.COMPILE: (
        "low", "up to: all that a first step took beyond an ordinary one; no word told how long it compiled"
    ),
    Cause.START_UP: ("medium", "up to: no word told when the first step began"),
    Cause.RESTART: ("medium", "up to: no word told when an attempt's first step began"),
    Cause.HANG: ("medium", "it stood still in a phase for longer than one of its like takes, and no rule halted it"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Whole:
    """All of one run's time and money, as of one moment."""

    by_cause: Mapping[Cause, Amount]
    steps: int
    straggler_ns: Mapping[int, int]
    weak: frozenset[Cause] = frozenset()  # Those that WEAKER is for.
    loader: Loader | None = None
    evidence: Mapping[Cause, str] = field(default_factory=dict)  # What was seen of it, where a sample has told.
    is_lost: bool = False  # UNKNOWN is the time of a command that went on without ranks, for a good part.
    retold: frozenset[Cause] = frozenset()  # Known by its amount alone, of an account that somebody else kept.

    @property
    def wall_ns(self) -> int:
        return sum(amount.ns for amount in self.by_cause.values())

    @property
    def usd_micros(self) -> int:
        return sum(amount.usd_micros for amount in self.by_cause.values())

    @property
    def productive(self) -> Amount:
        return self.by_cause.get(Cause.PRODUCTIVE, Amount())

    @property
    def goodput(self) -> float | None:
        """The productive share of the run's time. None: no time has passed."""
        return self.productive.ns / self.wall_ns if self.wall_ns else None


def whole_of(account: TimeAccount, at: MonoNs | None = None, untold: Amount | None = None) -> Whole:
    """`at`: now, of a run that lives; None of one whose account is read from the journal.

    `untold`: of a command for which nobody speaks yet. The account has it once somebody does, or the command is over.
    """
    weak = frozenset(cause for cause, ns in account.weak_ns.items() if ns > WEAK_FRAC * account.told_ns.get(cause, 0))
    by_cause, loader = account.now(at or MonoNs(0)), loader_of(account.loader.kept)
    stands = account.stands(at) if at is not None else None
    if stands is not None and stands[1] and not account.told_ns.get(Cause.HANG):
        weak |= {Cause.HANG}
    stood, seen = stands[0] if stands is not None else account.stood, dict(account.hardware.evidence)
    if stood is not None:
        seen[Cause.HANG if Cause.HANG in by_cause else Cause.UNKNOWN] = stood
    waits_as, unheard_ns = _waits_as(account), account.held.unheard_ns
    if untold is not None and (untold.ns or untold.usd_micros):
        by_cause.setdefault(waits_as, Amount()).add(untold.ns, untold.usd_micros)
        unheard_ns += untold.ns if account.has_trained and waits_as is Cause.UNKNOWN else 0
    if unheard_ns:
        seen[Cause.UNKNOWN] = _unheard(unheard_ns, seen.get(Cause.UNKNOWN))
    if not account.has_begun and Cause.UNKNOWN in by_cause:
        seen[Cause.UNKNOWN] = SILENT
    is_lost = unheard_ns > WEAK_FRAC * by_cause.get(Cause.UNKNOWN, Amount()).ns
    return Whole(by_cause, account.steps, dict(account.straggler_ns), weak, loader, seen, is_lost=is_lost)


def _waits_as(account: TimeAccount) -> Cause:
    """What the time of its command is, for which it has not paid yet, because nobody speaks."""
    if not account.has_trained:
        return Cause.START_UP if account.has_begun else Cause.UNKNOWN
    return account.held.rest if account.hardware.fault_at is None else Cause.HARDWARE


def _unheard(ns: int, stood: str | None) -> str:
    text = f"its ranks were lost, and its command went on without any for {format_duration(DurationNs(ns))}"
    return text if stood is None else f"{stood}; {text}"


def told_time(account: TimeAccount, at: MonoNs | None = None, untold: Amount | None = None) -> dict[str, Any]:
    """As `whole_of`, in a row. An account that cannot be told has no cause but a word why: other runs have theirs."""
    try:
        return time_row(whole_of(account, at, untold))
    except Exception as error:  # noqa: BLE001 - the guard around one run's account.
        parts = (*account.by_cause.values(), account.between, Amount(account.pool_ns, account.pool_usd_micros))
        untold = Amount(sum(one.ns for one in parts), sum(one.usd_micros for one in parts))
        return time_row(Whole({Cause.UNKNOWN: untold}, account.steps, {}, evidence={Cause.UNKNOWN: _fault(error)}))


def _fault(error: Exception) -> str:
    return f"it cannot be told, by a fault of costgov's own ({type(error).__name__})"


def time_row(whole: Whole) -> dict[str, Any]:
    """Plain JSON. `productive_s` and the causes add up to `wall_s`, their dollars to `usd`; the largest cause first."""
    hours = whole.wall_ns / NS_PER_HOUR
    causes = sorted(LOST, key=lambda cause: (-_of(whole, cause).usd_micros, -_of(whole, cause).ns))
    return {
        "wall_s": whole.wall_ns / NS_PER_S,
        "usd": whole.usd_micros / MICROS_PER_USD,
        "productive_s": whole.productive.ns / NS_PER_S,
        "productive_usd": whole.productive.usd_micros / MICROS_PER_USD,
        "goodput": whole.goodput,
        "causes": [_cause_row(whole, cause, hours) for cause in causes if cause in whole.by_cause],
    }


def without_money(time: Mapping[str, Any]) -> dict[str, Any]:
    """A row of time of which no price is known: what it cost is null, and not the 0 that was metered."""
    causes = [{**one, "usd": None, "usd_per_hour": None} for one in time["causes"]]
    return {**time, "usd": None, "productive_usd": None, "causes": causes}


def _cause_row(whole: Whole, cause: Cause, hours: float) -> dict[str, Any]:
    amount = _of(whole, cause)
    usd = amount.usd_micros / MICROS_PER_USD
    return {
        "cause": cause.value,
        "s": amount.ns / NS_PER_S,
        "usd": usd,
        "share": amount.ns / whole.wall_ns if whole.wall_ns else None,
        "usd_per_hour": usd / hours if hours else None,
        **_words(whole, cause),
    }


def how_sure(cause: Cause, *, is_weak: bool) -> tuple[str, str]:
    """The confidence and the evidence. `is_weak`: see WEAKER. A cause without a row there is weak as all are."""
    advice = ADVICE[cause]
    usual = advice.confidence, advice.evidence
    if not is_weak:
        return usual
    return WEAKER.get(cause, usual if advice.confidence == "low" else ("medium", f"{_UNTIMED}; {advice.evidence}"))


def _words(whole: Whole, cause: Cause) -> dict[str, Any]:
    advice = ADVICE[cause]
    confidence, evidence = how_sure(cause, is_weak=cause in whole.weak)
    if cause in whole.retold:  # The account may have told it in the weaker way.
        confidence = min(confidence, how_sure(cause, is_weak=True)[0], key=_SURE.index)
        evidence = RETOLD
    loader = whole.loader if cause is Cause.DATA else None
    if loader is not None:
        evidence = f"{evidence}; {loader.evidence}"
    if cause is Cause.STRAGGLER and whole.straggler_ns:
        slow = max(whole.straggler_ns, key=lambda rank: whole.straggler_ns[rank])
        evidence = f"{evidence}: rank {slow}"
    elif cause in whole.evidence:
        evidence = f"{evidence}: {whole.evidence[cause]}"
    next_step = (loader.next_step if loader is not None else None) or advice.next_step
    if cause is Cause.STRAGGLER and Cause.BUBBLE in whole.by_cause:
        next_step = _SLOW_STAGE
    if cause is Cause.UNKNOWN and whole.is_lost:
        next_step = _LOST_RANKS
    return {
        "confidence": confidence,
        "kind": loader.kind if loader is not None else None,  # Of data starvation: what the loader did.
        "evidence": evidence,
        "next_step": next_step,
    }


def _of(whole: Whole, cause: Cause) -> Amount:
    return whole.by_cause.get(cause, Amount())


def newer_of(account: TimeAccount, row: Any, spent_usd_micros: int) -> TimeAccount:
    """The account of an open halt's row, where the run's own is older; else that one.

    `spent_usd_micros`: what the ledger knows of. It may be behind the row by time that it is to charge yet: then the
    largest causes give that back, and the next tick's charge has it again.
    """
    try:
        newer = TimeAccount.restored(row, same_boot=True)
        is_newer = (newer.held.boot_to or 0) > (account.held.boot_to or 0)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return account  # A torn row stops no halt.
    if not is_newer:
        return account
    for amount in sorted(newer.by_cause.values(), key=lambda one: -one.usd_micros):
        part = max(0, min(newer.spent_usd_micros - spent_usd_micros, amount.usd_micros))
        amount.add(0, -part)
        newer.spent_usd_micros -= part
    return newer
