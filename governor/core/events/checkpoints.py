"""Checkpoints as they come in: what a trainer says of one, and what a look has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, TypeGuard

from governor.core.base.identity import RUN_CHARS_MAX
from governor.core.base.printable import printable
from governor.core.base.units import COUNT_MAX, MonoNs

PLACE_CHARS_MAX: Final = 4096  # PATH_MAX.


@dataclass(frozen=True, slots=True)
class Origin:
    """With what the training of a launch began, before all checkpoints of its own: another run's, or nothing."""

    run: str = ""  # "": with nothing.
    step: int = 0
    tokens_total: int | None = 0  # None: the checkpoint does not say.

    @classmethod
    def said(cls, said: Mapping[str, Any] | None) -> Origin | None:
        """From a hello, which may say anything."""
        if not said:
            return None if said is None else cls()
        run, step, total = (said.get(name) for name in ("run", "step", "tokens_total"))
        if not isinstance(run, str) or not 0 < len(run) <= RUN_CHARS_MAX or not _is_count(step):
            return None
        return cls(printable(run), step, total if _is_count(total) else None)


@dataclass(frozen=True, slots=True)
class NamedCheckpoint:
    """The newest one that a trainer names as good. What was found at it is not the trainer's to say."""

    step: int | None  # None: an ack may have none.
    path: str | None
    tokens_total: int | None = None
    mono_ns: int | None = None  # Of which moment it is: work after that is not in it.
    sought_in: str | None = None  # Where the script's resume() looks instead.
    own_finite: bool = False  # All trained parameters were finite in this rank's part. False: it has not said so.
    trained_finite: bool = False  # In every rank's part.

    @classmethod
    def named(cls, said: Mapping[str, Any] | None) -> NamedCheckpoint | None:
        """From a hello, which may say anything."""
        if said is None:
            return None
        path, sought_in = (
            value if isinstance(value := said.get(name), str) else None for name in ("path", "sought_in")
        )
        step, tokens_total, mono_ns = (
            value if type(value := said.get(name)) is int else None for name in ("step", "tokens_total", "mono_ns")
        )
        is_short = sought_in is not None and len(sought_in) <= PLACE_CHARS_MAX
        own, all_ranks = (said.get(name) is True for name in ("own_finite", "trained_finite"))
        return cls(step, path, tokens_total, mono_ns, sought_in if is_short else None, own, all_ranks)


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """What a trainer says that it has saved, of the same kind."""

    path: str | None = None
    manifest: str | None = None
    kind: str | None = None
    files: int | None = None
    bytes: int | None = None
    hashed: bool | None = None
    tokens_total: int | None = None
    trained_finite: bool | None = None  # Every rank has looked at all trained parameters, and they were finite.
    mono_ns: int | None = None  # Of which moment it is: it may have been written for minutes since.

    @classmethod
    def named(cls, said: Mapping[str, Any] | None) -> SavedCheckpoint | None:
        """From an ack, which may say anything."""
        if said is None:
            return None
        counts: dict[str, type] = dict.fromkeys(("files", "bytes", "tokens_total", "mono_ns"), int)
        kinds = counts | dict.fromkeys(("hashed", "trained_finite"), bool)
        names = (one.name for one in fields(cls))
        return cls(**{name: said[name] for name in names if type(said.get(name)) is kinds.get(name, str)})

    def row(self) -> dict[str, Any]:
        """As incidents have it. What is not known is left out, and what only this boot knows."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "mono_ns"}


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """One look at a checkpoint that was named as good."""

    path: str
    there: bool | None  # None: it cannot be seen from here.
    reason: str
    nonfinite: str | None = None  # The file and the tensor in which a sample has a NaN or an infinity.
    unsampled: str | None = None  # What of its weights was not looked into.
    torn: str | None = None  # What of it is missing or cut short.
    lacks: str | None = None  # What a training that goes on from it begins anew.
    few_harmed: str | None = None  # A digest of which tensors are not finite, where they are few.

    @property
    def is_fit(self) -> bool:
        """Whether nothing is known against it. What cannot be seen, or was not looked into, may be fit."""
        return self.there is not False and self.nonfinite is None and self.torn is None


@dataclass(frozen=True, slots=True)
class LookedFor:
    """Which checkpoints are looked at, the newest first, and when that was asked for: a path may be saved to again."""

    at: MonoNs
    named: tuple[NamedCheckpoint, ...]

    def is_of(self, checkpoint: NamedCheckpoint) -> bool:
        """Whether a look at its path shows it, and nothing that was there before it or is half written."""
        for one in self.named:
            if (one.path, one.step) == (checkpoint.path, checkpoint.step):
                saved = checkpoint.mono_ns
                return saved == one.mono_ns or (saved is not None and saved <= self.at)
        return False


@dataclass(frozen=True, slots=True)
class LastGoodSeen:
    """Looks at a run's last good checkpoint and, where nothing can go on from it, at those that were named before.

    Frameworks remove old ones, and so do people. A NaN that no loss has shown makes good checkpoints of broken weights.
    """

    at: MonoNs
    run: str
    asked: LookedFor
    looks: tuple[CheckpointSeen, ...]

    def look_at(self, checkpoint: NamedCheckpoint) -> CheckpointSeen | None:
        """None: nobody has looked at it, but perhaps at its path before it was saved."""
        found = next((look for look in self.looks if look.path == checkpoint.path), None)
        return found if found is not None and self.asked.is_of(checkpoint) else None


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
    few_harmed: str | None = None  # A digest of which tensors are not finite, where they are few.


@dataclass(frozen=True, slots=True)
class CheckpointWeighed:
    """How many bytes a checkpoint has that a trainer says it has saved. `name`: see effects.WeighCheckpoint."""

    at: MonoNs
    run: str
    name: str
    bytes: int | None  # Of its user's files. None: they cannot be seen from here.
    reason: str = ""  # Why not.


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """The governor's own look at the checkpoint that the trainer acknowledged."""

    at: MonoNs
    incident_id: str
    look: CheckpointLook


CheckpointEvent = CheckpointRead | CheckpointWeighed | LastGoodSeen


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= COUNT_MAX
