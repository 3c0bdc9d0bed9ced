"""The rows of shared budgets in the fleet's store (docs/adr/0028), and the arithmetic that keeps their one promise.

A scope's row has its ceiling and the sum of all grants. A grant's row has what one governor may spend for one run.
Every change is one transaction over both rows, which applies only if neither has changed since it was read. So no two
governors are ever given the same dollar. All amounts are integer micro-dollars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, WallNs, date_text, day_number
from governor.core.events.fleet_store import Kept, Transaction
from governor.core.money.budgets import CEILING_MAX_USD_MICROS, ScopeKind, checked_ceiling, parse_scope
from governor.core.money.group_totals import KEY_CHARS_MAX

ROOT: Final = "costgov/1/"
SCOPE_ROWS: Final = f"{ROOT}scope/"
GRANT_ROWS: Final = f"{ROOT}grant/"
# A row is 300 bytes. What is longer was not written by a governor.
ROW_CHARS_MAX: Final = 4_096
NAME_CHARS_MAX: Final = 256  # A run's name, or one part of a holder's. The key is at most a kilobyte.
_AMOUNT_MAX: Final = 16 * CEILING_MAX_USD_MICROS  # Sums of spend beyond grants, too.
_NS_MAX: Final = 2**63 - 1
HOLDERS_MAX: Final = 1_000_000
FLEET: Final = "fleet"  # Every run of every governor.
DAY: Final = "day"  # All of them, by the UTC day.
SCOPES: Final = 'label:KEY=VALUE, stage:NAME, "day" or "fleet"'
_DAY: Final = re.compile(f"{DAY}:([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})")


@dataclass(frozen=True, slots=True)
class Holder:
    """One governor as the holder of grants. Two machines of one name differ by boot id, two ledgers by their id."""

    node: str
    boot_id: str
    ledger: str

    @property
    def text(self) -> str:
        return "~".join(quoted(part) for part in (self.node, self.boot_id, self.ledger))


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """`held + settled - over` never exceeds the ceiling by a grant. It does after a person has lowered the ceiling."""

    ceiling_usd_micros: int
    held_usd_micros: int = 0  # The sum of all grants that are held.
    settled_usd_micros: int = 0  # What those have spent that have been given back.
    over_usd_micros: int = 0  # Of that, what was spent beyond grants: by a machine that nobody could halt.
    holders: int = 0  # Grants that are held.

    @property
    def room_usd_micros(self) -> int:
        """What may still be granted. Negative: more is granted than the ceiling now allows."""
        return self.ceiling_usd_micros - self.held_usd_micros - self.settled_usd_micros


@dataclass(frozen=True, slots=True)
class GrantRow:
    """`spent` and `rate` are what the holder said at its last change: for who settles it when the holder is gone."""

    granted_usd_micros: int
    base_usd_micros: int = (
        0  # The run's spend when the grant was opened, by its holder's ledger. `spent` has no part of it.
    )
    spent_usd_micros: int = 0
    rate_usd_micros_per_hour: int = 0
    seen_wall_ns: int = 0
    instance: str = ""  # The start of a governor that wrote this row.
    request: str = ""  # The request that wrote it, so that a lost answer can be read back.


_Row = TypeVar("_Row", ScopeRow, GrantRow)


def quoted(text: str) -> str:
    """The text as one part of a key: without a slash or a tilde. ValueError when it can be no part of a key."""
    if not 0 < len(text) <= NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"a name in the fleet's store has 1 to {NAME_CHARS_MAX} printable characters")
    return text.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")


def unquoted(part: str) -> str:
    return part.replace("%7E", "~").replace("%2F", "/").replace("%25", "%")


def checked_scope(text: str) -> str:
    """ValueError when it is no scope that a fleet can share."""
    if text in (FLEET, DAY):
        return text
    try:
        scope = parse_scope(text)
    except ValueError:
        scope = None
    if scope is None or scope.kind not in (ScopeKind.STAGE, ScopeKind.LABEL):
        raise ValueError(f"{text[:80]!r} is no scope of a fleet; write {SCOPES}")
    return scope.text


def checked_row(text: str, wall: WallNs) -> str:
    """The scope of a row, as a person names it: `day` is the row of this UTC day. ValueError: governors have none."""
    if text == DAY:
        return f"{DAY}:{date_text(wall)}"
    named = _DAY.fullmatch(text)
    if named is not None:
        year, month, day = (int(part) for part in named.groups())
        if text == f"{DAY}:{date_text(day_number(year, month, day) * NS_PER_DAY)}":
            return text
    try:
        return checked_scope(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is no scope of a fleet; write {SCOPES}; {DAY}:YYYY-MM-DD is one day") from None


def scope_key(scope: str) -> str:
    """ValueError when the text is too long or not printable."""
    if len(scope) > KEY_CHARS_MAX:
        raise ValueError(f"a scope has at most {KEY_CHARS_MAX} characters")
    return SCOPE_ROWS + quoted(scope)


def grants_of(holder: Holder) -> str:
    """The prefix of all its grants: what a governor reads when it starts."""
    return f"{GRANT_ROWS}{holder.text}/"


def grant_key(holder: Holder, scope: str, run: str) -> str:
    return f"{grants_of(holder)}{scope_key(scope).removeprefix(SCOPE_ROWS)}/{quoted(run)}"


def names_in(key: str) -> tuple[str, str, str] | None:
    """The holder's text, the scope and the run of a grant's key. None: it is no such key."""
    parts = key.removeprefix(GRANT_ROWS).split("/")
    if not key.startswith(GRANT_ROWS) or len(parts) != 3:
        return None
    holder, scope, run = parts
    return holder, unquoted(scope), unquoted(run)


def short_id(grant_id: str) -> str:
    """Node, scope and run of a grant's ID. Another start of the machine, or another ledger, may have the same."""
    holder, slash, rest = grant_id.partition("/")
    return holder.partition("~")[0] + slash + rest


# --- rows as text -------------------------------------------------------------------------------------------


def text_of(row: ScopeRow | GrantRow) -> str:
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return json.dumps({"v": 1, **fields}, separators=(",", ":"))


def scope_row(kept: Kept) -> ScopeRow | None:
    """None where there is no row, or none that can be read: nothing is granted from it."""
    return _read(kept, ScopeRow)


def grant_row(kept: Kept) -> GrantRow | None:
    return _read(kept, GrantRow)


def _read(kept: Kept, kind: type[_Row]) -> _Row | None:
    if not kept.revision or len(kept.value) > ROW_CHARS_MAX:
        return None
    fields = _sound(kept.value, tuple(kind.__dataclass_fields__))
    return None if fields is None else kind(**fields)


@lru_cache(maxsize=1_024)  # Each grant's two rows are looked at in every tick, and change once in minutes.
def _sound(text: str, names: tuple[str, ...]) -> Mapping[str, Any] | None:
    try:
        raw = json.loads(text)
        fields = {name: raw[name] for name in names}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return fields if raw.get("v") == 1 and all(map(_is_sound, fields, fields.values())) else None


def _is_sound(name: str, value: Any) -> bool:
    if name in ("instance", "request"):
        return isinstance(value, str) and len(value) <= NAME_CHARS_MAX
    most = {"seen_wall_ns": _NS_MAX, "holders": HOLDERS_MAX}.get(name, _AMOUNT_MAX)
    return type(value) is int and 0 <= value <= most  # A bool is an int, and no amount.


# --- changes ------------------------------------------------------------------------------------------------


def granted(scope: ScopeRow, row: GrantRow | None, to: GrantRow) -> ScopeRow:
    """The scope after a grant was opened (`row` None), raised or lowered. The caller has looked at the room."""
    before = row.granted_usd_micros if row is not None else 0
    more = to.granted_usd_micros - before
    assert more <= max(0, scope.room_usd_micros), "a grant beyond the ceiling"
    return replace(
        scope, held_usd_micros=scope.held_usd_micros + more, holders=scope.holders + (1 if row is None else 0)
    )


def settled(scope: ScopeRow, row: GrantRow, spent_usd_micros: int) -> ScopeRow:
    """The scope after a grant was given back, with what was spent of it. More than it is spent beyond the grant."""
    return replace(
        scope,
        held_usd_micros=max(0, scope.held_usd_micros - row.granted_usd_micros),
        settled_usd_micros=scope.settled_usd_micros + spent_usd_micros,
        over_usd_micros=scope.over_usd_micros + max(0, spent_usd_micros - row.granted_usd_micros),
        holders=max(0, scope.holders - 1),
    )


def settlement(scope: Kept, grant: Kept, spent_usd_micros: int) -> Transaction | None:
    """Settle a grant: its row goes, and the scope keeps what was spent. None: one of the rows cannot be read.

    Exactly once: it compares the grant's own row, and deletes it.
    """
    before, row = scope_row(scope), grant_row(grant)
    if before is None or row is None:
        return None
    after = settled(before, row, spent_usd_micros)
    return Transaction(compares(scope, grant), ((scope.key, text_of(after)),), (grant.key,))


def compares(*rows: Kept) -> tuple[tuple[str, int], ...]:
    return tuple((kept.key, kept.revision) for kept in rows)


def ceiling_change(kept: Kept, ceiling_usd_micros: int) -> Transaction | None:
    """A person sets a scope's ceiling. ValueError: it can be none. None: the row that is there cannot be read."""
    before = scope_row(kept) if kept.revision else ScopeRow(ceiling_usd_micros)
    if before is None:
        return None
    after = replace(before, ceiling_usd_micros=int(checked_ceiling(ceiling_usd_micros)))
    return Transaction(compares(kept), ((kept.key, text_of(after)),))


def correction(kept: Kept, settled_usd_micros: int) -> Transaction | None:
    """A person says what those have spent that gave their grants back. None: there is no row, or it cannot be read."""
    before = scope_row(kept)
    if before is None:
        return None
    over = min(before.over_usd_micros, settled_usd_micros)
    after = replace(before, settled_usd_micros=settled_usd_micros, over_usd_micros=over)
    return Transaction(compares(kept), ((kept.key, text_of(after)),))


def may_have_spent(row: GrantRow, ended_wall_ns: int | None, dearest_usd_micros_per_hour: int) -> int:
    """What the run of a holder that is gone has spent at most, since its grant was opened.

    `ended_wall_ns`: when its machine's billing ended, as somebody has read back. None: that is not known, and the
    whole grant counts as spent. The dearest rate is the highest that the machine may have had since. It counts from
    what the holder said last, by the holder's clock; beyond the grant too, as nobody was there to halt the run.
    """
    if ended_wall_ns is None:
        return row.granted_usd_micros
    rate = max(row.rate_usd_micros_per_hour, dearest_usd_micros_per_hour)
    unseen_ns = max(0, ended_wall_ns - row.seen_wall_ns)
    return row.spent_usd_micros - (-rate * unseen_ns // NS_PER_HOUR)
