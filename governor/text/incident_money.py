"""What an incident has cost, and what stays billed, in words: for tables, the terminal and the written report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.units import format_duration, format_usd, is_spend_known, per_mtok_text
from governor.text.table import plain

Snapshot = Mapping[str, Any]
_METERED: Final = frozenset({"spend_usd_micros", "spend_at_verdict_usd_micros", "wasted_usd_micros"})


def without_unknown_spend(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot for programs: as stored, an unknown spend is the metered 0, which a program would sum."""
    is_known = is_spend_known(snapshot.get("spend_rate_usd_micros_per_hour"), snapshot.get("spend_usd_micros") or 0)
    return {**snapshot, **({} if is_known else dict.fromkeys(_METERED & snapshot.keys()))}


def is_unpriced(snapshot: Snapshot) -> bool:
    """Whether what was spent is unknown. A run for which another one pays has spent nothing of its own."""
    is_known = is_spend_known(snapshot.get("spend_rate_usd_micros_per_hour"), snapshot["spend_usd_micros"])
    return not is_known and snapshot.get("paid_by") is None


def spent_amount(snapshot: Snapshot) -> str:
    """The run's spend as a cell of a table."""
    if is_unpriced(snapshot):
        return "unknown"
    is_own = is_spend_known(snapshot.get("spend_rate_usd_micros_per_hour"), snapshot["spend_usd_micros"])
    return format_usd(int(snapshot["spend_usd_micros"])) if is_own else "-"


def spent_text(snapshot: Snapshot) -> str:
    """The run's spend, the part of it after the verdict, and the source of the price."""
    if is_unpriced(snapshot):
        return "unknown: no price is known for this machine"
    rate, spent = snapshot.get("spend_rate_usd_micros_per_hour"), int(snapshot["spend_usd_micros"])
    if rate is None and snapshot.get("paid_by") is None:
        return f"{format_usd(spent)}, as far as a price was known: none is known for this machine now"
    if rate is None:
        own = f"{format_usd(spent)} of its own, before" if spent else "nothing of its own"
        return f"{own}: {plain(snapshot['paid_by'])} pays for the command"
    after = spent - int(snapshot.get("spend_at_verdict_usd_micros", spent))
    all_in = snapshot.get("usd_micros_per_mtok_all_in")
    tokens = f", {per_mtok_text(all_in)}/1M tokens all-in" if all_in is not None else ""
    unpriced_ns = int(snapshot.get("unpriced_ns", 0))  # An older journal has none.
    tokens += f", {unpriced_text(unpriced_ns)}" if unpriced_ns else ""
    wasted = sum((snapshot.get("wasted_usd_micros") or {}).values())
    tokens += f", {'at least ' if unpriced_ns else ''}{format_usd(wasted)} of it wasted" if wasted else ""
    source = f"; price: {snapshot['price_source']}" if snapshot.get("price_source") else ""
    # An older version charged nothing for a halt that was over before its next tick.
    since = f"{format_usd(after)} since the verdict" if after > 0 else "nothing was charged since the verdict"
    since = "another run has taken its time over" if after < 0 else since
    return f"{format_usd(spent)} ({since}) at {format_usd(rate)}/h{tokens}{plain(source)}"


def unpriced_text(unpriced_ns: int) -> str:
    """Why a run's all-in price is unknown, although its spend is."""
    return f"all-in price of its tokens unknown: for {format_duration(unpriced_ns)} no price was known"


def stays_billed_text(snapshot: Snapshot) -> str:
    """What stays billed. If the end of billing was not observed, the machine itself comes first."""
    listed = [str(item) for item in snapshot["stays_billed"]]
    verified = any(entry["what"] == "verified" for entry in snapshot["timeline"])
    if stop_target(snapshot) != "processes" and not verified:
        what = f"job {snapshot['job']}'s nodes" if snapshot.get("job") else "the machine itself"
        listed.insert(0, f"{what}, as far as anyone has observed")
    return plain("; ".join(listed) or ("nothing that is known" if verified else "this machine: no stop was planned"))


def stop_target(snapshot: Snapshot) -> str:
    """processes | job | instance, as planned."""
    return str(snapshot["plan"].get("stop", "processes")).lower()
