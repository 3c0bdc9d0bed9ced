"""The values that several tables of costgov.toml take, and what all tables have in common."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from governor.core.base.units import AMOUNT_CHARS_MAX, DurationNs, is_whole, parse_duration, read_amount, why_no_amount
from trainer_shim.wire import TEXT_CHARS_MAX


def _octal(value: object) -> object:
    """Modes are written as in chmod: "0660". A bare 660 would be read as decimal, so it is refused."""
    if isinstance(value, str):
        try:
            mode = int(value if is_whole(value) else "", 8)
        except ValueError:
            raise ValueError('must be an octal mode in quotes such as "0660"') from None
        if 0 <= mode <= 0o777:
            return mode
    raise ValueError('must be an octal mode in quotes such as "0660"')


def _uids(value: object) -> object:
    """ "any" -> None; a list of user names and uids -> their uids."""
    if value == "any":
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, (int, str)) for item in value):
        raise ValueError('must be "any" or a list of user names and uids such as ["alice", 1001]')
    uids = set()
    for item in value:
        try:
            uids.add(item if isinstance(item, int) else int(item) if is_whole(item) else pwd.getpwnam(item).pw_uid)
        except KeyError:
            raise ValueError(f'there is no user "{item}" on this machine; correct the name or give its uid') from None
    return frozenset(uids)


def _idle_stop(value: object) -> object:
    """ "15m" -> nanoseconds; "off" -> 0."""
    if value is None or value == "off":
        return None if value is None else 0
    if not isinstance(value, str):
        raise ValueError('must be "off" or a time in quotes such as "15m"')
    idle_ns = parse_duration(value)
    if idle_ns <= 0:
        raise ValueError('would stop the node at once; write "off" or a time such as "15m"')
    return idle_ns


def _dollars(value: object) -> object:
    if isinstance(value, bool):  # pydantic reads true as one dollar.
        raise ValueError(f"{str(value).lower()} is no amount in dollars; write for example 22.50")
    if isinstance(value, (int, float)) and value < 0:  # As a text of it is answered.
        raise ValueError(f"{value!r:.40} {why_no_amount(repr(value)[:AMOUNT_CHARS_MAX])}")
    return float(read_amount(value)) if isinstance(value, str) else value


def _absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError(f'must be an absolute path; "{value}" would depend on where the daemon was started')
    return value


Dollars = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_dollars)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Mode = Annotated[int, BeforeValidator(_octal)]
IdleStop = Annotated[DurationNs | None, BeforeValidator(_idle_stop)]
Uids = Annotated[frozenset[int] | None, BeforeValidator(_uids)]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)
