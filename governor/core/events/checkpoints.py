"""Checkpoints of a run: the last good one, and what a look at it or at the one of a halt has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from governor.core.base.units import MonoNs

# As many as most frameworks keep. Eight looks of two seconds are what the end of `costgov run` can wait for.
NAMED_BEFORE_MAX: Final = 8
PENDING: Final = "the look has not ended"
PATH_BYTES_MAX: Final = 4096  # PATH_MAX. What is longer names no file, and would fill the journal.


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """What a trainer says that it has saved. What was found at it is not the trainer's to say."""

    path: str | None = None
    manifest: str | None = None
    kind: str | None = None
    files: int | None = None
    bytes: int | None = None
    hashed: bool | None = None
    tokens_total: int | None = None

    @classmethod
    def named(cls, said: Mapping[str, Any] | None) -> SavedCheckpoint | None:
        """From an ack, which may say anything."""
        if said is None:
            return None
        kinds = {"files": int, "bytes": int, "hashed": bool, "tokens_total": int}
        names = (one.name for one in fields(cls))
        return cls(**{name: said[name] for name in names if type(said.get(name)) is kinds.get(name, str)})

    def row(self) -> dict[str, Any]:
        """As incidents have it. What is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """One look at a checkpoint that was named as good."""

    path: str
    there: bool | None  # None: it cannot be seen from here.
    reason: str
    nonfinite: str | None = None  # The file and the tensor in which a sample has a NaN or an infinity.
    unsampled: str | None = None  # What of its weights was not looked into.
    torn: str | None = None  # What of it is missing or cut short.

    @property
    def is_fit(self) -> bool:
        """Whether nothing is known against it. What cannot be seen, or was not looked into, may be fit."""
        return self.there is not False and self.nonfinite is None and self.torn is None


@dataclass(frozen=True, slots=True)
class LastGoodSeen:
    """Looks at a run's last good checkpoint and, where nothing can go on from it, at those that were named before.

    Frameworks remove old ones, and so do people. A NaN that no loss has shown makes good checkpoints of broken weights.
    """

    at: MonoNs
    run: str
    looks: tuple[CheckpointSeen, ...]


@dataclass(frozen=True, slots=True)
class LastGood:
    """The newest checkpoint that was saved while nobody had a finding, and what a look at it has found."""

    step: int | None  # None: an ack may have none.
    path: str | None
    tokens_total: int | None = None
    mono_ns: int | None = None  # When the trainer saved it. An ack does not say.
    gone: str | None = None
    torn: str | None = None
    nonfinite: str | None = None
    unseen: str | None = None
    unsampled: str | None = None
    refused_mono_ns: int | None = None  # When it was found to be gone, torn or not finite, in this boot.
    passed_over: tuple[LastGood, ...] = ()  # In favour of this one, since they are gone, torn or not finite.

    @property
    def is_fit(self) -> bool:
        """Whether nothing is known against it. What cannot be seen, or was not looked into, may be fit."""
        return self.gone is None and self.torn is None and self.nonfinite is None

    def seen(self, look: CheckpointSeen, at: MonoNs) -> LastGood:
        gone = look.reason if look.there is False else None
        unseen = look.reason if look.there is None else None
        return replace(
            self, gone=gone, torn=look.torn, nonfinite=look.nonfinite, unseen=unseen, unsampled=look.unsampled,
            refused_mono_ns=None if look.is_fit else at,
        )  # fmt: skip

    def pending(self) -> LastGood:
        """While a look is under way. What was found before stands until it has ended."""
        return replace(self, unseen=PENDING) if self.is_fit else self

    def in_favour_of(self, older: LastGood) -> LastGood:
        """`older` takes the place of this one, which is not fit."""
        return replace(older, passed_over=_bounded((self, *self.passed_over)))

    def is_same(self, named: LastGood) -> bool:
        return (self.path, self.step, self.mono_ns) == (named.path, named.step, named.mono_ns)

    def refuses(self, named: LastGood) -> bool:
        """Whether it was found not to be fit after `named` was saved: a rank repeats what it said before."""
        known = next((one for one in (self, *self.passed_over) if one.path == named.path and not one.is_fit), None)
        if known is None or known.refused_mono_ns is None or named.mono_ns is None:
            return False
        return named.mono_ns <= known.refused_mono_ns

    def row(self) -> dict[str, Any]:
        """As the journal, reports and `status --json` have it. What is not known is left out."""
        known = {name: value for name in _WHERE_KNOWN if (value := getattr(self, name)) is not None}
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
        return cls(**{"step": None, "path": None, **texts, **counts}, passed_over=over)

    @classmethod
    def named(cls, said: Mapping[str, Any] | None) -> LastGood | None:
        """From a trainer's hello, which may say anything. What was found at it is not the trainer's to say."""
        return cls.of(None if said is None else {name: said.get(name) for name in _NAMED})


_NAMED: Final = ("step", "path", "tokens_total", "mono_ns")
_MARKS: Final = ("gone", "torn", "nonfinite", "unseen", "unsampled")
_COUNTS: Final = ("step", "tokens_total", "mono_ns", "refused_mono_ns")
_TEXTS: Final = ("path", *_MARKS)
_WHERE_KNOWN: Final = ("tokens_total", "mono_ns", *_MARKS, "refused_mono_ns")


def _bounded(passed: tuple[LastGood, ...]) -> tuple[LastGood, ...]:
    newest = {one.path: replace(one, passed_over=()) for one in reversed(passed)}
    return tuple(reversed(newest.values()))[:NAMED_BEFORE_MAX]


def before_naming(known: LastGood | None, before: tuple[LastGood, ...], new: LastGood) -> tuple[LastGood, ...]:
    """What is gone back to where `new` is not fit, newest first."""
    chain = before if known is None or not known.is_fit else (replace(known, passed_over=()), *before)
    return tuple(one for one in chain if one.path != new.path and _is_path(one.path))[:NAMED_BEFORE_MAX]


def _is_path(path: str | None) -> bool:
    return bool(path) and len(str(path).encode("utf-8", "replace")) <= PATH_BYTES_MAX


def after_looks(known: LastGood, before: tuple[LastGood, ...], seen: LastGoodSeen) -> LastGood:
    """The newest that is fit. Where none is, the newest as it was found, with the others as passed over."""
    looks = {look.path: look for look in seen.looks}
    unfit: list[LastGood] = []
    for one in (known, *before):
        look = looks.get(one.path or "")
        found = replace(one, unseen="not looked at") if look is None else one.seen(look, seen.at)
        if found.is_fit:
            return replace(found, passed_over=_bounded((*unfit, *known.passed_over)))
        unfit.append(found)
    return replace(unfit[0], passed_over=_bounded((*unfit[1:], *known.passed_over)))


@dataclass(frozen=True, slots=True)
class CheckpointLook:
    """A comparison with the manifest, and samples of the weights."""

    whole: bool | None  # None: we cannot read it; it stays "verified by trainer".
    files: int
    hashed: int  # Of these, files whose SHA-256 we recomputed and found equal.
    reason: str
    counted: str | None = None  # What its files hold and what its parameters need. None: the manifest does not count.
    nonfinite: str | None = None  # The file and the tensor in which a sample has a NaN or an infinity.
    unsampled: str | None = None  # What of its weights was not looked into.


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """The governor's own look at the checkpoint that the trainer acknowledged."""

    at: MonoNs
    incident_id: str
    look: CheckpointLook
