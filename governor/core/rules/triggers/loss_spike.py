"""A loss far above its usual level: one bad batch, or the first moment of a divergence."""

from __future__ import annotations

from typing import ClassVar

from governor.core.base.findings import Finding, unknown
from governor.core.events.inputs import Disconnected, Step
from governor.core.rules.one_rank import Spike
from governor.core.rules.trigger import Key


class LossSpike(Spike):
    """The newest loss is above `factor` times its own running mean, and above it by `noise` times its usual range.

    Healthy runs spike to eight times their mean and finish well, so one spike is worth a notice, not a halt. A
    hundredfold loss twice in a row is another matter; two rules can cover both. A spike does not enter the mean that
    judges it, unless it stays for `adopt_records` losses: then it is the new level, and `loss_divergence` judges it. A
    loss that is not finite is no spike (`nonfinite` covers it) and does not enter the mean. The loss of one rank is
    judged, the first that reports any. UNKNOWN before `warmup_records` losses and while no rank is connected. Misses: a
    slow rise, and spikes of losses so near 0 that they stay below the floor. Resets at each attempt, and when the step
    goes back.
    """

    KIND: ClassVar[str] = "loss_spike"
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    FIELD: ClassVar[str] = "loss"
    NAME: ClassVar[str] = "loss"
    REASON: ClassVar[str] = "loss_spiked"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Of 694 healthy language-model and speech logs, after ten losses, one reached 15 times the median of the last
        # 50, four more 2.7 to 15 times, the rest stayed below 1.9. None of them fires.
        Key("factor", "number", 3.0, "Fires above so many times the running mean.", 1.01),
        Key(
            "noise",
            "number",
            4.0,
            "And so many times their usual range (of five in a row) above it: small batches are noisy.",
        ),
        Key("floor", "number", 0.1, "The mean counts as at least this: near 0 every ratio is large."),
        Key("floor_frac", "number", 0.1, "And as at least this part of the first losses, whatever their unit."),
        Key("mean_records", "count", 50, "Losses that the running mean remembers.", 1),
        Key("warmup_records", "count", 30, "Losses before anything is judged: first ones are wild.", 2),
        Key("adopt_records", "count", 100, "After so many in a row it is a level, not a spike.", 2),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("factor",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "the loss is above {factor} times its own running mean, and above it by {noise} times its usual range",
        "The mean is of {mean_records} losses, none of them a spike unless {adopt_records} come in a row; it counts as "
        "{floor} at least, and as {floor_frac} of the first losses. Nothing is judged before {warmup_records} losses.",
    )
