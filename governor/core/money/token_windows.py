"""Token windows: what each stretch of one million trained tokens (`[budget] window`) took and cost.

Tokens count once per global batch, as the run reports its total. Progress is the highest total reported so far. Tokens
that a run trains again after it went back are waste: they are paid for but are no progress.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from governor.core.base.units import COUNT_MAX, MTOK, NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros
from governor.core.money.token_price import per_mtok
from governor.core.money.trainings import NONE, Trainings
from governor.core.money.unheard import Unheard, may_have_bought


@dataclass(frozen=True, slots=True)
class Window:
    """A closed stretch of progress. Windows follow each other without gap or overlap.

    A window ends with the first step that completes its tokens, and with the last step of a stage, which may have no
    progress in it: only tokens that were trained again. Larger steps make windows of one step each. Steps of one
    moment, as lines that came together, are apart in the last window of a stage alone: what divides their time and cost
    is not known. That window may have taken no time.
    """

    from_tokens: int
    to_tokens: int
    # CLOCK_BOOTTIME. Pauses and restarts in between are included, paid for or not.
    duration_ns: DurationNs
    usd_micros: UsdMicros
    wasted_tokens: int  # Trained again in this time.
    # Of the above, from an attempt's last step (of the first attempt: from the window's begin) until the first step of
    # the next had ended. Tokens that were trained again count here, too.
    start_ns: DurationNs = DurationNs(0)
    start_tokens: int = 0
    start_usd_micros: UsdMicros = UsdMicros(0)
    is_unpriced: bool = False  # For a part of it at least no price was known: `usd_micros` is not its cost.
    lent_tokens: int = 0  # Of progress, while another run paid: they are none of its tokens.

    @property
    def tokens(self) -> int:
        return self.to_tokens - self.from_tokens - self.lent_tokens

    @property
    def per_mtok(self) -> Fraction | None:
        """What a million of its tokens of progress cost. None while that is unknown."""
        return None if self.is_unpriced else per_mtok(self.usd_micros, self.tokens)

    @property
    def tokens_per_s(self) -> float:
        """Of progress; 0.0 for a window that took no time (of an older journal)."""
        return self.tokens * NS_PER_S / self.duration_ns if self.duration_ns else 0.0

    @property
    def has_start(self) -> bool:
        """Whether an attempt began in it."""
        return self.start_ns > 0 or self.start_tokens > 0

    @property
    def steady_tokens(self) -> int:
        """Trained in it, again or for the first time, between the steps of an attempt."""
        return max(0, self.tokens + self.wasted_tokens - self.start_tokens)

    @property
    def steady_ns(self) -> DurationNs:
        return DurationNs(max(0, self.duration_ns - self.start_ns))

    @property
    def steady_usd_micros(self) -> int:
        return max(0, self.usd_micros - self.start_usd_micros)

    @property
    def steady_per_mtok(self) -> Fraction | None:
        """The same of the tokens trained in it, again or for the first time, without the start of an attempt."""
        return None if self.is_unpriced else per_mtok(self.steady_usd_micros, self.steady_tokens)


@dataclass(slots=True)
class TokenMeter:
    """Cuts one run's progress into windows. Survives restarts of the run and of the governor."""

    window_tokens: int = MTOK  # Of the open window.
    progress_tokens: int = 0  # The highest total reported so far.
    # The last reported total. Below progress while a run trains lost tokens again.
    last_total: int = 0
    wasted_tokens: int = 0
    # Of progress, what other trainings than this one have: its own totals begin at nothing.
    earlier_tokens: int = 0
    trainings: Trainings = field(default_factory=Trainings)
    unheard: Unheard = field(default_factory=Unheard)
    # The total when metering began: earlier tokens have no cost here.
    began_tokens: int = 0
    from_tokens: int = 0  # Where the open window began.
    from_usd_micros: int = 0  # The run's total spend at that moment.
    spent_ns: int = 0  # Metered time of the open window.
    wasted_before: int = 0  # Wasted tokens when the window opened.
    # Of the open window: see Window.
    start_ns: int = 0
    start_tokens: int = 0
    start_usd_micros: int = 0
    first_step_at: int = -1  # MonoNs. Of the attempt whose step was counted last.
    step_usd_micros: int = 0  # What the run had spent by the step that was counted last.
    step_unpriced: int = 0  # 1: no price was known at that step.
    # Of the window that was closed last; 0 before the first.
    last_tokens: int = 0
    last_usd_micros: int = 0
    last_unpriced: int = 0  # 1: its cost is not known.
    # Trained, again or for the first time, in stretches of which a part has no price. By now, and when the open window
    # opened.
    unpriced_tokens: int = 0
    unpriced_before: int = 0
    unpriced_ns: int = 0  # The run's time without a price by the step that was counted last.
    # Of progress since metering began, what another run has paid for. By now, and when the open window opened.
    lent_tokens: int = 0
    lent_before: int = 0
    # Of the last attempt with more steps than one: what was trained behind the first, and for how much.
    pace_of: int = -1  # MonoNs, its first step.
    pace_tokens: int = 0
    pace_usd_micros: int = 0
    metered_to: int | None = None  # BootNs; None: nothing reported yet, or the clock restarted.

    @property
    def useful_tokens(self) -> int:
        """Tokens of progress since metering began, each counted once, while nobody else paid for them."""
        return self.progress_tokens - self.began_tokens - self.lent_tokens

    @property
    def trained_tokens(self) -> int:
        """All tokens since metering began, also those that were trained a second time."""
        return self.useful_tokens + self.wasted_tokens

    @property
    def open_window(self) -> Window:
        """As it would close with the step that was counted last."""
        return Window(
            from_tokens=self.from_tokens,
            to_tokens=self.progress_tokens,
            duration_ns=DurationNs(self.spent_ns),
            usd_micros=UsdMicros(max(0, self.step_usd_micros - self.from_usd_micros)),
            wasted_tokens=self.wasted_tokens - self.wasted_before,
            start_ns=DurationNs(self.start_ns),
            start_tokens=self.start_tokens,
            start_usd_micros=UsdMicros(self.start_usd_micros),
            is_unpriced=self.unpriced_tokens > self.unpriced_before,
            lent_tokens=self.lent_tokens - self.lent_before,
        )

    @property
    def per_mtok(self) -> Fraction | None:
        """Of the last window; before the first one closes, of what has come of it by the step that was counted last.

        None before the first token, where a part of it has no price, and where no price was known at the last step.
        """
        if self.step_unpriced:
            return None
        if self.last_tokens:
            return None if self.last_unpriced else per_mtok(self.last_usd_micros, self.last_tokens)
        return self.open_window.per_mtok

    def begin(self, tokens_total: int, usd_micros: UsdMicros, boot: BootNs) -> None:
        """Start metering at this total."""
        self.progress_tokens = self.last_total = self.began_tokens = self.from_tokens = tokens_total
        self.from_usd_micros = self.step_usd_micros = usd_micros
        self.metered_to = boot

    def add(
        self, tokens_total: int, step_tokens: int, usd_micros: UsdMicros, boot: BootNs, then_tokens: int | None = None,
        first_step_at: MonoNs | None = None, unpriced_ns: int = 0, is_priced: bool = True, has_gone_on: bool = False,
    ) -> Window | None:  # fmt: skip
        """Add a step that ended at this total and this spend of the run. Returns the window that it closed.

        `step_tokens` (0 = unknown) counts only when the total went back. Otherwise the totals say more: they also cover
        steps whose frames were lost. `then_tokens` is the size of the next window. The open window keeps its size, so
        windows follow each other without gap. `first_step_at`: of the step's attempt; one that is not the last one's
        begins here. `has_gone_on`: go_on() was told of it. `unpriced_ns`: the run's time without a price so far; where
        it is another than at the step before, or no price is known now (`is_priced`), the cost of these tokens is not
        known. Beyond what any run trains, nothing is counted: sums stay within what the journal holds.
        """
        if usd_micros < self.step_usd_micros:  # Valued too high until its tick. Else the next window paid it again.
            usd_micros = UsdMicros(self.step_usd_micros)
        tokens_total += self.earlier_tokens
        if tokens_total > COUNT_MAX or self.wasted_tokens + step_tokens > COUNT_MAX:
            return None
        self.step_unpriced = int(not is_priced)
        took_ns = max(0, boot - self.metered_to) if self.metered_to is not None else 0
        self.spent_ns += took_ns
        self.metered_to = boot
        is_anew = first_step_at is not None and first_step_at != self.first_step_at
        # Another attempt that ends at the last total has trained its step again. The same one has told it twice.
        back = tokens_total < self.last_total or (is_anew and tokens_total == self.last_total)
        began = self.last_total
        # From another checkpoint than the last attempt's.
        if is_anew and step_tokens and began < self.progress_tokens and not has_gone_on:
            began = max(began, min(self.progress_tokens, tokens_total - step_tokens))
        trained = min(step_tokens, tokens_total) if back else tokens_total - began
        if not is_priced or unpriced_ns != self.unpriced_ns:
            self.unpriced_tokens += trained
            self.unpriced_ns = unpriced_ns if trained else self.unpriced_ns  # Else the next tokens' stretch has it.
        if first_step_at is not None and is_anew:
            self.first_step_at = first_step_at
            self.start_ns += took_ns
            self.start_tokens += trained
            self.start_usd_micros += max(0, usd_micros - self.step_usd_micros)
        elif not has_gone_on:  # Behind a load the time of before it may have bought nothing.
            self._note_pace(trained, usd_micros - self.step_usd_micros)
        self.step_usd_micros = usd_micros
        self.wasted_tokens += trained - max(0, tokens_total - self.progress_tokens)
        self.last_total = tokens_total
        if tokens_total <= self.progress_tokens:
            return None
        grown = tokens_total - self.progress_tokens
        # Where the attempt has gone on from further than was heard, its first step has the tokens up to there.
        self.unheard.hear(min(grown, step_tokens) if has_gone_on else grown)
        self.progress_tokens = tokens_total
        lent = self.lent_tokens - self.lent_before
        if tokens_total - self.from_tokens - lent < self.window_tokens or self.spent_ns == 0:
            return None
        window = self._close(usd_micros)
        self.window_tokens = then_tokens or self.window_tokens
        return window

    def _note_pace(self, trained: int, usd_micros: int) -> None:
        if self.pace_of != self.first_step_at:
            self.pace_of, self.pace_tokens, self.pace_usd_micros = self.first_step_at, 0, 0
        self.pace_tokens += trained
        self.pace_usd_micros += usd_micros

    def cut(self) -> Window | None:
        """Close the open window with the step that was counted last. None where it has trained nothing.

        It may have no progress, if tokens were trained again, and no time. It is for the row of its stage: the last
        window stays the one that had all its tokens.
        """
        if self.open_window.tokens <= 0 and self.open_window.wasted_tokens <= 0:
            return None
        last = self.last_tokens, self.last_usd_micros, self.last_unpriced
        window = self._close(UsdMicros(self.step_usd_micros))
        self.last_tokens, self.last_usd_micros, self.last_unpriced = last
        return window

    def lend(self, tokens_total: int, boot: BootNs, first_step_at: MonoNs | None = None) -> None:
        """Add a step for which another run has paid: neither its tokens nor its time are any window's.

        Before the run has paid for any, its metering begins behind it.
        """
        tokens_total += self.earlier_tokens
        if tokens_total > COUNT_MAX:
            return
        self.metered_to = boot
        self.last_total = tokens_total
        self.first_step_at = self.first_step_at if first_step_at is None else first_step_at
        self._pass(tokens_total)

    def take(self, strand: str, offset: int) -> None:
        """An attempt's first step is counted: of what it goes on from, and what that tells less its own total."""
        training = self.trainings.now
        known = str(training) if training != NONE else f"behind {self.earlier_tokens}"
        self.unheard.take(f"{known}:{strand}", offset - self.earlier_tokens)

    def go_on(self, tokens_total: int, paid_usd_micros: int, strand: str = "", offset: int = 0) -> int:
        """An attempt goes on from this total. Returns how many tokens before it are no window's. `strand`: see take().

        What was trained unheard up to there was paid for if `paid_usd_micros` may have bought it: what the run has
        spent from its last step until its attempt ended, at half the price of that attempt's steps. So was what that
        bought of an attempt before. Else it was trained elsewhere. Where no price is known, or it is nothing, it was
        paid for.
        """
        tokens, usd_micros = self.pace_tokens, self.pace_usd_micros
        if usd_micros <= 0:  # Of one step, or of an older journal: as all of it has cost.
            tokens, usd_micros = self.trained_tokens, self.step_usd_micros
        bought = may_have_bought(paid_usd_micros, tokens, usd_micros)
        self.unheard.leave(self.last_total, min(bought, COUNT_MAX))
        self.take(strand, offset)
        tokens_total += self.earlier_tokens
        if tokens_total > COUNT_MAX:
            return 0
        self.last_total = min(tokens_total, self.progress_tokens)
        ahead = tokens_total - self.last_total
        if usd_micros <= 0 or ahead <= bought or self.unheard.may_reach(tokens_total):
            return 0
        self._pass(tokens_total)
        self.last_total = tokens_total
        return ahead

    def _pass(self, tokens_total: int) -> None:
        grown = max(0, tokens_total - self.progress_tokens)
        self.progress_tokens += grown
        if self.trained_tokens == grown:
            self.began_tokens = self.from_tokens = self.progress_tokens
        else:
            self.lent_tokens += grown

    def begin_attempt(
        self, attempt: str, directory: str | None, *, trains_again: bool, is_anew: bool, barred: Collection[int] = ()
    ) -> bool:
        """An attempt's first step comes: see Trainings. Whether it is in another one: then its totals are that one's.

        Known again at once: each later call for the attempt changes nothing.
        """
        has_begun = bool(self.trainings.counted)
        earlier = self.trainings.begin(
            attempt, directory, self.earlier_tokens, self.progress_tokens,
            is_launch=not trains_again, is_anew=is_anew, barred=barred,
        )  # fmt: skip
        if earlier is None or not has_begun:
            return False
        self.unheard.end_at(self.last_total)
        self.earlier_tokens = earlier
        self.last_total = earlier if is_anew else self.progress_tokens
        return True

    def begin_earlier(self, tokens: int) -> None:
        """Count tokens before the first step's end: it had them itself. Of the first window only, with its start."""
        self.began_tokens -= tokens
        self.from_tokens -= tokens
        self.start_tokens += tokens

    def _close(self, usd_micros: UsdMicros) -> Window:
        window = self.open_window
        self.from_tokens = self.progress_tokens
        self.from_usd_micros = usd_micros
        self.last_tokens, self.last_usd_micros = window.tokens, window.usd_micros
        self.last_unpriced, self.unpriced_before = int(window.is_unpriced), self.unpriced_tokens
        self.lent_before = self.lent_tokens
        self.spent_ns = self.start_ns = self.start_tokens = self.start_usd_micros = 0
        self.wasted_before = self.wasted_tokens
        return window

    def snapshot(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any], *, same_boot: bool) -> TokenMeter:
        """Restore a snapshot. KeyError, TypeError or ValueError when it is not one of a TokenMeter.

        After a reboot the old clock reading is void: the ledger has the time in between, the window's length does not.
        """
        # Old journals have none of these. What they have of the open window counts with the start of an attempt.
        known = {
            "began_tokens": snapshot["from_tokens"],
            "earlier_tokens": 0,
            "last_tokens": 0,
            "last_usd_micros": 0,
            "last_unpriced": 0,
            "step_unpriced": 0,
            "unpriced_tokens": 0,
            "unpriced_before": 0,
            "unpriced_ns": 0,
            "lent_tokens": 0,
            "lent_before": 0,
            "pace_of": cls().pace_of,
            "pace_tokens": 0,
            "pace_usd_micros": 0,
            "start_ns": snapshot["spent_ns"],
            "start_tokens": snapshot["progress_tokens"] - snapshot["from_tokens"]
            + snapshot["wasted_tokens"] - snapshot["wasted_before"],
            "start_usd_micros": 0,
            "first_step_at": cls().first_step_at,
            "step_usd_micros": snapshot["from_usd_micros"],
            **snapshot,
        }  # fmt: skip
        apart = ("metered_to", "trainings", "unheard")
        whole = {name: int(known[name]) for name in asdict(cls()) if name not in apart}
        metered_to, trainings = snapshot["metered_to"], Trainings.of(snapshot.get("trainings"))
        metered_to = int(metered_to) if same_boot and metered_to is not None else None
        unheard = Unheard.read(snapshot.get("unheard"))
        return cls(**whole, metered_to=metered_to, trainings=trainings, unheard=unheard)
