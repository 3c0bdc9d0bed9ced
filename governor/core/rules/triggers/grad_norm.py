"""The gradient norm is far above its usual level."""

from __future__ import annotations

from typing import ClassVar

from governor.core.base.findings import Finding, unknown
from governor.core.events.inputs import Disconnected, Step
from governor.core.rules.one_rank import Spike
from governor.core.rules.trigger import Key


class GradNorm(Spike):
    """The newest gradient norm is above `factor` times its own running mean, and above it by `noise` times its usual
    range.

    Alone it is no evidence: healthy runs exceed ten times their median and finish well, and clipping bounds the effect
    of one such step. Use it for a line in the record, or beside a loss trigger in one rule. An outlier does not enter
    the mean that judges it, unless it stays for `adopt_records` norms. Norms that are not finite are left out (fp16
    overflows: `nonfinite` and `overflow_storm` count those). One rank is judged, the first that reports any. UNKNOWN
    before `warmup_records` norms and while no rank is connected. Misses: norms that engines report stale or after
    clipping. Resets at each attempt, and when the step goes back.
    """

    KIND: ClassVar[str] = "grad_norm"
    NONE_SEEN: ClassVar[Finding] = unknown("no_grad_norm_seen")
    FIELD: ClassVar[str] = "grad_norm"
    NAME: ClassVar[str] = "gradient norm"
    REASON: ClassVar[str] = "grad_norm_high"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("factor", "number", 10.0, "Fires above so many times the running mean.", 1.01),
        Key("noise", "number", 4.0, "And so many times their usual range (of five in a row) above it."),
        Key("floor", "number", 0.01, "The mean counts as at least this: near 0 every ratio is large."),
        Key("floor_frac", "number", 0.01, "And as at least this part of the first norms, whatever their unit."),
        Key("mean_records", "count", 50, "Norms that the running mean remembers.", 1),
        Key("warmup_records", "count", 20, "Norms before anything is judged.", 2),
        Key("adopt_records", "count", 100, "After so many in a row it is a level, not a spike.", 2),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("factor",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "the gradient norm is above {factor} times its own running mean, and above it by {noise} times its usual range",
        "The mean is of {mean_records} norms, none of them standing out unless {adopt_records} do in a row; it counts "
        "as {floor} at least, and as {floor_frac} of the first norms. Nothing is judged before {warmup_records} norms.",
    )
