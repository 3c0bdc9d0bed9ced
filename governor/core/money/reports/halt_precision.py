"""How often each rule was right, by what people have said of its halts, and what the false ones threw away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.halt_marks import NAME_CHARS_MAX, HaltMark, HaltMarks, Key, RuleKey, Said
from governor.core.base.units import NS_PER_HOUR, WallNs, is_spend_known

Snapshot = Mapping[str, Any]
LOST: Final = (
    "LOST: what false halts threw away: the run's price since the checkpoint that it goes on from (nothing where the "
    "halt has saved a good one; all where it has saved a suspect one, and no good one is known), and what the halts "
    "themselves cost; the starts after them are not in it; -: not known"
)


def lost_usd_micros(snapshot: Snapshot) -> int | None:
    """What this halt threw away, in micro-dollars, if it was false (see LOST). None: not known.

    KeyError, TypeError or ValueError when the snapshot is none of ours.
    """
    rate, spent = snapshot.get("spend_rate_usd_micros_per_hour"), int(snapshot["spend_usd_micros"])
    if rate is None:
        return None
    at_verdict = int(snapshot.get("spend_at_verdict_usd_micros", spent))
    if _begins_anew(snapshot):
        return max(spent, at_verdict)
    unsaved_ns = _unsaved_ns(snapshot)
    if unsaved_ns is None:
        return None
    # The rate may have risen since. No more is lost than was spent.
    return min(int(rate) * unsaved_ns // NS_PER_HOUR, at_verdict) + max(0, spent - at_verdict)


def _has_saved_good(snapshot: Snapshot) -> bool:
    """Whether the halt has saved what the run goes on from. Nobody goes on from a suspect one."""
    saved = snapshot.get("checkpoint") or {}
    is_whole = saved.get("verified_by") in ("governor", "trainer")
    return is_whole and _kind(snapshot) == "good" and not any(saved.get(mark) for mark in _UNFIT)


def _kind(snapshot: Snapshot) -> str | None:
    """Of the halt's own checkpoint. It may be another than what was asked for."""
    return (snapshot.get("checkpoint") or {}).get("kind", snapshot.get("kind"))


def _begins_anew(snapshot: Snapshot) -> bool:
    """A rank that saves for a halt tells of each good checkpoint that it has saved or loaded, and there was none."""
    return _kind(snapshot) == "suspect" and bool(snapshot.get("checkpoint")) and not snapshot.get("last_good")


def _unsaved_ns(snapshot: Snapshot) -> int | None:
    """How long before the verdict the run had saved what it goes on from."""
    if _has_saved_good(snapshot):
        return 0
    good = snapshot.get("last_good") or {}
    at, opened = good.get("mono_ns"), snapshot.get("opened_mono_ns")
    if type(at) is not int or type(opened) is not int or any(good.get(mark) is not None for mark in _UNFIT):
        return None
    return opened - at if 0 <= at <= opened else None


_UNFIT: Final = ("gone", "torn", "nonfinite", "fault")  # A checkpoint that nobody goes on from.


def spent_usd_micros(snapshot: Snapshot) -> int | None:
    """What the run had spent at the verdict, in micro-dollars. None: not known."""
    spent = snapshot.get("spend_at_verdict_usd_micros")
    is_known = is_spend_known(snapshot.get("spend_rate_usd_micros_per_hour"), snapshot["spend_usd_micros"])
    return int(spent) if spent is not None and is_known else None


def mark_of(snapshot: Snapshot, said: Said, note: str, uid: int, wall: WallNs, *, for_all: bool) -> HaltMark:
    """A person's word on the halt of this snapshot. KeyError, TypeError or ValueError when that is none of ours."""
    wrong_max, owner = snapshot.get("wrong_max"), snapshot.get("uid")
    texts = {name: str(snapshot[name])[:NAME_CHARS_MAX] for name in ("incident_id", "run", "policy", "rule", "trigger")}
    return HaltMark(
        **texts,
        opened_wall=WallNs(int(snapshot["opened_wall_ns"])),
        owner=owner if type(owner) is int else -1,
        said=said,
        note=note,
        uid=uid,
        wall=wall,
        for_all=for_all,
        wrong_max=wrong_max if type(wrong_max) is int else None,
        spent_usd_micros=spent_usd_micros(snapshot),
        lost_usd_micros=lost_usd_micros(snapshot),
    )


# --- the table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JudgedHalt:
    """One halt and the last word on it. `said` None: nobody has said anything."""

    key: Key
    rule_key: RuleKey
    trigger: str
    said: Said | None
    spent_usd_micros: int | None
    lost_usd_micros: int | None


@dataclass(slots=True)
class Tally:
    """The halts of one rule, or of one of its months. Dollars are micro-dollars of what is known, None: of none."""

    halts: int = 0
    right: int = 0
    false: int = 0
    spent_usd_micros: int | None = None
    spent_unknown: int = 0  # Halts.
    lost_usd_micros: int | None = None
    lost_unknown: int = 0  # False halts.

    @property
    def unmarked(self) -> int:
        return self.halts - self.right - self.false

    @property
    def precision_frac(self) -> float | None:
        """The share of right ones among the marked; None: none is marked."""
        marked = self.right + self.false
        return self.right / marked if marked else None

    def add(self, halt: JudgedHalt) -> None:
        self.halts += 1
        self.right += halt.said is Said.RIGHT
        self.false += halt.said is Said.FALSE
        self.spent_usd_micros = _sum(self.spent_usd_micros, halt.spent_usd_micros)
        self.spent_unknown += halt.spent_usd_micros is None
        if halt.said is Said.FALSE:
            self.lost_usd_micros = _sum(self.lost_usd_micros, halt.lost_usd_micros)
            self.lost_unknown += halt.lost_usd_micros is None


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


@dataclass(slots=True)
class RuleRow:
    policy: str
    rule: str
    trigger: str
    whole: Tally = field(default_factory=Tally)
    by_period: dict[str, Tally] = field(default_factory=dict)  # In order of time.


def judged(incidents: Iterable[Snapshot], marks: Iterable[HaltMarks]) -> list[JudgedHalt]:
    """Every halt that is known, oldest first: of the journals, and marked ones that these no longer have.

    KeyError, TypeError or ValueError when a snapshot is none of ours.
    """
    said: dict[Key, HaltMark] = {}
    for one in marks:
        said.update(one.marks)
    found: dict[Key, JudgedHalt] = {}
    for snapshot in incidents:
        key = str(snapshot["incident_id"]), int(snapshot["opened_wall_ns"])
        rule_key = str(snapshot["policy"]), str(snapshot["rule"])
        spent, lost = spent_usd_micros(snapshot), lost_usd_micros(snapshot)
        found[key] = JudgedHalt(key, rule_key, str(snapshot["trigger"]), _said(said.get(key)), spent, lost)
    for key, mark in said.items():
        if key not in found:
            spent, lost = mark.spent_usd_micros, mark.lost_usd_micros
            found[key] = JudgedHalt(key, mark.rule_key, mark.trigger, _said(mark), spent, lost)
    return sorted(found.values(), key=lambda halt: (halt.key[1], halt.key[0]))


def _said(mark: HaltMark | None) -> Said | None:
    return mark.said if mark is not None and mark.said is not Said.CLEARED else None


def rule_rows(halts: Iterable[JudgedHalt], period_of: Callable[[int], str]) -> list[RuleRow]:
    """One row for each policy and rule, by name. `period_of`: the period of a wall time, whose names sort by time."""
    rows: dict[RuleKey, RuleRow] = {}
    for halt in halts:
        row = rows.setdefault(halt.rule_key, RuleRow(*halt.rule_key, halt.trigger))
        row.whole.add(halt)
        row.by_period.setdefault(period_of(halt.key[1]), Tally()).add(halt)
    return [rows[key] for key in sorted(rows)]
