"""A run that trains and shows no loss: what judges the loss sees nothing, and whoever trains should know."""

from __future__ import annotations

from typing import Final

from governor.core.base.findings import Reading
from governor.core.engine.node import Tracked
from governor.core.events.effects import Alarm, Effect

# Of an attempt. A loop whose loss the shim can see shows it at its first step; the rest is for a warm-up of its own.
LOSS_DUE_STEPS: Final = 20


def no_loss(tracked: Tracked) -> list[Effect]:
    """Say once an attempt that "nonfinite" cannot judge: it reads UNKNOWN for ever, which `status` shows too."""
    run = tracked.run
    attempt = (run.attempt, run.attempt_at)
    if run.jsonl_only:
        return []  # What a foreign log holds, and how often, is its writer's business.
    if run.attempt_step < LOSS_DUE_STEPS or tracked.lossless_alarmed == attempt:
        return []
    if run.loss is not None:
        return []  # The last step told one: nobody has to be asked.
    findings = tracked.book.findings
    blind = [
        rule.name
        for rule in tracked.policy.rules
        if (finding := findings.get(rule.name)) is not None
        and finding.reading is Reading.UNKNOWN
        and finding.reason == "no_loss_seen"
    ]
    # The stage of a pipeline that has the loss may be on another node, whose governor sees it.
    if not blind or (run.framework == "pipeline" and not run.covers_world()):
        return []
    tracked.lossless_alarmed = attempt
    text = (
        f'no loss is seen in {run.attempt_step} steps: rule "{blind[0]}" cannot judge run {run.run}; let the model '
        "return its loss, or pass it through `shim.loss(loss)` before backward()"
    )
    return [Alarm("no_loss", run.run, text)]
