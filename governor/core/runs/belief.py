"""Which of the tokens that a run tells are believed: one frame or line must not undo what all others have said.

A total that no training comes to since the last one, or that falls while steps go on, is held. It counts as if its
frame had been lost, and the next one shows what it was: an error, where that goes on from before; another count, where
that goes on from it; large steps, where that is as far away again. What is held when an attempt ends is not counted,
and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

# A batch grows during a run, and lengths vary, by less. Where they do not, the next step shows it.
TIMES_THE_LARGEST_MAX: Final = 64
# Any step may have so many, however small those before were: global batches end at some 10^8, and a batch that grows, a
# training that begins anew or one line for many steps must not wait for the next one.
UNKNOWN_STEP_MAX: Final = 2**36


class Told(NamedTuple):
    step: int
    total: int
    tokens: int | None = None  # Of the step alone, where it says so.


class Believed(NamedTuple):
    skipped: int = 0  # The total has more than what was trained: it goes on from another one.
    held: Told | None = None  # The step before, which counts with this one.


AS_TOLD: Final = Believed()


@dataclass(slots=True)
class Belief:
    largest: int = 0  # The most tokens of a step so far.
    held: Told | None = None
    is_beyond: bool = False  # More than any training has was told: the run's tokens are unknown since.
    news: str | None = None  # What a person should know, until the engine takes it.

    def may_be(self, tokens: int, steps: int = 1) -> bool:
        """Whether so many steps may have trained so many tokens."""
        return tokens <= max(1, steps) * max(TIMES_THE_LARGEST_MAX * self.largest, UNKNOWN_STEP_MAX)

    def weigh(self, told: Told, last: tuple[int, int] | None, *, may_fall: bool) -> Believed | None:
        """Weigh a total against the last believed one, (step, total). None: it is held. `may_fall`: steps go back."""
        held, self.held = self.held, None
        if last is None:
            self._learn(told.tokens or 0, 1)
            return AS_TOLD
        if held is not None and held.total > last[1] and (found := self._goes_on(told, held, last)) is not None:
            return found  # Asked first: the jump itself may be so many tokens as two steps may have.
        rise, steps = told.total - last[1], max(1, told.step - last[0])
        if (rise >= 0 or may_fall) and self.may_be(rise, steps):
            self._learn(rise, steps)
            self._doubt(held, last[1])
            return AS_TOLD
        found = self._goes_on(told, held, last) if held is not None else None
        if found is None:
            self.held = told
        return found

    def weigh_line(self, told: Told, steps: int) -> Believed | None:
        """Weigh the tokens of a log's line that tells no total."""
        held, self.held = self.held, None
        assert told.tokens is not None, "such a line has them"
        if self.may_be(told.tokens, steps):
            self._learn(told.tokens, steps)
            self._doubt(held, told.total - told.tokens)
            return AS_TOLD
        if held is not None and held.tokens is not None and told.tokens * TIMES_THE_LARGEST_MAX >= held.tokens:
            self._learn(told.tokens, steps)
            return Believed(held=held)
        self.held = told
        return None

    def skip(self, told: Told, last_step: int, skipped: int) -> None:
        """An attempt goes on far ahead of what was trained."""
        self.held = None
        self.news = (
            f"it goes on with step {told.step:,}, after step {last_step:,}, and with {told.total:,} tokens in all: "
            f"{skipped:,} of them are not counted as trained here"
        )

    def begin_elsewhere(self, run: str, step: int, trained: int, said: int | None) -> None:
        """An attempt goes on from another run's checkpoint, as that says. `said`: its total, which may not be right."""
        self.held = None
        self.news = (
            f"it goes on from step {step:,} of run {run!r}: the {trained:,} tokens before that are not counted as "
            "trained here"
        )
        if said is not None and said > trained:
            self.news += f" (its checkpoint says {said:,}, which its own steps contradict)"

    def pass_over(self, step: int, tokens: int) -> None:
        """An attempt goes on from a checkpoint that was trained elsewhere, or for more than the run has paid since."""
        self.news = (
            f"it goes on with step {step:,}: {tokens:,} tokens before that were trained elsewhere, or while nobody "
            "heard it, and count in its goal but in no price"
        )

    def go_beyond(self, told: Told) -> None:
        self.is_beyond = True
        self.news = f"at step {told.step} it has more tokens than any training: how many they are is unknown from here"

    def take_news(self) -> str | None:
        news, self.news = self.news, None
        return news

    def let_go(self, trained: int | None, offset: int) -> str | None:
        """No step will show what is held. Returns what a person should know of it.

        `trained`: the run's total; it was told with the `offset` added.
        """
        held, self.held = self.held, None
        if held is None:
            return None
        before = (trained or 0) + offset
        tokens = held.tokens if held.tokens is not None else max(0, held.total - before)
        return (
            f"its last step {held.step} told {held.total:,} tokens in all, after {before:,}, and none came after "
            f"it that shows which is right: {tokens:,} tokens are in no figure of it"
        )

    def _goes_on(self, told: Told, held: Told, last: tuple[int, int]) -> Believed | None:
        """How this goes on from the held one. None: it does not."""
        grown, steps = told.total - held.total, told.step - held.step
        if grown <= 0 or steps <= 0:
            return None
        rise, rise_steps = held.total - last[1], max(1, held.step - last[0])
        if self.may_be(grown, steps):
            self._learn(grown, steps)
            if rise < 0:
                return Believed(held=held)
            says = held.tokens if held.tokens is not None and self.may_be(held.tokens, rise_steps) else None
            own = grown * rise_steps // steps  # Also of steps whose frames were lost before it.
            if says is not None:  # Where that is of all of them, as a line's may be, the next one's is, too.
                own = max(says, min(says * rise_steps, own))
            skipped = max(0, rise - own)
            if skipped:
                self.news = (
                    f"its tokens in all rose by {rise:,} with step {held.step}, which no training of it comes to, and "
                    f"go on from there: {skipped:,} are not counted as trained here"
                )
            return Believed(skipped)
        if rise > 0 and grown * rise_steps * TIMES_THE_LARGEST_MAX >= rise * steps:
            self._learn(grown, steps)
            return AS_TOLD
        return None

    def _learn(self, tokens: int, steps: int) -> None:
        of_a_step = -(-tokens // max(1, steps))
        if of_a_step > self.largest:
            self.largest = min(of_a_step, UNKNOWN_STEP_MAX)

    def _doubt(self, held: Told | None, before: int) -> None:
        if held is not None:
            self.news = (
                f"step {held.step} told {held.total:,} tokens in all, after {before:,}, and the next one goes on from "
                "before: that is not counted"
            )
