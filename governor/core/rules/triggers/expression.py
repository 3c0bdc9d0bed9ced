"""A CEL expression of your own about the run is true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import MonoNs
from governor.core.rules.expression_variables import VARIABLES
from governor.core.rules.expressions import compiled, variables_of
from governor.core.rules.trigger import Key, Trigger
from governor.core.runs.state import Run


class Expression(Trigger):
    """An expression of the Common Expression Language (CEL) over the run's variables is true.

    For conditions that no other trigger covers: `when = "loss > 5.0 && step > 2000"`, `when = "phase == 'eval' &&
    since_step_s > 3600.0"`. It sees only the last values, no history: use `for` to require that it lasts. The variables
    are those of the table below. Their types are CEL's, which does not mix int and double in arithmetic (`double(step)`
    helps). Unknown names, types that do not match and a result that is not true or false are errors when the policy is
    read, with file and line. At most 500 characters, without macros, regular expressions and loops.

    Needs an extra, `pip install 'costgov[cel]'`; without it such a policy is refused. UNKNOWN while a variable in it is
    unknown or not a number (`nonfinite` covers NaN), while it cannot be computed (a division by zero, an index beyond
    the end of a list), and while no rank is connected. It stores no history.

    The prices of the last window, all-in and useful are unknown behind time in which no governor listened, while tokens
    of its money may still be told: until a step is counted, or for that time and a minute more, or for the first hour
    of a launch behind it.
    """

    KIND: ClassVar[str] = "expression"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("when", "expression", "", "The expression; there is no rule without one.", required=True),
    )
    STEPPED: ClassVar[bool] = True
    MEANING: ClassVar[tuple[str, ...]] = ("this is true of the run: {when}",)

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._when: str = params["when"]
        self._names = variables_of(self._when) if self._when else ()
        self._program = compiled(self._when) if self._when else None

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if self._program is None:
            return unknown("no_expression")
        if run.is_cut_off():
            return unknown("no_connection")
        values = {}
        for name in self._names:
            value = VARIABLES[name].read(run, at)
            if value is None:
                return unknown(f"no_{name}")
            if value != value:
                # NaN compares with nothing; in CEL such a comparison is not even false.
                return unknown(f"{name}_nan")
            values[name] = value
        try:
            if self._program.execute(values) is not True:
                return QUIET
        except (ArithmeticError, LookupError, ValueError, TypeError, RuntimeError):
            return unknown("cannot_be_computed")
        evidence = {name: _plain(value) for name, value in values.items()}
        said = ", ".join(f"{name} {value}" for name, value in evidence.items())
        return firing("expression_true", f"{self._when} ({said})", evidence)


def _plain(value: float | str) -> float | str:
    """The value as JSON can hold it."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)
