"""What a replayed log showed and what it hid: the fields that no record had, and the names that probably are theirs."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from governor.text.table import plain
from governor.wire.jsonl import DEFAULT_FIELDS
from governor.wire.likely_names import leaves, likely, separator

RECORDS_NOTED: Final = 64  # A log has all its keys in fewer, its evaluations included.
KEYS_MAX: Final = 64
KEYS_SHOWN: Final = 8
NAME_CHARS_MAX: Final = 60
PASTED_CHARS_MAX: Final = 256  # A part of a name is nobody's.
# Without one of these a log says that steps were done, and nothing of how.
_OF_TRAINING: Final = frozenset(DEFAULT_FIELDS) - {
    "t",
    "step",
    "attempt_step",
    "line_steps",
    "phase",
    "checkpoint_bound",
    "eval_bound",
}
_HINTED: Final = ("loss", "grad_norm", "step", "step_s", "t")


@dataclass
class Sight:
    """Of one log, read under a field map."""

    fields: Mapping[str, Sequence[str]]
    keys: dict[str, type] = field(default_factory=dict)  # With the type of their first value.
    _noted: int = 0

    def see(self, record: Mapping[str, Any]) -> None:
        if self._noted >= RECORDS_NOTED:
            return
        self._noted += 1
        for name, value in leaves(record):
            if len(self.keys) < KEYS_MAX:
                self.keys.setdefault(name, type(value))

    def fault(self, seen: Collection[str], *, is_judged: bool, is_timed: bool) -> str | None:
        """Why no policy can be told from this log. None: it can."""
        known = {*seen, *(("t",) if is_timed else ())}
        if not is_judged:
            return f"nothing in it was judged: no record has a step, a whole number{self._advice(known)}"
        for name, names in self.fields.items():
            if names is not DEFAULT_FIELDS.get(name) and name not in known:
                asked = " or ".join(f'"{one[:NAME_CHARS_MAX]}"' for one in names[:2])
                usual = next((one for one in DEFAULT_FIELDS.get(name, ()) if one in self.keys), None)
                if usual is not None:
                    return f'no record has {asked}, which is mapped to {name}; leave that out: "{usual}" needs no map'
                return f"no record has {asked}, which is mapped to {name}{self._advice(known)}"
        if known.isdisjoint(_OF_TRAINING):
            return f"nothing but its steps is known{self._advice(known)}"
        return None

    def lacks(self, seen: Collection[str], *, is_timed: bool) -> str | None:
        """What this log cannot be judged for. None: for nothing that matters."""
        if "loss" not in seen:
            known = {*seen, *(("t",) if is_timed else ())}
            return f"no loss is known: neither NaN nor divergence can be seen{self._advice(known)}"
        return None

    def _advice(self, known: Collection[str]) -> str:
        """The keys, and what to pass for those that probably are a field's."""
        names = {name: found for name, found in likely(self.keys, _HINTED).items() if name not in known}
        taken = {name for held in known for name in self.fields.get(held, ())}
        maps = " ".join(_map(name, found) for name, found in names.items() if found not in taken and _is_pasted(found))
        shown = ", ".join(name[:NAME_CHARS_MAX] for name in [*self.keys][:KEYS_SHOWN])
        more = ", …" if len(self.keys) > KEYS_SHOWN else ""
        apart = separator(self.keys)
        if apart is not None:
            return f" (keys: {shown}); its columns are separated by {apart!r}: write the table with commas"
        return f" (keys: {shown or 'none'}{more}){f'; try {maps}' if maps else ''}"


def _map(name: str, found: str) -> str:
    """Words for a shell."""
    return f"--map {shlex.quote(f'{name}={found}')}"


def _is_pasted(name: str) -> bool:
    """Whether a line on a screen shows the name as it is."""
    return len(name) <= PASTED_CHARS_MAX and plain(name) == name
