"""What nobody has seen of a run, in sentences: which figures are missing, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from governor.core.base.units import is_spend_known
from governor.reports.run.facts import RunFacts, speed_of
from governor.reports.run.series import RunSeries
from governor.reports.run.windows import PARTS

UNKNOWN_MUCH_FRAC: Final = 0.05
EXPECTED: Final = (
    "expected_usd_per_mtok", "expected_usd_per_mtok_all_in", "expected_tokens_per_s", "ceiling_usd", "tokens_goal",
)  # fmt: skip


def not_verified(facts: RunFacts) -> Iterator[str]:
    time, told = facts.told.get("time"), facts.told
    if facts.ended is None:
        yield "the run goes on: figures are as of now, and its last seconds have no cause until they are divided"
    if not time:
        yield "its journal has no account of its time: an earlier version wrote it, or it was salvaged"
    else:
        yield from _of_account(time, facts)
    yield from facts.unread
    if all(told.get(name) is None for name in EXPECTED):
        yield "nothing was expected of it: no policy states a price, a speed, a ceiling or a goal"
    series = facts.series
    if series is None:
        yield "it has no recording: steps, their parts, the time line and its stability are unknown"
        return
    yield from _behind_the_verdict(series, told.get("step"))
    yield from _of_recording(series)
    if (absent := speed_of(facts).mfu_absent) is not None:
        yield f"no MFU: {absent}"


def _of_account(time: Mapping[str, Any], facts: RunFacts) -> Iterator[str]:
    unknown = next((cause for cause in time["causes"] if cause["cause"] == "unknown"), None)
    if unknown is not None and (unknown["share"] or 0) >= UNKNOWN_MUCH_FRAC:
        yield f"{unknown['share']:.1%} of its time has no known cause"
    if time["wall_s"] and not is_spend_known(facts.node_usd_per_hour, time["usd"]):
        yield "no price was known: seconds have causes, dollars do not"
    elif facts.told.get("unpriced_s"):
        yield f"for {facts.told['unpriced_s']:,.0f} s no price was known: dollars are the least that they can be"


def _behind_the_verdict(series: RunSeries, step: int | None) -> Iterator[str]:
    """Why a halted run's last step is beyond its recorded ones."""
    last = series.last_step
    if series.is_halted and step is not None and last is not None and step > last:
        which = f"step {step:,} is" if step == last + 1 else f"steps {last + 1:,} to {step:,} are"
        yield f"{which} in no series: behind the verdict of a halt no step is recorded"


def _of_recording(series: RunSeries) -> Iterator[str]:
    if series.gaps:
        gaps = f"{series.gaps} gap{'s' if series.gaps > 1 else ''}"
        lost = f", {series.lost_lines:,} lines" if series.lost_lines else ""
        yield f"its recording has {gaps}{lost}: what was then is in no series"
    if not series.stability.steps:
        yield "no step is in its recording"
        return
    told = series.windows.told
    untold = [name for name in PARTS if name not in told and name != "bubble"]  # Pipelines alone have one.
    if not told & set(PARTS):
        yield "its frames tell no parts of a step: what waits inside one counts as productive"
    elif untold:
        yield f"no frame tells of these parts of a step: {', '.join(untold)}"
    if "communication" not in told and series.world_size != 1:  # One rank waits for no other.
        yield "no frame tells how long ranks were in collectives: exposed communication counts as productive"
    if not series.gpus:
        yield "no GPU was sampled: whether one was busy is unknown"
    if series.tokens_per_s is None:
        yield "no step tells its tokens: tokens per second are unknown"
    missing = [name for name, key in _STABLE.items() if key not in series.stability.told]
    if missing:
        yield f"no frame has {_listed(missing)}"
    if series.world_size is not None and len(series.ranks) < min(series.world_size, 64):
        yield f"of {series.world_size} ranks {len(series.ranks)} told of steps here"
    if series.gpu_s and series.world_size and abs(series.gpu_s / series.step_s / series.world_size - 1) > 1e-9:
        yield f"its world size changed: a GPU's figures are of {series.ranks_usual:.3g} ranks, the mean of its steps"
    if series.left_out.values:
        counts = sorted(series.left_out.values.items(), key=lambda one: (-one[1], one[0]))
        listed = ", ".join(f"{count:,} of {name}" for name, count in counts)
        yield f"values that no step can have are left out of its steps, the account has them neither: {listed}"
    if series.windows.overlong:
        yield (
            f"the parts of {series.windows.overlong:,} steps are told as longer than the step:"
            " they count as if they filled it, as in the account"
        )
    if series.marks_left_out:
        yield f"{series.marks_left_out:,} more saves and evaluations are not on the time line"


_STABLE: Final = {"a gradient norm": "grad_norm", "a loss scale": "loss_scale", "a loss": "loss"}


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
