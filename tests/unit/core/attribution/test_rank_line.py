"""What each phase's time is."""

from __future__ import annotations

import pytest

from governor.core.attribution.causes import Cause
from governor.core.attribution.rank_line import RankLine
from governor.core.base.units import NS_PER_S, MonoNs
from tests.unit.core.engine.test_step import a_step

AT = MonoNs(10 * NS_PER_S)


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("init", Cause.START_UP),
        ("compile", Cause.COMPILE),
        ("eval", Cause.EVALUATION),
        ("agree", Cause.CHECKPOINT),
        ("checkpoint", Cause.CHECKPOINT),
        ("idle", Cause.IDLE),
        ("finish", Cause.SHUT_DOWN),
        ("one of a newer shim", Cause.UNKNOWN),
    ],
)
def test_each_phases_time_has_its_cause(phase: str, cause: Cause) -> None:
    line = RankLine(MonoNs(0))
    line.step(a_step(1, 0, step_s=1.0), MonoNs(NS_PER_S), is_repeated=False)
    line.phase(MonoNs(NS_PER_S), phase)
    line.end(AT)
    assert line.direct[cause] == 9 * NS_PER_S
