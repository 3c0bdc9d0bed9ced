"""The last good checkpoint of a run: what a rank names, what looks have found at it, and what is gone back to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from governor.core.base.units import MonoNs
from governor.core.events.checkpoints import CheckpointSeen, LastGoodSeen, NamedCheckpoint

# As many as most frameworks keep. Eight looks of two seconds are what the end of `costgov run` can wait for.
NAMED_BEFORE_MAX: Final = 8
PENDING: Final = "the look has not ended"
UNKNOWN: Final = "nobody has said that it is no trained weight"
PATH_BYTES_MAX: Final = 4096  # PATH_MAX. What is longer names no file, and would fill the journal.


@dataclass(frozen=True, slots=True)
class LastGood:
    """The newest checkpoint that was saved while nobody had a finding, and what a look at it has found."""

    step: int | None
    path: str | None
    tokens_total: int | None = None
    mono_ns: int | None = None
    gone: str | None = None
    torn: str | None = None
    nonfinite: str | None = None
    unseen: str | None = None
    unsampled: str | None = None
    lacks: str | None = None
    nonfinite_in_all: str | None = None  # A tensor that is not finite in all, while the loss went on finite.
    needless: str | None = None  # Digest of all such tensors, as of the look that showed the loss to need none.
    sought_in: str | None = None  # As in NamedCheckpoint.
    trained_finite: bool = False  # Likewise.
    # When the look was asked for that found it to be gone, torn or not finite, in this boot.
    refused_mono_ns: int | None = None
    # In favour of this one, since they are gone, torn or not finite: the newest first.
    passed_over: tuple[LastGood, ...] = ()

    @property
    def is_fit(self) -> bool:
        """Whether nothing is known against it. What cannot be seen, or was not looked into, may be fit."""
        return self.gone is None and self.torn is None and self.nonfinite is None

    def seen(self, look: CheckpointSeen, asked_at: MonoNs) -> LastGood:
        gone = look.reason if look.there is False else None
        unseen = look.reason if look.there is None else None
        return replace(
            self, gone=gone, torn=look.torn, nonfinite=look.nonfinite, unseen=unseen, unsampled=look.unsampled,
            lacks=look.lacks, nonfinite_in_all=None, refused_mono_ns=None if look.is_fit else asked_at,
        )  # fmt: skip

    def remarked(self, needless: str | None) -> LastGood:
        """It is not finite in tensors that the loss does not need."""
        told = self.nonfinite if self.trained_finite else f"{self.nonfinite}; {UNKNOWN}"
        return replace(self, nonfinite=None, nonfinite_in_all=told, needless=needless, refused_mono_ns=None)

    def pending(self) -> LastGood:
        """While a look is under way. What was found before stands until it has ended."""
        return replace(self, unseen=PENDING) if self.is_fit else self

    def in_favour_of(self, older: LastGood) -> LastGood:
        """`older` takes the place of this one, which is not fit."""
        return replace(older, passed_over=_bounded((self, *self.passed_over)))

    @property
    def as_named(self) -> NamedCheckpoint:
        return NamedCheckpoint(
            self.step, self.path, self.tokens_total, self.mono_ns, self.sought_in, trained_finite=self.trained_finite
        )

    def is_same(self, named: NamedCheckpoint) -> bool:
        return (self.path, self.step, self.mono_ns) == (named.path, named.step, named.mono_ns)

    def refuses(self, named: NamedCheckpoint) -> bool:
        """Whether it was found not to be fit by a look that `named` was there for: a rank repeats what it said."""
        known = next((one for one in (self, *self.passed_over) if one.path == named.path and not one.is_fit), None)
        if known is None or known.refused_mono_ns is None or named.mono_ns is None:
            return False
        return named.mono_ns <= known.refused_mono_ns

    def row(self) -> dict[str, Any]:
        """As the journal, reports and `status --json` have it. What is not known is left out."""
        known = {name: value for name in _WHERE_KNOWN if (value := getattr(self, name)) is not None}
        known |= {"trained_finite": True} if self.trained_finite else {}
        passed = {"passed_over": [one.row() for one in self.passed_over]} if self.passed_over else {}
        return {"step": self.step, "path": self.path, **known, **passed}

    @classmethod
    def of(cls, row: Mapping[str, Any] | None, *, same_boot: bool = True) -> LastGood | None:
        """From a row of ours. `same_boot`: of this boot's monotonic clock."""
        if row is None:
            return None
        texts: dict[str, Any] = {name: value for name in _TEXTS if isinstance(value := row.get(name), str)}
        counts: dict[str, Any] = {name: value for name in _COUNTS if type(value := row.get(name)) is int}
        if not same_boot:
            counts.pop("refused_mono_ns", None)
        passed = (cls.of(one, same_boot=same_boot) for one in row.get("passed_over", ()))
        over = _bounded(tuple(one for one in passed if one is not None))
        is_finite = row.get("trained_finite") is True
        return cls(**{"step": None, "path": None, **texts, **counts}, trained_finite=is_finite, passed_over=over)

    @classmethod
    def named(cls, named: NamedCheckpoint) -> LastGood:
        return cls(
            named.step, named.path, named.tokens_total, named.mono_ns,
            sought_in=named.sought_in, trained_finite=named.trained_finite,
        )  # fmt: skip


_FOUND: Final = ("gone", "torn", "nonfinite", "unseen", "unsampled", "lacks", "nonfinite_in_all", "needless")
_COUNTS: Final = ("step", "tokens_total", "mono_ns", "refused_mono_ns")
_TEXTS: Final = ("path", "sought_in", *_FOUND)
_WHERE_KNOWN: Final = ("tokens_total", "mono_ns", "sought_in", *_FOUND, "refused_mono_ns")


def _bounded(passed: tuple[LastGood, ...]) -> tuple[LastGood, ...]:
    """The newest of them, by steps as trainers count them. Of one place, what was found there last stands first."""
    found: dict[str | None, LastGood] = {}
    for one in passed:
        found.setdefault(one.path, replace(one, passed_over=()))
    return tuple(sorted(found.values(), key=lambda one: one.step or 0, reverse=True))[:NAMED_BEFORE_MAX]


def is_news(known: LastGood | None, named: NamedCheckpoint, *, is_timed: bool) -> bool:
    """Whether what a rank's hello names becomes the last good one. `is_timed`: it is known when `known` was saved."""
    if named.step is None or (known is not None and known.refuses(named)):
        return False
    if known is not None and is_timed and known.is_same(named):
        return False  # A rank that connects again repeats it. What was found at it stands.
    # A `saved` ack may have no step.
    return known is None or known.step is None or not known.is_fit or named.step >= known.step


def after_naming(
    known: LastGood | None, before: tuple[LastGood, ...], named: NamedCheckpoint
) -> tuple[LastGood, tuple[LastGood, ...]]:
    """The last good one, and what is gone back to where it is not fit, newest first."""
    passed = () if known is None else ((known,) if not known.is_fit else ()) + known.passed_over
    newer = tuple(one for one in passed if one.path != named.path and (one.step or 0) > (named.step or 0))
    chain = before if known is None or not known.is_fit else (replace(known, passed_over=()), *before)
    older = tuple(one for one in chain if one.path != named.path and _is_path(one.path))
    needless = known.needless if known is not None else None
    return replace(LastGood.named(named), needless=needless, passed_over=_bounded(newer)), older[:NAMED_BEFORE_MAX]


def _is_path(path: str | None) -> bool:
    return bool(path) and len(str(path).encode("utf-8", "replace")) <= PATH_BYTES_MAX


def _needless(chain: tuple[LastGood, ...], seen: LastGoodSeen, vouched_before: int | None) -> frozenset[str]:
    """Digests of the few tensors that are not finite and that the loss is seen not to need.

    A trained parameter may be among them that is seldom used. Trainers look at these themselves where they save and
    name no checkpoint then; of one that has not, the remark says so.

    A finite loss that was computed after the oldest one that is whole did not need what is not finite in it. NaN that
    matters spreads to most tensors within a step or two, and those are no few. Where the next loss was not finite, the
    trainer vouches if it saw at the save that what it trains was finite: the loss may have had other reasons. A mask,
    an observer's range or the history of a scheduler stay as they are, and what was shown of them is remembered for
    the one that is alone. One in which others are harmed than in the oldest is passed over, and so are all where one
    is finite. What was once refused stays so: a later attempt may have begun anew, and its loss says nothing of those
    weights.
    """
    looks = [(one, look) for one in chain if (look := seen.look_at(one.as_named)) is not None]
    whole = [(one, look) for one, look in looks if look.there and look.torn is None]
    if any(look.nonfinite is None or one.nonfinite is not None for one, look in whole):
        return frozenset()
    found = {one.needless for one in chain}  # The loss has gone on over them before.
    steps = [(one.step, not one.trained_finite, look.few_harmed) for one, look in whole if one.step is not None]
    if steps and vouched_before is not None:
        oldest, is_unseen, harmed = min(steps, key=lambda one: one[:2])
        is_vouched = oldest < vouched_before or (oldest == vouched_before and not is_unseen)
        found.add(harmed if is_vouched else None)
    return frozenset(digest for digest in found if digest is not None)


def after_looks(
    known: LastGood, before: tuple[LastGood, ...], seen: LastGoodSeen, vouched_before: int | None = None
) -> LastGood:
    """The newest that is fit. Where none is, the newest as it was found, with the others as passed over.

    `vouched_before`: finite losses vouch for what was saved before this step. None: no loss is known.
    """
    needless = _needless((known, *before), seen, vouched_before)
    unfit: list[LastGood] = []
    for one in (known, *before):
        look = seen.look_at(one.as_named)
        found = replace(one, unseen="not looked at") if look is None else one.seen(look, seen.asked.at)
        if look is not None and look.nonfinite is not None and look.few_harmed in needless and look.torn is None:
            found = found.remarked(look.few_harmed)
        if found.is_fit:
            return replace(found, passed_over=_bounded((*unfit, *known.passed_over)))
        unfit.append(found)
    return replace(unfit[0], passed_over=_bounded((*unfit[1:], *known.passed_over)))
