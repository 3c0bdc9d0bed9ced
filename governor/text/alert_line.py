"""What an alert belongs to, and its money, in one line for receivers that people read."""

from __future__ import annotations

from governor.core.alerts.catalogue import Alert
from governor.core.base.units import format_usd, per_mtok_text
from governor.text.failure_modes import mode_of_alert


def details(alert: Alert) -> str:
    """Parts that are unknown are left out, except the spend of a run."""
    of, spend, ceiling = alert.incident, alert.spend_usd_micros, alert.ceiling_usd_micros
    last, mode = alert.prices.last, mode_of_alert(alert)
    parts = [
        f"stage {alert.stage}" if alert.stage else "",
        f"halt {of.incident_id}: {of.halt_stage}" if of is not None else "",
        f"spent {format_usd(spend)}" if spend is not None else "spend unknown" if alert.run else "",
        f"ceiling {format_usd(ceiling)}" if ceiling is not None else "",
        f"{per_mtok_text(last)} per 1M tokens" if last is not None else "",
        f"said {alert.repeats} times more" if alert.repeats else "",
        *(f"{name}={value}" for name, value in alert.labels.items()),
        f"failure mode {mode.name}: {mode.place}" if mode is not None else "",
        f"see: {alert.see}" if alert.see else "",
    ]
    return " · ".join(part for part in parts if part)
