"""The rows of a fleet's costs (docs/adr/0029): what one ledger has charged to one run on one UTC day.

A governor writes them, and `costgov cost --fleet` adds them up: both in money.reports.cost, where amounts are added.
Whoever reads them believes nothing of them: each is bounded, and whole or unreadable.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from governor.core.base.units import NS_PER_DAY, UsdMicros, WallNs, date_text, parse_utc
from governor.core.events.fleet_store import Kept
from governor.core.fleet.scopes import NAME_CHARS_MAX, ROOT, ROW_CHARS_MAX, Holder, quoted, unquoted
from governor.core.money.budgets import CEILING_MAX_USD_MICROS
from governor.core.money.charges import UNALLOCATED, Charge, Line, LineKind, Payer, Place, Unit, labels_of
from governor.core.money.reports.cost import Group, Sum, Tallied, tally_sums

COST_ROWS: Final = f"{ROOT}cost/"
# A node has some dozens of runs a day. Beyond this the cheapest are one row, so that nobody's script fills the store.
ROWS_OF_DAY_MAX: Final = 1_000
PARTS_MAX: Final = 64  # Of a row of 4,096 characters: it holds no more.
OTHER_RUNS: Final = "(other runs)"  # No run has such a name.
# What stands in a key for these two. No quoted name is such a text.
_IN_KEYS: Final = {UNALLOCATED: "%nobody", OTHER_RUNS: "%others"}
_FROM_KEYS: Final = {text: run for run, text in _IN_KEYS.items()}
_AMOUNT_MAX: Final = 16 * CEILING_MAX_USD_MICROS
_NS_MAX: Final = 2**63 - 1
# What may be left out of a row that is too long, in this order.
LABELS, SOURCES, STAGES, NODES = "labels", "sources", "stages", "nodes"
_NO_LINE: Final = Line(LineKind.COMPUTE, "", Unit.HOUR, 0, "", "")
# Likewise, the figures of a part that are whole numbers, and the most that each may be.
_FIGURES: Final = {
    "charges": _NS_MAX,
    "node_ns": _NS_MAX,
    "usd_micros": _AMOUNT_MAX,
    "reconstructed_usd_micros": _AMOUNT_MAX,
}


@dataclass(frozen=True, slots=True)
class Share:
    """What a run was charged on one day with one stage, these labels, and on one node."""

    node: str
    stage: str | None
    labels: tuple[tuple[str, str], ...]
    figures: Group


@dataclass(frozen=True, slots=True)
class CostRow:
    """`unread`: rows of this ledger and day that its governor could not read. They are in no figure.

    What does not count when rows are compared changes without any charge.
    """

    run: str
    shares: tuple[Share, ...] = ()
    left_out: tuple[str, ...] = ()  # What did not fit. The amounts are whole.
    unread: int = 0
    uid: int | None = field(default=None, compare=False)
    unpriced_ns: int = field(default=0, compare=False)  # Of the run until then, not of the day alone.
    as_of_wall_ns: int = field(default=0, compare=False)
    began_wall_ns: int = field(default=0, compare=False)  # When the governor began that wrote it.
    has_ended: bool = field(default=False, compare=False)  # It was written at that governor's end.


@dataclass(frozen=True, slots=True)
class LedgerDay:
    """What one ledger says of one day. `holder`: as the journal has it, with these charges. None: it has none yet."""

    sums: tuple[Sum, ...] = ()
    unpriced: Mapping[str, int] = field(default_factory=dict)
    uids: Mapping[str, int] = field(default_factory=dict)
    unread: int = 0
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A row with what its key says."""

    day: int  # Since 1970.
    holder: Holder
    row: CostRow


# --- keys ---------------------------------------------------------------------------------------------------


def rows_of_node(day: int, node: str) -> str:
    """The prefix of the rows of a day and node: of all ledgers and boots of that name."""
    return f"{rows_of_day(day)}/{quoted(node)}~"


def rows_of_holder(day: int, holder: Holder) -> str:
    return f"{rows_of_day(day)}/{holder.text}/"


def rows_of_day(day: int) -> str:
    """Rows of earlier days are before it, and all others behind it."""
    return f"{COST_ROWS}{date_text(day * NS_PER_DAY)}"


def cost_key(day: int, holder: Holder, run: str) -> str:
    """ValueError when the run's name can be no part of a key."""
    return rows_of_holder(day, holder) + (_IN_KEYS.get(run) or quoted(run))


def _read_key(key: str) -> tuple[int, Holder, str]:
    """ValueError: no governor writes such a key."""
    day_text, holder_text, run_text = key.removeprefix(COST_ROWS).split("/")
    node, boot_id, ledger = map(unquoted, holder_text.split("~"))
    holder = Holder(node, boot_id, ledger)
    day = parse_utc(day_text) // NS_PER_DAY
    known = _FROM_KEYS.get(run_text)
    run = known if known is not None else unquoted(run_text)
    if key != cost_key(day, holder, run):
        raise ValueError("it is written otherwise")
    return day, holder, run


# --- from a ledger to rows ----------------------------------------------------------------------------------


def rows_from(read: LedgerDay) -> list[CostRow]:
    """The rows of a day: one for each run, bounded in their number and length. Amounts stay whole."""
    by_run: dict[str, list[Sum]] = {}
    for one in read.sums:
        by_run.setdefault(one.charge.payer.run, []).append(one)
    for run in read.unpriced:
        by_run.setdefault(run, [])
    cost = {run: sum(one.charge.usd_micros for one in sums) for run, sums in by_run.items()}
    # Nobody's time has its row in any case.
    order = sorted(by_run, key=lambda run: (run != UNALLOCATED, -cost[run], run))
    kept = [run for run in order if run == UNALLOCATED or _is_name(run)][: ROWS_OF_DAY_MAX - 1]
    rest = [one for run in by_run.keys() - set(kept) for one in by_run.pop(run)]
    if rest:
        by_run[OTHER_RUNS] = [Sum(replace(one.charge, payer=Payer(OTHER_RUNS)), one.charges) for one in rest]
    return [_row(run, sums, read) for run, sums in by_run.items()]


def _is_name(run: str) -> bool:
    try:
        return bool(quoted(run))
    except ValueError:
        return False


def _row(run: str, sums: list[Sum], read: LedgerDay) -> CostRow:
    """With all that fits. Labels go one by one, the longest first."""
    row = CostRow(run, (), (), read.unread, read.uids.get(run), read.unpriced.get(run, 0))
    chars: dict[str, int] = {}
    for name, value in (label for one in sums for label in one.charge.payer.labels):
        chars[name] = max(chars.get(name, 0), len(name) + len(value))
    names = sorted(chars, key=lambda name: (chars[name], name))
    steps: list[tuple[int, tuple[str, ...]]] = [(kept, (LABELS,)) for kept in range(len(names) - 1, -1, -1)]
    steps = [(len(names), ()), *steps, *((0, (LABELS, SOURCES, STAGES, NODES)[:last]) for last in (2, 3, 4))]
    for kept, left_out in steps:
        shares = _shares(sums, frozenset(names[:kept]), left_out)
        made = replace(row, shares=shares, left_out=left_out)
        if len(shares) <= PARTS_MAX and len(text_of(made)) + _STAMP_CHARS <= ROW_CHARS_MAX:
            return made
    raise AssertionError("one part without names fits into a row")


def _shares(sums: Iterable[Sum], names: frozenset[str], left_out: tuple[str, ...]) -> tuple[Share, ...]:
    alike: dict[tuple[str, str | None, tuple[tuple[str, str], ...]], list[Sum]] = {}
    for one in sums:
        payer, place = one.charge.payer, one.charge.place
        labels = tuple((name, value) for name, value in payer.labels if name in names)
        stage = None if STAGES in left_out else payer.stage
        node = place.node[:NAME_CHARS_MAX] if NODES not in left_out else "(several)"
        alike.setdefault((node, stage, labels), []).append(one)
    shares = []
    for (node, stage, labels), same in sorted(alike.items(), key=lambda item: repr(item[0])):
        [figures] = tally_sums((Sum(replace(one.charge, payer=Payer("all")), one.charges) for one in same), "run")
        shares.append(Share(node, stage, labels, _plain(figures, with_sources=SOURCES not in left_out)))
    return tuple(shares)


def _plain(group: Group, *, with_sources: bool) -> Group:
    """What a row has of a group: no key, and no quantity, which only a line has."""
    return replace(group, key="", quantity=0, sources=set(group.sources) if with_sources else set())


# --- rows as text -------------------------------------------------------------------------------------------

_STAMP_CHARS: Final = 100  # What as_of, began, ended and unpriced_ns may grow by.


def text_of(row: CostRow) -> str:
    told: dict[str, Any] = {"v": 1, "as_of_wall_ns": row.as_of_wall_ns, "began_wall_ns": row.began_wall_ns}
    told |= {"has_ended": True} if row.has_ended else {}
    told |= {"uid": row.uid} if row.uid is not None else {}
    told |= {"unpriced_ns": row.unpriced_ns} if row.unpriced_ns else {}
    told |= {"unread": row.unread} if row.unread else {}
    told |= {"left_out": list(row.left_out)} if row.left_out else {}
    return json.dumps({**told, "shares": [_told(share) for share in row.shares]}, separators=(",", ":"))


def _told(share: Share) -> dict[str, Any]:
    figures = share.figures
    told: dict[str, Any] = {"node": share.node, **{name: getattr(figures, name) for name in _FIGURES}}
    told |= {"stage": share.stage} if share.stage is not None else {}
    told |= {"labels": dict(share.labels)} if share.labels else {}
    if figures.price_min_usd_micros is not None:
        told["prices_usd_micros"] = [figures.price_min_usd_micros, figures.price_max_usd_micros]
        told["sources"] = [list(source) for source in sorted(figures.sources)]
    return told


def found_in(kept: Kept) -> Found | None:
    """None: it is no row that a governor of this version writes."""
    try:
        day, holder, run = _read_key(kept.key)
        return Found(day, holder, _read(run, kept.value))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def names_in_key(key: str) -> tuple[int, Holder, str] | None:
    """Day, holder and run of a key. None: no governor writes such a key."""
    try:
        return _read_key(key)
    except ValueError:
        return None


def _read(run: str, text: str) -> CostRow:
    if len(text) > ROW_CHARS_MAX:
        raise ValueError("it is too long")
    raw = json.loads(text)
    shares = raw["shares"]
    if raw["v"] != 1 or not isinstance(shares, list) or len(shares) > PARTS_MAX:
        raise ValueError("another version, or no shares")
    left_out = tuple(name for name in (LABELS, SOURCES, STAGES, NODES) if name in raw.get("left_out", ()))
    uid = raw.get("uid")
    return CostRow(
        run,
        tuple(map(_read_share, shares)),
        left_out,
        _amount(raw.get("unread", 0), _NS_MAX),
        None if uid is None else _amount(uid, 2**32),
        _amount(raw.get("unpriced_ns", 0), _NS_MAX),
        _amount(raw["as_of_wall_ns"], _NS_MAX),
        _amount(raw["began_wall_ns"], _NS_MAX),
        raw.get("has_ended") is True,
    )


def _read_share(raw: Mapping[str, Any]) -> Share:
    charges, node_ns, micros, reconstructed = (_amount(raw[name], most) for name, most in _FIGURES.items())
    figures = Group("", charges, node_ns, micros, reconstructed)
    if (prices := raw.get("prices_usd_micros")) is not None:
        low, high = (_amount(price, _AMOUNT_MAX) for price in prices)
        sources = {(_name(source), _name(as_of)) for source, as_of in raw["sources"]}
        figures = replace(
            figures, unit=Unit.HOUR, price_min_usd_micros=low, price_max_usd_micros=high, sources=sources
        )  # fmt: skip
    stage = raw.get("stage")
    labels = {_name(name): _name(value) for name, value in raw.get("labels", {}).items()}
    return Share(_name(raw["node"]), None if stage is None else _name(stage), labels_of(labels), figures)


def _amount(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:  # A bool is an int, and no amount.
        raise ValueError("no amount")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


# --- from rows to figures -----------------------------------------------------------------------------------


def each_once(found: Iterable[Found]) -> Iterator[Found]:
    """The rows, in the order of their keys, without those that a later one of the same ledger has in it.

    A machine that was started anew without an id of its provider writes under another boot. Its ledger goes on, so
    its row has the earlier one's charges too. Of two machines with copies of one ledger each row counts: then the
    earlier one has said something since the later one began.
    """
    for _, rows in groupby(found, key=lambda one: (one.day, one.holder.node)):
        alike: dict[tuple[str, str], list[Found]] = {}
        for one in rows:
            alike.setdefault((one.holder.ledger, one.row.run), []).append(one)
        for same in alike.values():
            later_began = -1
            for one in sorted(same, key=lambda one: one.row.as_of_wall_ns, reverse=True):
                if later_began < one.row.as_of_wall_ns:
                    yield one
                later_began = max(later_began, one.row.began_wall_ns)


@dataclass(slots=True)
class FleetTally:
    """What is told beside the amounts of the rows that have gone through `tallied`."""

    today: int
    nodes: set[str] = field(default_factory=set)
    charged: set[str] = field(default_factory=set)
    unpriced_ns: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)  # By what: how many rows are without it.
    unread: dict[tuple[int, Holder], int] = field(default_factory=dict)
    _last_words: dict[Holder, tuple[int, bool]] = field(default_factory=dict)  # Of today: when, and whether it ended.

    def tallied(self, found: Iterable[Found], runs: Collection[str] = ()) -> Iterator[Tallied]:
        """What tally_again() takes: of these runs. None named: all."""
        for one in each_once(found):
            row, place = one.row, (one.day, one.holder)
            if one.day == self.today:
                word = row.as_of_wall_ns, row.has_ended
                self._last_words[one.holder] = max(self._last_words.get(one.holder, word), word)
            if runs and row.run not in runs:
                continue
            if row.unread:
                self.unread[place] = max(self.unread.get(place, 0), row.unread)
            if row.unpriced_ns:  # It is of the whole run, and on each of its days.
                self.unpriced_ns[row.run] = max(self.unpriced_ns.get(row.run, 0), row.unpriced_ns)
            for name in row.left_out:
                self.left_out[name] = self.left_out.get(name, 0) + 1
            for share in row.shares:
                self.nodes.add(share.node)
                self.charged.add(row.run)
                yield Tallied(_like(one.day, row.run, share), share.figures)

    def as_of(self) -> int | None:
        """The oldest last word of a governor that has rows of today and has not ended. None: there is none."""
        return min((at for at, has_ended in self._last_words.values() if not has_ended), default=None)


def _like(day: int, run: str, share: Share) -> Charge:
    at = WallNs(day * NS_PER_DAY)
    payer = Payer(run, stage=share.stage, labels=share.labels)
    return Charge("", Place(share.node), payer, _NO_LINE, at, at, 0, UsdMicros(0))
