"""How much of a ceiling stays unused, by its size: a table of many simulated runs, and the page that has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from governor.core.base.units import MICROS_PER_USD
from tests.sim.ceiling import Outcome, Summary
from tests.sim.forecasts import Coverage, coverage_table, shape_table
from tests.sim.moments import Moments, moment_table

# Bounds of the table's rows: how long a ceiling lasts at the rate of the verdict.
SIZES_S = (0, 120, 300, 600, 1_800, 3_600, 4 * 3_600, 12 * 3_600, math.inf)


@dataclass(frozen=True, slots=True)
class Size:
    """The runs whose ceilings last between these times, of those where all kept to what the reserve answers for."""

    from_s: float
    to_s: float
    runs: int
    over: int
    ceiling_usd: float  # Median.
    unused_frac: float  # Median, and the 90th percentile.
    unused_p90_frac: float
    own_unused_frac: float  # As unused_frac, without the part of the provider's bound that it did not take.
    own_unused_p90_frac: float


def sizes_of(outcomes: Iterable[Outcome]) -> list[Size]:
    bare = [one for one in outcomes if not one.excused]
    return [size for size in map(partial(_of_size, bare), pairwise(SIZES_S)) if size.runs]


def _of_size(outcomes: Sequence[Outcome], bounds_s: tuple[float, float]) -> Size:
    found = [one for one in outcomes if bounds_s[0] <= one.lasts_s < bounds_s[1]]
    unused, own = ([one.unused_frac for one in found], [one.own_unused_frac for one in found])
    ceilings = [one.ceiling_usd_micros / MICROS_PER_USD for one in found]
    return Size(
        *bounds_s,
        len(found),
        sum(one.over for one in found),
        _part(ceilings, 0.5),
        _part(unused, 0.5),
        _part(unused, 0.9),
        _part(own, 0.5),
        _part(own, 0.9),
    )


def _part(values: Sequence[float], frac: float) -> float:
    return sorted(values)[int(frac * (len(values) - 1))] if values else 0.0


def size_table(sizes: Iterable[Size]) -> list[str]:
    """A line for each size, for people."""
    lines = [
        "CEILING LASTS      CEILING    RUNS  ABOVE IT  UNUSED: MEDIAN     P90  BUT FOR THE PROVIDER: MEDIAN     P90",
    ]
    for size in sizes:
        lasts = f"{_time(size.from_s)} to {_time(size.to_s)}"
        if not size.from_s:
            lasts = f"below {_time(size.to_s)}"
        elif size.to_s == math.inf:
            lasts = f"{_time(size.from_s)} and more"
        lines.append(
            f"{lasts:16}  {f'${size.ceiling_usd:,.2f}':>9}  {size.runs:6,}  {size.over:8}  {size.unused_frac:14.1%}  "
            f"{size.unused_p90_frac:6.1%}  {size.own_unused_frac:28.1%}  {size.own_unused_p90_frac:6.1%}"
        )
    return lines


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


PAGE = """# What a ceiling leaves unused

A halt costs money too, so the governor begins it before the ceiling is reached: at the ceiling less a **reserve** for
the checkpoint, for SIGTERM and SIGKILL, and for the time that the provider may take until billing ends. What of that
is not needed stays unused.

This page is written by the simulation of the halt: the engine, a provider's book, faults, and nothing but seeds.

```
{command}
```

{runs:,} runs reached their ceiling. In {answered_for:,} of them all kept to their bounds:
the provider stopped in the time that it declares, the governor was not killed, and no price rose after the verdict.
The table is of those. **{over}** of them had spent more than their ceiling when billing ended.
Of the others {over_excused:,} had, and {silent} of their incidents do not say why.

```text
{table}
```

- *Ceiling lasts*: the ceiling over the rate at the verdict. *Ceiling*: the median of the row.
- *Unused*: the ceiling less what the provider billed until it had stopped the machine, over the ceiling.
- *But for the provider*: without what was reserved for its declared bound (30 to 240 s here) and not needed because it
  was quicker. This much is left where only processes are ended, as on a machine of one's own: a tenth of the ceiling's
  time to save, and 6 % of it to end processes, at most.

## What the forecasts promise

Time left, dollars left and the tokens at the ceiling are told with intervals that are to hold 80 % of the truths: less
would be too sure, and more would say nothing. The same command simulates {forecasts:,} runs whose truth is known. Their
windows take times of which neighbours resemble each other by the correlation; the forecast knows the first of them.

```text
{coverage}
```

A few windows hardly tell how much neighbours resemble each other, so with fewer than five the interval is a little too
wide for one run and too narrow for another.

Real runs have shapes, too: saves and evaluations, a trend, a new level, heavy windows by chance. Of {shape_runs} runs
for each cell, with 20 to 100 windows to come (the tokens are those at the ceiling, and the width is the median):

```text
{shapes}
```

- *Regular saves* are told from chance by three heavy windows. From then on the interval reaches 1 to 2 % to each
  side. With two of them it is far too wide and holds all runs; before the first one nobody knows of them, and most
  land above it.
- *A trend* that stands out of how windows vary leads from one end of the interval to the other: it may have ended, or
  goes on. One that does not (few windows, or 5 % in all) is not seen, and the run lands beside its interval.
- *Heavy windows by chance* (a slow disk, a hang) are held nearly as often as promised where a few of them have come. Of
  rarer ones the known windows have none or one, and what they cost is told too low. No restart to come is forecast.
- *A change that comes later* is in no interval: another batch size, a slower machine, a rhythm that was not yet seen.

The moment at which a ceiling is met is exact but for the saves: each makes the halt shorter again. With a rhythm of
saves it lies in an 80 % interval. Before the second save all runs meet it between both ends that are told.
Of {moment_runs} runs for each row; a width is in parts of the longest that the halt waits for a save:

```text
{moments}
```
"""


def page(
    told: Summary,
    sizes: Iterable[Size],
    seeds: range,
    covered: Sequence[Coverage],
    shapes: dict[str, list[Coverage]],
    met: dict[str, Moments],
) -> str:
    """docs/why/ceilings.md."""
    return PAGE.format(
        command=f"python -m tests.sim --ceiling --from {seeds.start} --seeds {len(seeds)} --page docs/why/ceilings.md",
        runs=told.runs,
        answered_for=told.answered_for,
        over=len(told.over),
        over_excused=told.over_excused,
        silent=len(told.silent),
        table="\n".join(size_table(sizes)),
        forecasts=sum(one.runs for one in covered),
        coverage="\n".join(coverage_table(covered)),
        shape_runs=f"{next(iter(shapes.values()))[0].runs:,}",
        shapes="\n".join(shape_table(shapes)),
        moment_runs=f"{len(seeds):,}",
        moments="\n".join(moment_table(met)),
    )
