"""The contract of a trigger: one condition, one file, no clock.

A trigger sees every event of its run, so that its windows stay warm, and answers when asked. Its state is its own: a
dataclass that `snapshot` makes JSON of, begun anew with each attempt unless the trigger's docstring says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from governor.core.base.findings import Finding
from governor.core.base.units import MonoNs, parse_count, parse_duration
from governor.core.events.inputs import Event
from governor.core.rules import expressions
from governor.core.rules.trigger_state import read_json, to_json
from governor.core.runs.state import Run

# Outside of these a step time is a broken clock or a hostile frame, and would overflow what is computed from it.
STEP_S_MIN: Final = 1e-6
STEP_S_MAX: Final = 7 * 24 * 3600.0


def is_step_time(step_s: float) -> bool:
    """Whether these seconds can be those of a step; False for NaN."""
    return STEP_S_MIN <= step_s <= STEP_S_MAX


@dataclass(frozen=True, slots=True)
class Key:
    """One policy key of a trigger: `kind` is one of _PARSERS; the default stands as in TOML."""

    name: str
    kind: str
    default: str | float | int | bool
    meaning: str
    least: str | float | int = 0  # The smallest value that makes sense, as in TOML: limits of 0 fire on everything.
    not_above: str = ""  # Another key, which says nothing once this one is above it.
    required: bool = False  # A rule without it is none; the default then stands for nothing.

    def parse(self, value: object) -> Any:
        """Read a value as it stands in TOML. ValueError says what is accepted."""
        if self.required and value == self.default:
            return value  # Of a trigger that is asked without one, which knows nothing.
        parsed = _PARSERS[self.kind](value)
        if self.least and not parsed >= _PARSERS[self.kind](self.least):
            raise ValueError(f"{value!r:.40} is less than {self.least}")
        return parsed


def defaults(keys: tuple[Key, ...]) -> dict[str, Any]:
    """Every key's default, parsed."""
    return {key.name: key.parse(key.default) for key in keys}


class Condition(Protocol):
    """What a rule asks: a trigger, or several together (governor.core.rules.condition)."""

    def observe(self, event: Event, run: Run) -> bool | None:
        """See an event that has already been applied to `run`. Must be cheap: called for every frame.

        It sees the events of all ranks: every rank tells each of its steps, so a step of the run comes as often as the
        node has ranks, and the ranks overtake one another. `one_rank` has what follows a single one.

        False, of a step: it cannot have made a reading FIRING that was not, so nobody asks before the next tick. Most
        steps of most runs cost no more. Anything else: ask.
        """

    def judge(self, at: MonoNs, run: Run) -> Finding:
        """Answer now. Called at ticks and steps where it may matter; must not change what a second call returns."""

    def new_attempt(self, run: Run) -> None:
        """The run was launched again: drop what does not hold across attempts."""

    def snapshot(self) -> Mapping[str, Any]: ...

    def restore(self, snapshot: Mapping[str, Any]) -> None: ...


class Trigger(ABC):
    """What every trigger of this folder extends: a Condition whose state is one dataclass, or nothing.

    `KIND`, `KEYS` and the docstring make the documentation table; see governor.core.rules.triggers.load.
    """

    KIND: ClassVar[str]  # The file's name.
    KEYS: ClassVar[tuple[Key, ...]]
    # Its reading is about finished steps, so a `for` in steps or tokens makes sense. Unless it listens to ticks, time
    # alone does not move it.
    STEPPED: ClassVar[bool]
    # The condition in words, for people who read a policy: what follows "when", then whole sentences, if more is to be
    # said. {key} is a key's value, {ceiling} and {tokens} are the policy's budget. Its own class body must name every
    # key; one that leaves SAYS out is said by the first line of its file and a list of its keys.
    SAYS: ClassVar[tuple[str, ...]]
    # LISTENS: ClassVar[frozenset[type]], where there is one: the kinds of event that it uses. Others it is not shown.
    PLANNED: ClassVar[bool] = False  # True where it reads "budget" or "expected" of its parameters.
    # Keys that are limits, for `costgov policy tune`: moved one way the trigger fires earlier, the other way later.
    LIMITS: ClassVar[tuple[str, ...]] = ()

    # A dataclass, which `_fresh` makes; governor.core.rules.trigger_state says what becomes of it. Without a default:
    # beside a value of the class, Python 3.11 looks up the instance's slowly, once a frame.
    _state: Any

    def __init__(self, params: Mapping[str, Any]) -> None:  # noqa: B027
        """`params` holds every key of KEYS, parsed: durations in ns (int), counts int, fractions float.

        Beside them stand "budget" and "expected", the policy's Budget and Expected.
        """

    def _fresh(self) -> Any:
        """The state of a new attempt, of which nothing was seen."""
        return None

    def _restored(self) -> None:  # noqa: B027
        """A snapshot has been read: take up what follows from it. What led to the last finding is often not kept."""

    def observe(self, event: Event, run: Run) -> bool | None:
        """Nothing: it judges the run as it is."""
        return None

    @abstractmethod
    def judge(self, at: MonoNs, run: Run) -> Finding: ...

    def new_attempt(self, run: Run) -> None:
        self._state = self._fresh()

    def snapshot(self) -> Mapping[str, Any]:
        state = getattr(self, "_state", None)
        saved: Mapping[str, Any] = {} if state is None else to_json(state)
        return saved

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._state = self._fresh()
        if self._state is not None:
            read_json(self._state, snapshot)
        self._restored()


def listens(condition: Condition | type[Condition], kind: type) -> bool:
    """Whether it is shown events of this kind."""
    wanted: frozenset[type] | None = getattr(condition, "LISTENS", None)
    return wanted is None or kind in wanted


def _duration(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f'{value!r:.40} is not a duration; write it with its unit, for example "90s"')
    return parse_duration(value)


def _count(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2e10: TOML has no integers with exponents.
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f'{value!r:.40} is not a count; write for example 20 or "1.5M"')
    count = parse_count(value) if isinstance(value, str) else value
    if count < 0:
        raise ValueError(f"{value!r:.40} is negative")
    if count >= 10**18:  # As parse_count has it: no window can be made that long.
        raise ValueError(f"{value!r:.40} is not a count: it is below 10^18")
    return count


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:  # NaN fails too.
        raise ValueError(f"{value!r:.40} is not a number from 0 upwards")
    return float(value)


def _frac(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{value!r:.40} is not a fraction above 0 and up to 1")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.40} is not true or false")
    return value


def _expression(value: object) -> str:
    return expressions.check(_text(value))


_PARSERS: Mapping[str, Callable[[object], Any]] = {
    "duration": _duration,
    "count": _count,
    "number": _number,
    "frac": _frac,
    "text": _text,
    "flag": _flag,
    "expression": _expression,
}
