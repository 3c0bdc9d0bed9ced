"""What a governor says of itself and its runs to its fleet, as rows of the store (docs/adr/0029).

A row says what its writer knew then. Whoever reads one has checked it: a row of another form is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Final, TypeVar

from governor.core.base.identity import JOB_CHARS_MAX, RUN_CHARS_MAX
from governor.core.events.fleet_store import Kept
from governor.core.fleet.scopes import NAME_CHARS_MAX, ROOT, ROW_CHARS_MAX, Holder, quoted, unquoted

LIVE_ROWS: Final = f"{ROOT}live/"  # Kept by a lease: who still speaks.
NODE_ROWS: Final = f"{ROOT}node/"
RUN_ROWS: Final = f"{ROOT}run/"
LABELS_MAX: Final = 32  # As many as a hello may have.
LABEL_CHARS_MAX: Final = 160
HEALTH_MAX: Final = 8
TEXT_CHARS_MAX: Final = 160
_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: str
    said_wall_ns: int  # By the governor's clock.
    cloud: str = "none"
    instance_id: str | None = None
    region: str | None = None
    version: str = ""
    observes: bool = False
    can_stop: bool = False
    rate_usd_micros_per_hour: int | None = None  # Of the machine and its lines. None: its price is unknown.
    idle_s: int | None = None  # 0: it is used. None: that is unknown.
    health: tuple[str, ...] = ()  # What is wrong, in words. Empty: nothing.
    stops_machine: bool = False  # Nobody uses it, and it is being stopped.


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as one node has it. Money is that node's; steps and tokens are the run's."""

    run: str
    uid: int
    state: str  # As `costgov status` has it.
    is_alive: bool
    stage: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    job: str = ""  # The launch, as its ranks have settled it: the same on all its nodes.
    step: int | None = None
    total_steps: int | None = None
    ranks: int = 0
    world_size: int = 0
    spend_usd_micros: int = 0
    rate_usd_micros_per_hour: int | None = None
    tokens: int | None = None
    runway_s: int | None = None  # Until a ceiling halts it. None: no ceiling, or it does not come.
    incident_id: str | None = None
    halt_stage: str | None = None
    stops_machine: bool = False  # A halt has ended it, and ends its machine now.
    may_stop: bool = False  # A halt of it would stop its machine: nobody else uses that.
    held_s: int | None = None  # So long no rule halts it: a person's hold, or an order's.
    left_out: bool = False  # It has labels that are not here.


_Row = TypeVar("_Row", NodeRow, RunRow)


def live_key(holder: Holder) -> str:
    return LIVE_ROWS + holder.text


def node_key(holder: Holder) -> str:
    return NODE_ROWS + holder.text


def run_key(holder: Holder, run: str) -> str:
    """ValueError: no key can have this name."""
    return f"{RUN_ROWS}{holder.text}/{quoted(run)}"


def holder_in(key: str) -> str:
    """The holder's text in one of these keys."""
    return key.removeprefix(ROOT).split("/")[1]


def node_name(holder: str) -> str:
    """Of a holder whose node row is not there, or cannot be read."""
    return unquoted(holder.split("~")[0])


def row_text(row: NodeRow | RunRow) -> str:
    """Below ROW_CHARS_MAX: labels that do not fit are left out, first."""
    written = asdict(row)
    text = _dumped(written)
    if len(text) > ROW_CHARS_MAX and "labels" in written:
        text = _dumped({**written, "labels": {}, "left_out": True})
    return text


def _dumped(written: Mapping[str, Any]) -> str:
    return json.dumps({"v": 1, **written}, separators=(",", ":"), ensure_ascii=False)


def node_row(kept: Kept) -> NodeRow | None:
    return _read(kept, NodeRow)


def run_row(kept: Kept) -> RunRow | None:
    return _read(kept, RunRow)


# --- reading ------------------------------------------------------------------------------------------------


def _text(value: Any, most: int = TEXT_CHARS_MAX) -> str:
    if not isinstance(value, str) or len(value) > most or not (value.isprintable() or value == ""):
        raise ValueError("no text")
    return value


def _whole(value: Any, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:  # A bool is an int, and no amount.
        raise ValueError("no number")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("no flag")
    return value


def _labels(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or len(value) > LABELS_MAX:
        raise ValueError("no labels")
    return {_text(name): _text(its) for name, its in value.items()}


def _health(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > HEALTH_MAX:
        raise ValueError("no list")
    return tuple(_text(one) for one in value)


_NAME: Final = partial(_text, most=max(NAME_CHARS_MAX, RUN_CHARS_MAX))
_NUMBERS: Final = ("said_wall_ns", "idle_s", "uid", "step", "total_steps", "ranks", "world_size", "spend_usd_micros",
                   "rate_usd_micros_per_hour", "tokens", "runway_s", "held_s")  # fmt: skip
_KINDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("node", "run", "incident_id"), _NAME),
    "job": partial(_text, most=JOB_CHARS_MAX),
    **dict.fromkeys(("observes", "can_stop", "is_alive", "stops_machine", "may_stop", "left_out"), _flag),
    **dict.fromkeys(("cloud", "instance_id", "region", "version", "state", "stage", "halt_stage"), _text),
    **dict.fromkeys(_NUMBERS, _whole),
    "labels": _labels,
    "health": _health,
}
assert _KINDS.keys() == {one.name for kind in (NodeRow, RunRow) for one in fields(kind)}, "a field without a kind"


def _read(kept: Kept, kind: type[_Row]) -> _Row | None:
    if not kept.revision or len(kept.value) > ROW_CHARS_MAX:
        return None
    try:
        raw = json.loads(kept.value)
        if raw["v"] != 1:
            return None
        # What is not there has its default: an older governor did not know of it. One without a default must be there.
        told = [one for one in fields(kind) if one.name in raw]
        return kind(**{one.name: _field(one.name, raw[one.name], one.default is None) for one in told})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _field(name: str, value: Any, may_be_none: bool) -> Any:
    return None if value is None and may_be_none else _KINDS[name](value)
