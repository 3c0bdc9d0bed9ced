"""Halt marks: what people have said of halts, in the order in which they said it. Pure: rows in, counts out.

A mark of root or of the governor's own user counts for every run. A run's own user may mark too, which counts for the
runs of this user alone: nobody takes a rule's force from another user's runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from governor.core.base.findings import Response
from governor.core.base.policy import (
    AT_ONCE,
    WRONG_MAX,
    FallBack,
    Mode,
    Policy,
    PolicySet,
    Rule,
    Wrong,
    WrongHalt,
)
from governor.core.base.units import WallNs

NOTE_CHARS_MAX: Final = 512  # As of the reasons of a hold.
NAME_CHARS_MAX: Final = 256
_INTEGER_MAX: Final = 2**63
Key = tuple[str, int]  # A halt: its id and when it opened. Two journals may use the same ids.
RuleKey = tuple[str, str]  # Policy and rule.


class Said(Enum):
    """What a person says of a halt."""

    FALSE = "false"
    RIGHT = "right"
    CLEARED = "cleared"  # Nothing any more.


@dataclass(frozen=True, slots=True)
class HaltMark:
    """One person's word on one halt. It has what a table needs when the journal no longer has the incident.

    Dollars are micro-dollars, None where unknown. `for_all`: it counts for every run, else for the runs of `owner`.
    """

    incident_id: str
    opened_wall: WallNs
    run: str
    policy: str
    rule: str
    trigger: str
    owner: int
    said: Said
    note: str
    uid: int
    wall: WallNs
    for_all: bool
    wrong_max: int | None = None  # Of the policy, as far as the incident has it.
    spent_usd_micros: int | None = None
    lost_usd_micros: int | None = None

    @property
    def key(self) -> Key:
        return self.incident_id, self.opened_wall

    @property
    def rule_key(self) -> RuleKey:
        return self.policy, self.rule


@dataclass(frozen=True, slots=True)
class Rearm:
    """A person has looked at a rule: its false halts up to here count no more."""

    policy: str
    rule: str
    uid: int
    wall: WallNs
    for_all: bool
    note: str = ""

    @property
    def rule_key(self) -> RuleKey:
        return self.policy, self.rule


Entry = HaltMark | Rearm
_ACTS: Final[Mapping[str, type[HaltMark] | type[Rearm]]] = {"mark": HaltMark, "rearm": Rearm}
_TEXTS: Final = ("incident_id", "run", "policy", "rule", "trigger", "note")
_COUNTS: Final = ("opened_wall", "owner", "uid", "wall")
_MAYBE: Final = ("wrong_max", "spent_usd_micros", "lost_usd_micros")


def row_of(entry: Entry) -> dict[str, Any]:
    """As the file and the control socket have it. What is unknown is left out."""
    row = {name: value for name, value in asdict(entry).items() if value is not None}
    if isinstance(entry, HaltMark):
        return {"act": "mark", **row, "said": entry.said.value}
    return {"act": "rearm", **row}


def entry_of(row: object) -> Entry:
    """Read a row. ValueError when it is none of ours: a text too long, a number that is none, a key that is missing."""
    act = row.get("act") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(act, str) or act not in _ACTS:
        raise ValueError("no halt mark")
    kind = _ACTS[act]
    known = {name: row[name] for name in kind.__dataclass_fields__ if name in row}
    if "said" in known:
        known["said"] = Said(known["said"])
    for name, value in known.items():
        if name in _TEXTS:
            is_ours = isinstance(value, str) and len(value) <= (NOTE_CHARS_MAX if name == "note" else NAME_CHARS_MAX)
        elif name in (*_COUNTS, *_MAYBE):
            is_ours = type(value) is int and abs(value) < _INTEGER_MAX
        else:
            is_ours = name == "said" or isinstance(value, bool)
        if not is_ours:
            raise ValueError(f"{name} is none")
    try:
        return kind(**known)
    except TypeError as error:
        raise ValueError("a key is missing") from error


@dataclass(slots=True)
class HaltMarks:
    """All entries, folded. An entry counts from where it stands: no clock decides."""

    entries: list[Entry] = field(default_factory=list)
    marks: dict[Key, HaltMark] = field(default_factory=dict)  # The last one of each halt.
    _counted: dict[RuleKey, dict[Key, HaltMark]] = field(default_factory=dict)
    _settled: set[Key] = field(default_factory=set)  # Counted before their rule was re-armed.

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> HaltMarks:
        found = cls()
        for entry in entries:
            found.add(entry)
        return found

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, Rearm):
            self._rearm(entry)
            return
        before = self.marks.pop(entry.key, None)
        if before is not None:
            self._counted.get(before.rule_key, {}).pop(entry.key, None)
        self.marks[entry.key] = entry
        if entry.said is Said.FALSE and entry.key not in self._settled:
            self._counted.setdefault(entry.rule_key, {})[entry.key] = entry

    def _rearm(self, entry: Rearm) -> None:
        counted = self._counted.get(entry.rule_key, {})
        settled = [key for key, mark in counted.items() if entry.for_all or _owner(mark) == entry.uid]
        self._settled.update(settled)
        for key in settled:
            del counted[key]

    def counted(self, rule: RuleKey) -> list[HaltMark]:
        """The false halts of a rule since it was last re-armed, the oldest mark first."""
        return list(self._counted.get(rule, {}).values())

    def rules(self) -> list[RuleKey]:
        """The rules with false halts that count."""
        return [rule for rule, counted in self._counted.items() if counted]

    def wrong(self) -> Wrong:
        """As the policies are given it."""
        return {rule: self.wrong_halts(rule) for rule in self.rules()}

    def wrong_halts(self, rule: RuleKey) -> tuple[WrongHalt, ...]:
        return tuple(WrongHalt(mark.incident_id, _owner(mark)) for mark in self.counted(rule))


def _owner(mark: HaltMark) -> int | None:
    return None if mark.for_all else mark.owner


# --- what follows: decided by the policies' own set, as in a governor -----------------------------------------


BY_HAND: Final = "operator"  # The trigger of a halt that a person asked for.


@dataclass(frozen=True, slots=True)
class Standing:
    """How far rules are from falling back, under these policies."""

    policies: PolicySet

    @classmethod
    def of(cls, policies: PolicySet, marks: HaltMarks) -> Standing:
        """Of a policy that is not among them: by what its marked halts have."""
        known = {policy.name for policy in policies.policies}
        latest = {mark.rule_key: mark for mark in marks.marks.values() if mark.policy not in known}
        others = (policy_of(mark) for mark in latest.values())
        return cls(replace(policies, policies=(*policies.policies, *others), wrong=marks.wrong()))

    def fallen(self, rule: RuleKey | None = None) -> list[FallBack]:
        """Every rule that has fallen back, or this one: for all runs, else for those of single users."""
        return [one for one in self.policies.fallen() if rule in (None, (one.policy, one.rule))]

    def wrong_max(self, rule: RuleKey) -> int:
        """With so many false halts it falls back. 0: it does not, or no policy has it."""
        of_name = (policy for policy in self.policies.policies if policy.name == rule[0])
        found = (
            policy for policy in of_name for one in policy.rules if one.name == rule[1] and policy.may_fall_back(one)
        )
        return max((policy.wrong_max for policy in found), default=0)


def policy_of(mark: HaltMark) -> Policy:
    """What is known of a halt's policy when no governor that has it is there. An older incident has no `wrong_max`."""
    wrong_max = mark.wrong_max
    if wrong_max is None:
        wrong_max = 0 if mark.trigger == BY_HAND else WRONG_MAX
    rule = Rule(mark.rule, mark.trigger, {}, AT_ONCE, Response.HALT, Mode.ENFORCE, "none")
    return Policy(mark.policy, rules=(rule,), wrong_max=wrong_max)
