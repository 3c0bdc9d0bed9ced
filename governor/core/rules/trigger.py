"""The contract of a trigger: one condition, one file, no clock.

A trigger observes every event of its run, so that its windows stay current, and judges when asked. Its state is one
dataclass, which `snapshot` writes as JSON. The state resets at each attempt unless the docstring says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from governor.core.base.findings import Finding
from governor.core.base.units import MonoNs, parse_count, parse_duration
from governor.core.events.inputs import Event, Tick
from governor.core.rules import expressions
from governor.core.rules.trigger_state import read_json, to_json
from governor.core.runs.state import Run

FOREVER: Final = MonoNs(2**63 - 1)
# A step time outside these bounds is a broken clock or a hostile frame. It would overflow what is computed from it.
STEP_S_MIN: Final = 1e-6
STEP_S_MAX: Final = 7 * 24 * 3600.0


def is_step_time(step_s: float) -> bool:
    """Whether a step can take this many seconds; False for NaN."""
    return STEP_S_MIN <= step_s <= STEP_S_MAX


@dataclass(frozen=True, slots=True)
class Key:
    """One policy key of a trigger. `kind` is one of _PARSERS; the default is written as in TOML."""

    name: str
    kind: str
    default: str | float | int | bool
    meaning: str
    # The smallest useful value, as in TOML. A limit of 0 would fire on everything.
    least: str | float | int = 0
    not_above: str = ""  # Another key, which has no effect once this one is above it.
    required: bool = False  # A rule must set the key; its default is a placeholder.
    # The default and the least value, parsed: once, where the key is declared.
    parsed_default: Any = field(init=False, repr=False, compare=False)
    parsed_least: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed_least", _PARSERS[self.kind](self.least) if self.least else None)
        object.__setattr__(self, "parsed_default", self.parse(self.default))

    def parse(self, value: object) -> Any:
        """Parse a TOML value. ValueError says what is accepted."""
        if self.required and value == self.default:
            return value  # The trigger runs without the key, and knows nothing.
        parsed = _PARSERS[self.kind](value)
        if self.parsed_least is not None and not parsed >= self.parsed_least:
            raise ValueError(f"{value!r:.40} is less than {self.least}")
        return parsed


def defaults(keys: tuple[Key, ...]) -> dict[str, Any]:
    """The default of every key, parsed."""
    return {key.name: key.parsed_default for key in keys}


class Condition(Protocol):
    """The condition of a rule: one trigger, or several together (governor.core.rules.condition)."""

    def observe(self, event: Event, run: Run) -> bool | None:
        """Observe an event that has already been applied to `run`. Must be cheap: called for every frame.

        It gets the events of all ranks. Every rank reports each of its steps, so a step of the run comes once per rank
        of the node, and ranks overtake one another. `one_rank` is for triggers that follow a single rank.

        Returning False for a step means: this step cannot have made the reading FIRING. Then `judge` is not called
        before the next tick, which makes most steps of most runs cheap. Any other value: `judge` is called.
        """

    def judge(self, at: MonoNs, run: Run) -> Finding:
        """Return the present finding. Called at ticks and steps where it may matter; must not change the state."""

    def fires_at(self, at: MonoNs, run: Run) -> MonoNs | None:
        """When it fires if the run goes on to stand still. None: it does not tell."""

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        """Until when ticks alone change nothing, asked after `judge(at, run)`. Not after `at`: this is not known.

        At a tick before this moment, the reading and its reason are those at `at`, and whether the condition observes
        the tick is of no consequence, as long as nothing else happens to the run and its money stays.
        """

    def new_attempt(self, run: Run) -> None:
        """Start a new attempt: drop the state that does not hold across attempts."""

    def snapshot(self) -> Mapping[str, Any]: ...

    def restore(self, snapshot: Mapping[str, Any]) -> None: ...


class Trigger(ABC):
    """The base of every trigger in this folder: a Condition whose state is one dataclass, or nothing.

    `KIND`, `KEYS` and the docstring make the documentation table; see governor.core.rules.triggers.load.
    """

    KIND: ClassVar[str]  # The file's name.
    KEYS: ClassVar[tuple[Key, ...]]
    # The reading is about finished steps, so a `for` in steps or tokens makes sense. Time alone does not change the
    # reading, unless the trigger listens to ticks.
    STEPPED: ClassVar[bool]
    # The condition in words, for people who read a policy: what follows "when", then whole sentences where more is
    # needed. {key} is a key's value; {ceiling} and {tokens} are the policy's budget. MEANING must name every key. A
    # trigger without MEANING is described by the first line of its file and a list of its keys.
    MEANING: ClassVar[tuple[str, ...]]
    # LISTENS: ClassVar[frozenset[type]], optional: the types of event that it uses. It gets no others.
    PLANNED: ClassVar[bool] = False  # True if it reads "budget" or "expected" from its parameters.
    # The limits, for `costgov policy tune`: in one direction the trigger fires earlier, in the other later.
    LIMITS: ClassVar[tuple[str, ...]] = ()

    # A dataclass that `_fresh` makes; governor.core.rules.trigger_state stores it. It has no class-level default:
    # beside one, Python 3.11 looks the instance's value up slowly, once a frame.
    _state: Any

    def __init__(self, params: Mapping[str, Any]) -> None:  # noqa: B027
        """`params` holds every key of KEYS, parsed: durations in ns (int), counts int, fractions float.

        It also holds "budget" and "expected", the policy's Budget and Expected.
        """

    def _fresh(self) -> Any:
        """The state of a new attempt, with nothing seen."""
        return None

    def _restored(self) -> None:  # noqa: B027
        """Derive the rest after a snapshot was read. The basis of the last finding is often not stored."""

    def observe(self, event: Event, run: Run) -> bool | None:
        """Observe nothing: the trigger judges the run as it is."""
        return None

    @abstractmethod
    def judge(self, at: MonoNs, run: Run) -> Finding: ...

    def fires_at(self, at: MonoNs, run: Run) -> MonoNs | None:
        return None

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        """A trigger that time moves gives its own answer, if it can."""
        return FOREVER if self.STEPPED and not listens(type(self), Tick) else at

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
    """Whether the condition gets events of this type."""
    wanted: frozenset[type] | None = getattr(condition, "LISTENS", None)
    return wanted is None or kind in wanted


def _duration(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f'{value!r:.40} is not a duration; write it with its unit, for example "90s"')
    return parse_duration(value)


def _count(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2e10 is a float: TOML has no integers with exponents.
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f'{value!r:.40} is not a count; write for example 20 or "1.5M"')
    count = parse_count(value) if isinstance(value, str) else value
    if count < 0:
        raise ValueError(f"{value!r:.40} is negative")
    if count >= 10**18:  # As in parse_count: no window can be that long.
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
