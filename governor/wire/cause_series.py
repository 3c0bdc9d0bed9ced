"""The series of a run's causes as exports write them: `cause/NAME_s`, `cause/NAME_usd`, cumulative. Both directions.

The last point has `cause/run_goes_on` too: 1 where the run went on when it was exported, else 0. Without it, it is not
the last one, or an older costgov wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.attribution.causes import Amount, Cause
from governor.core.base.units import COUNT_MAX, MICROS_PER_USD, NS_PER_S

PREFIX: Final = "cause/"
S: Final = "_s"
USD: Final = "_usd"
GOES_ON: Final = "run_goes_on"
S_MAX: Final = 10**9  # 31 years, of all causes together.
# Of a point, beside its causes: where it is, and what W&B puts into each row.
BESIDE: Final = frozenset(("step", "t", "timestamp", "_timestamp", "_step", "_runtime"))


def series_of(ns: Mapping[str, int], usd_micros: Mapping[str, int], *, goes_on: bool | None = None) -> dict[str, float]:
    """Of amounts by the causes' names. `goes_on`: of the last point; None of those before it."""
    seconds = {f"{PREFIX}{cause}{S}": amount / NS_PER_S for cause, amount in ns.items()}
    dollars = {f"{PREFIX}{cause}{USD}": micros / MICROS_PER_USD for cause, micros in usd_micros.items()}
    return seconds | dollars | ({f"{PREFIX}{GOES_ON}": float(goes_on)} if goes_on is not None else {})


def amounts_of(point: Mapping[str, Any], prefix: str = PREFIX) -> tuple[dict[Cause, Amount], bool] | str:
    """The amounts of a point, and whether it tells dollars; or why it is none. Anybody may have written it.

    `prefix`: "" in a file that has causes alone.
    """
    amounts: dict[Cause, Amount] = {}
    has_usd = False
    for key, value in point.items():
        if key in BESIDE or (key == prefix + GOES_ON and value in (0, 1)):
            continue
        cause, is_usd = _named(key, prefix)
        if cause is None:
            return f"{key[:60]!r} is no figure of a cause"
        whole = _whole(value, *((MICROS_PER_USD, COUNT_MAX) if is_usd else (NS_PER_S, S_MAX * NS_PER_S)))
        if whole is None:
            return f"{key[:60]!r} is not a number of {'dollars' if is_usd else 'seconds'} that a run can have"
        has_usd = has_usd or is_usd
        amounts.setdefault(cause, Amount()).add(*((0, whole) if is_usd else (whole, 0)))
    if sum(amount.ns for amount in amounts.values()) > S_MAX * NS_PER_S:
        return "its causes together are longer than any run"
    return (amounts, has_usd) if amounts else "it tells of no cause"


def goes_on_of(point: Mapping[str, Any], prefix: str = PREFIX) -> bool | None:
    """Of a point that `amounts_of` reads: whether its run went on when it was exported. None: it is not the last."""
    told = point.get(prefix + GOES_ON)
    return bool(told) if told is not None else None


def _named(key: str, prefix: str) -> tuple[Cause | None, bool]:
    is_usd = key.endswith(USD)
    suffix = USD if is_usd else S
    if not key.startswith(prefix) or not key.endswith(suffix):
        return None, is_usd
    return _CAUSES.get(key[len(prefix) : -len(suffix)]), is_usd


def _whole(value: object, unit: int, most: int) -> int | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most / unit:
        return None
    return round(value * unit)


_CAUSES: Final[Mapping[str, Cause]] = {cause.value: cause for cause in Cause}
