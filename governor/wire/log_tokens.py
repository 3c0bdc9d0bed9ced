"""Which of two things a log's bare "tokens" is: each step's own count, as on our own wire, or a running total.

Both may rise for a while: batches grow as well. So counts that are not understood yet are held, and none is lost.
"""

from __future__ import annotations

from typing import Any, Final

from governor.core.base.units import MTOK, MonoNs
from governor.core.events.streams import Held, TokensSettled

# Global batches end at some 10^8 tokens, so a larger "tokens" is a total.
TOKENS_OF_A_STEP_MAX: Final = 2**30
# Counts of single steps rise this often in a row by chance once in 40,000 logs. As many that do not rise, without so
# many rises in between, are no total: one that begins anew falls once.
RISES_OF_A_TOTAL: Final = 8
# Where it began to rise, too, a total is about its rise times the steps. A batch that grows begins with more than that,
# and so does a total of another training's tokens.
TIMES_ITS_RISES_MAX: Final = 2
# Which of the two is known where each line adds next to nothing: no batch grows so slowly at every line.
RISES_OF_ANY_TOTAL: Final = 64
RISES_IN_ANY_TOTAL: Final = 10_000
HELD_MAX: Final = 64  # Lines that are held one by one. Of more, two that follow each other are one.

_EACH: Final = 'fields = { tokens = "tokens" } says that it is each step\'s'
_TOTAL: Final = 'fields = { tokens_total = "tokens" } that it is a total'
_ONLY_TOTAL: Final = 'fields = { tokens_total = "tokens" } says that it is a total'


class LogTokens:
    """Reads one log's counts in their order."""

    def __init__(self, *, named: bool) -> None:
        # None: not known yet. A user who names the field knows what it is.
        self._is_total: bool | None = False if named else None
        self._is_certain = named  # No further count changes that.
        self._last: tuple[int, int] | None = None  # Step and tokens of the last record.
        # In a row, and by how many steps and tokens.
        self._rises = self._rise_steps = self._rise_tokens = 0
        self._base: tuple[int, int] | None = None  # Step and tokens where they began, also before a launch began anew.
        self._others = 0  # Of a total: counts that did not rise.
        self._held: list[tuple[int, int]] = []
        self._first: int | None = None  # Of a first line that counts as a step's own, until more is known.
        self._told: int | None = None  # The last count that was told as a total.
        self._has_total = False  # The last record has another count, which says that it is the total.

    @property
    def _is_each(self) -> bool:
        return self._is_total is False

    @property
    def _is_long(self) -> bool:
        return self._rises >= RISES_OF_A_TOTAL

    def settle(self, values: dict[str, Any], step: int) -> str | None:
        """Leave the count in its field, move it to the total's, or remove it while its meaning is not known.

        Returns what a person should know of that, each time it changes.
        """
        if self._is_each:
            return None
        tokens, has_total = values["tokens"], "tokens_total" in values
        self._has_total = has_total
        before, was_long = self._is_total, self._is_long
        goes_on = self._learn(step, tokens)
        if self._is_each:
            held = Held(tuple(self._held), self._told)
            self._held = []
            if held.lines:
                values["held"] = held
            return self._as_each(held) if not has_total and (before or len(held.lines) >= RISES_OF_A_TOTAL) else None
        if not self._is_certain:
            self._hold(step, tokens, has_total=has_total)
        if self._is_total and goes_on:
            values.setdefault("tokens_total", tokens)
            self._told = tokens
        if self._is_total or self._held:
            del values["tokens"]
        elif self._first is None:
            self._first = tokens
        if has_total or self._is_certain:
            return None
        if self._is_total and not before:
            return f'its "tokens" only rises and is taken for a running total; {_EACH}'
        if self._is_total is None and not was_long and self._is_long and len(self._held) <= RISES_OF_A_TOTAL + 1:
            return (
                f'its "tokens" is not counted yet{self._but_first()}: it only rises, and so does a running total or a '
                f"batch that grows; {_EACH}, {_TOTAL}"
            )
        return None

    def end(self, run: str, at: MonoNs) -> tuple[TokensSettled | None, str | None]:
        """The log goes on no further: the best reading of what is held, and what a person should know of it.

        Counts that are about their rise times the steps are a total's. Others are steps' if one step may well have
        them and so few of them may rise by chance. The rest is unknown. A log that goes on after all is understood as
        before.
        """
        if self._last is None or self._is_total is not None or self._has_total or not self._held:
            return None, None
        held, (step, tokens) = self._held, self._last
        if self._rises and not self._others and self._is_in_proportion(step, tokens):
            self._told = tokens
            text = f'its "tokens" only rose until it ended and is taken for a running total; {_EACH}'
            return TokensSettled(at, run, step, total=tokens), text
        self._held = []
        counts = Held(tuple(held))
        if len(held) < RISES_OF_A_TOTAL and max(count for _, count in held) <= MTOK:
            text = f'its "tokens" only rose until it ended and is taken for each step\'s own; {_ONLY_TOTAL}'
            return TokensSettled(at, run, step, counts=counts), text
        return None, (
            f'its "tokens" was not counted{self._but_first()}: the log ended before it was known whether that is a '
            f"running total, of more than this log, or a batch that grows; {_EACH}, {_TOTAL}"
        )

    def _but_first(self) -> str:
        return f", but for the {self._first:,} of its first line" if self._first is not None else ""

    def state(self) -> list[Any] | None:
        """As plain JSON, while something is held. What a count is, is soon learned anew."""
        if not self._held or self._last is None:
            return None
        rises = [self._rises, self._rise_steps, self._rise_tokens, self._others]
        is_what, held = [self._is_total, self._is_certain], [list(one) for one in self._held]
        told = self._told if self._base is None else [self._told, *self._base]
        return [*is_what, *self._last, *rises, told, self._has_total, *held]

    def resume(self, state: Any) -> None:
        """Go on from a `state`. What is none changes nothing."""
        try:
            is_total, is_certain, *numbers = state[:8]
            told, has_total, *held = state[8:]
            step, tokens, rises, rise_steps, rise_tokens, others = map(int, numbers)
            counts = [(int(at_step), int(count)) for at_step, count in held]
            base = None
            if isinstance(told, list):
                told, base_step, base_tokens = told
                base = int(base_step), int(base_tokens)
            told = int(told) if told is not None else None
        except (TypeError, ValueError, OverflowError):
            return
        self._is_total, self._is_certain = None if is_total is None else bool(is_total), bool(is_certain)
        self._last, self._told, self._has_total, self._held = (step, tokens), told, bool(has_total), counts
        self._rises, self._rise_steps, self._rise_tokens, self._others = rises, rise_steps, rise_tokens, others
        self._base = base

    def _learn(self, step: int, tokens: int) -> bool:
        """Whether the count goes on as a total does."""
        last, self._last = self._last, (step, tokens)
        if tokens > TOKENS_OF_A_STEP_MAX:
            self._is_total = self._is_certain = True
            self._held = []
        if self._is_certain or last is None:
            return True
        if step <= last[0]:
            if step < last[0] and tokens >= last[1] and self._rises and self._base is None:
                self._base = last[0] - self._rise_steps, last[1] - self._rise_tokens
            return True
        if tokens > last[1]:
            self._rises += 1
            self._rise_steps += step - last[0]
            self._rise_tokens += tokens - last[1]
            self._see_rise(step, tokens)
            return True
        # One count that stays or begins anew after many rises may be a total's, too. The next one tells.
        may_go_on = self._is_long and (tokens == last[1] or 2 * tokens < last[1])
        self._rises = self._rise_steps = self._rise_tokens = 0
        self._base = None
        self._others += 1
        if self._others >= RISES_OF_A_TOTAL or (self._is_total is None and not may_go_on):
            self._is_total = False
        return False

    def _see_rise(self, step: int, tokens: int) -> None:
        if not self._is_long:
            return
        self._others = 0
        is_any = self._rises >= RISES_OF_ANY_TOTAL and tokens * self._rises >= RISES_IN_ANY_TOTAL * self._rise_tokens
        if is_any or self._is_in_proportion(step, tokens):
            self._is_total = True

    def _is_in_proportion(self, step: int, tokens: int) -> bool:
        """Where the rises began. Then it is so now."""
        first, began = self._base or (step - self._rise_steps, tokens - self._rise_tokens)
        return began * self._rise_steps <= TIMES_ITS_RISES_MAX * self._rise_tokens * (first + 1)

    def _hold(self, step: int, tokens: int, *, has_total: bool) -> None:
        """Hold a count that rises, and a first one that may be all tokens of before."""
        held = self._held
        if not (held or self._rises or (step > 1 and tokens > MTOK and not has_total)):
            return
        held.append((step, tokens))
        if len(held) > HELD_MAX:
            pairs = zip(held[::2], held[1::2], strict=False)
            self._held = [(later[0], sooner[1] + later[1]) for sooner, later in pairs] + held[len(held) // 2 * 2 :]

    def _as_each(self, held: Held) -> str:
        was = "was taken for a running total" if held.told is not None else "was not counted"
        return (
            f'its "tokens" is each step\'s own: it no longer rises; it {was} until now; '
            f"{held.tokens:,} tokens of earlier lines are counted with this one"
        )
