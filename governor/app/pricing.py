"""What this machine costs an hour. All sources are asked; `governor.core.money.prices` chooses one answer."""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from governor.adapters import prices
from governor.core.base.units import (
    NS_PER_DAY,
    NS_PER_HOUR,
    NS_PER_MINUTE,
    NS_PER_S,
    DurationNs,
    MonoNs,
    UsdMicros,
    format_duration,
    parse_duration,
)
from governor.core.engine import node_journal
from governor.core.events.inputs import Event
from governor.core.events.machine import PriceRead
from governor.core.money.budgets import TORN
from governor.core.money.prices import (
    Chosen,
    Day,
    Machine,
    Origin,
    PriceAnswer,
    PriceKind,
    Quote,
    Remark,
    RemarkKind,
    choose,
    day_text,
)
from governor.ports import Clock
from governor.remote_ports import Preflight, PriceSource
from governor.settings.model import Settings
from governor.wire.price_table import PriceTableError, built_in, look_up

_NOBODY: Final[Mapping[str, str]] = {}


def price_of(
    settings: Settings, preflight: Preflight | None, given: UsdMicros | None, today: Day, answer: PriceAnswer | None,
    left: Quote | None = None, in_force: Quote | None = None, said: int | None = None,
) -> Chosen:  # fmt: skip
    """Choose among the prices of the provider, `given` (the command line), costgov.toml and the built-in table.

    `answer` is the result of `ask`, `left` that of `price_left`; `in_force` and `said` as in `choose`. Every problem
    met is a remark.
    """
    remarks: list[Remark] = []
    if answer is not None and answer.problem:
        text = f"{source_name(settings)} does not say what this machine costs: {answer.problem}"
        remarks.append(Remark(RemarkKind.UNANSWERED, text))
    config = _configured(settings, given, today)
    machine = machine_of(settings, answer)
    table = _listed(machine, remarks, is_needed=config is None) if machine is not None else None
    answers = [quote for quote in (_of_preflight(settings, preflight, today), answer and answer.quote) if quote]
    return choose(
        answers, config, table, today, left=left, in_force=in_force, said=said,
        stale_after_days=settings.price.stale_after_days, remarks=remarks,
    )  # fmt: skip


def price_left(
    settings: Settings, answer: PriceAnswer | None, journaled: Mapping[str, Any] | None, boot_id: str
) -> Quote | None:
    """The price that the previous governor charged in this boot. It is used if the look-up fails.

    A failed answer changes nothing while runs continue, and so it is at a restart: otherwise an upgrade while a
    provider's API is down would leave the node unmetered, and no policy with a ceiling could start. `journaled` is the
    node's snapshot.
    """
    if journaled is None or answer is None or answer.quote is not None or not answer.problem:
        return None
    said = settings.price.kind or (answer.machine.kind if answer.machine is not None else None)
    basis = "as it was charged before this start"
    try:
        line = node_journal.price_left(journaled, boot_id)
        if line is None:
            return None
        # An older journal has no kind, and a newer one may have another.
        left = next((kind for kind in PriceKind if kind.value == line.price_kind), PriceKind.ON_DEMAND)
        return Quote(UsdMicros(line.price_usd_micros), line.source, line.as_of, said or left, basis, Origin.LEFT)
    # Another version wrote it, or a byte is wrong. Then the price is unknown.
    except TORN:
        return None


def source_name(settings: Settings) -> str | None:
    """The look-up to ask, or None."""
    name = settings.price.source
    if name == "auto":
        name = settings.cloud.provider
        return name if name in prices.names() else None
    return None if name == "none" else name


def load_source(settings: Settings) -> PriceSource | None:
    """The look-up, ready to be asked, or None. ConfigError: a wrong key."""
    name = source_name(settings)
    if name is None:
        return None
    return prices.load(name, settings.price.tables.get(name, _NOBODY), settings.cloud.tables.get(name, _NOBODY))


def ask(source: PriceSource | None, patience_s: float | None = None) -> PriceAnswer | None:
    """Ask the look-up, for at most `patience_s` if given. It only reads, and ends within its own bound."""
    if source is None or patience_s is None:
        return source.ask() if source is not None else None
    answers: queue.SimpleQueue[PriceAnswer] = queue.SimpleQueue()
    try:
        threading.Thread(target=lambda: answers.put(source.ask()), name="price", daemon=True).start()
        return answers.get(timeout=patience_s)
    except (RuntimeError, queue.Empty):  # No thread can be started, or no answer came in time.
        return PriceAnswer(problem=f"no answer within {patience_s:g} s, and a halt is under way")


def machine_of(settings: Settings, answer: PriceAnswer | None) -> Machine | None:
    """The machine to look up in the built-in table. For each key, the user's value overrides the provider's."""
    said, known = settings.price, answer.machine if answer is not None else None
    provider = said.provider or (known.provider if known is not None else None)
    if provider is None:
        return None
    machine = known or Machine(provider)
    return replace(
        machine,
        provider=provider,
        instance=said.instance or machine.instance,
        gpu=said.gpu or machine.gpu,
        gpus=said.gpus or machine.gpus,
        kind=said.kind or machine.kind,
    )


def _configured(settings: Settings, given: UsdMicros | None, today: Day) -> Quote | None:
    node = settings.node
    if given is not None:
        return Quote(given, "command line", day_text(today), node.price_kind, "", Origin.CONFIG)
    price = node.price_usd_micros_per_hour
    if price is None:
        return None
    return Quote(price, node.price_source, node.price_as_of or day_text(today), node.price_kind, "", Origin.CONFIG)


def _of_preflight(settings: Settings, preflight: Preflight | None, today: Day) -> Quote | None:
    if preflight is None or preflight.price_usd_micros_per_hour is None:
        return None
    source = preflight.price_source or settings.cloud.provider
    price, kind = preflight.price_usd_micros_per_hour, PriceKind.ON_DEMAND
    return Quote(price, source, day_text(today), kind, preflight.instance_id or "", Origin.MACHINE)


def _listed(machine: Machine, remarks: list[Remark], *, is_needed: bool) -> Quote | None:
    """The table's price. A failure is a remark only if no other source states a price."""
    try:
        quote = look_up(built_in(), machine)
    except PriceTableError as error:
        remarks.append(Remark(RemarkKind.UNANSWERED, str(error)))
        return None
    if is_needed and quote is None:
        remarks.append(Remark(RemarkKind.UNLISTED, f"the built-in table has no price for {machine.text}"))
    if is_needed and quote is not None and machine.kind is None:
        text = f"no source says how {machine.text} is paid for: it is taken for on-demand, the dearest"
        remarks.append(Remark(RemarkKind.ASSUMED, text, "set price.kind"))
    return quote


# --- the price while runs continue: asked repeatedly beside the loop, reported as events --------------------
#
# A failed look-up changes nothing: its last price stays in force, and raises one alarm when it is stale. Each answer is
# chosen among all sources as at the start, so it overrules a configured price only as it did then.


# AWS moves a spot price a few times a day, and states since when.
SPOT_PERIOD_NS: Final = DurationNs(5 * NS_PER_MINUTE)
PERIOD_NS: Final = DurationNs(NS_PER_HOUR)
# A doubted answer is asked for again so soon: a price that is real costs a minute at the old one.
DOUBT_PERIOD_NS: Final = DurationNs(NS_PER_MINUTE)
DOUBTS_MAX: Final = 3  # In a row, of a price that is another each time. Then it is no slip, and the last one counts.
# A price unconfirmed for this many periods is stale: an hour for spot, half a day for any other.
STALE_AFTER_PERIODS: Final = 12
# Sources that were asked now. The others were read once.
_ASKED: Final = (Origin.MACHINE, Origin.LIST)
_TO_CONFIRM: Final = (*_ASKED, Origin.LEFT)


@dataclass(slots=True)
class PriceWatch:
    """A source of the loop. Look-ups run on a separate thread, so they never hold up the loop."""

    settings: Settings
    clock: Clock
    source: PriceSource | None
    preflight: Preflight | None
    given: UsdMicros | None  # From the command line.
    chosen: Chosen  # The price in force, as of the last answer.
    answer: PriceAnswer | None = None  # The last answer with content.
    asking: threading.Thread | None = None
    _answers: queue.SimpleQueue[tuple[PriceAnswer, Chosen]] = field(default_factory=queue.SimpleQueue)
    _gives_up_at: MonoNs = MonoNs(0)
    _next_at: MonoNs | None = None
    _confirmed_at: MonoNs = MonoNs(0)
    _problem: str = ""
    _is_stale_reported: bool = False
    _doubted: UsdMicros | None = None  # What the last answer said, where it was not believed yet.
    _doubts: int = 0  # In a row.

    @property
    def period_ns(self) -> DurationNs:
        wanted = self.settings.price.ask_again
        if wanted not in ("auto", "off"):
            return parse_duration(wanted)
        is_spot = self.chosen.quote is not None and self.chosen.quote.kind is PriceKind.SPOT
        return SPOT_PERIOD_NS if is_spot else PERIOD_NS

    def poll(self, at: MonoNs) -> list[Event]:
        if self._next_at is None:
            # Nodes that start together ask at different times: some APIs allow one request a second.
            is_missed = self.answer is not None and self.answer.quote is None and bool(self.answer.problem)
            period = min(self.period_ns, SPOT_PERIOD_NS) if is_missed else self.period_ns
            early = zlib.crc32(self.settings.node.name.encode()) % (period // 4)
            self._next_at, self._confirmed_at = MonoNs(at + period - early), at
        if self.asking is not None:
            return self._listen(at)
        if at < self._next_at:
            return []
        self._next_at = MonoNs(at + self.period_ns)
        if self.source is None or self.settings.price.ask_again == "off":
            # A price that is not asked for again grows stale too.
            return self._news(self._choose(self.answer), at)
        self._ask(self.source, at)
        return []

    def _choose(self, answer: PriceAnswer | None) -> Chosen:
        today, quote = Day(self.clock.wall() // NS_PER_DAY), self.chosen.quote
        in_force = quote if quote is not None and quote.origin in _TO_CONFIRM else None
        said = self._doubted
        if self._doubts >= DOUBTS_MAX - 1 and answer is not None and answer.quote is not None:
            said = answer.quote.usd_micros_per_hour
        return price_of(self.settings, self.preflight, self.given, today, answer, in_force=in_force, said=said)

    def _ask(self, source: PriceSource, at: MonoNs) -> None:
        # Each question has its own queue, so a late answer is not taken for the next question's.
        answers = self._answers = queue.SimpleQueue()

        def ask() -> None:
            answer = source.ask()
            answers.put((answer, self._choose(answer)))

        self._gives_up_at = MonoNs(at + round(2 * source.bound_s * NS_PER_S))
        self.asking = threading.Thread(target=ask, name="price", daemon=True)
        try:
            self.asking.start()
        except RuntimeError:  # No thread can be started; the next period tries again.
            self.asking = None

    def _listen(self, at: MonoNs) -> list[Event]:
        try:
            answer, chosen = self._answers.get_nowait()
        except queue.Empty:
            if at < self._gives_up_at:
                return []
            self.asking = None
            return self._failed("no answer within twice its bound", at)
        self.asking = None
        refused = [remark for remark in chosen.remarks if remark.kind is RemarkKind.REFUSED]
        was = self.chosen.quote
        if answer.quote is None and (answer.problem or (was is not None and was.origin in _ASKED)):
            # A machine always has a price, and a spot machine stays one, so this was half an answer.
            return self._failed(answer.problem or "it names no price any more", at)
        if answer.quote is not None and any(answer.quote in remark.quotes for remark in refused):
            return self._failed(refused[0].line, at)
        if (doubt := _doubt_in(chosen)) is not None:
            is_first = not self._doubts
            self._doubt(doubt, at)
            news = [(doubt.kind.value, doubt.line)] if is_first and was is not None else []
            return self._event(self.chosen, news, at) if news else []
        self._doubted, self._doubts = None, 0
        self.answer, self._confirmed_at, self._is_stale_reported = answer, at, False
        return self._news(chosen, at)

    def _doubt(self, doubt: Remark, at: MonoNs) -> None:
        """The price in force stays. The source is asked again soon."""
        assert self._next_at is not None
        self._doubted = doubt.quotes[0].usd_micros_per_hour
        self._doubts += 1
        self._next_at = min(self._next_at, MonoNs(at + DOUBT_PERIOD_NS))

    def _failed(self, problem: str, at: MonoNs) -> list[Event]:
        """The old price stays in force. After a long time without confirmation, an alarm says so."""
        assert self._next_at is not None
        self._next_at = min(self._next_at, MonoNs(at + SPOT_PERIOD_NS))
        quote, unconfirmed = self.chosen.quote, at - self._confirmed_at
        if quote is None or quote.origin not in _TO_CONFIRM or self._is_stale_reported:
            return []
        if unconfirmed < STALE_AFTER_PERIODS * self.period_ns:
            return []
        self._is_stale_reported = True
        name = source_name(self.settings)
        text = f"{name} has not confirmed {quote.text} for {format_duration(unconfirmed)}, and it counts on: {problem}"
        return self._event(self.chosen, [(RemarkKind.STALE.value, text)], at)

    def _news(self, chosen: Chosen, at: MonoNs) -> list[Event]:
        """An event if something changed: the price, its source, or what a person should know of it."""
        before, quote = self.chosen, chosen.quote
        if quote is None:
            return []  # The price is unknown now; the old one stays in force.
        known = {remark.kind for remark in before.alarms}
        news = [(remark.kind.value, remark.line) for remark in chosen.alarms if remark.kind not in known]
        self.chosen = chosen
        old = before.quote
        is_same = old is not None and (old.usd_micros_per_hour, old.source) == (quote.usd_micros_per_hour, quote.source)
        if is_same and not news and (quote.origin not in _ASKED or old is None or old.as_of == quote.as_of):
            return []
        return self._event(chosen, news, at)

    def _event(self, chosen: Chosen, alarms: Sequence[tuple[str, str]], at: MonoNs) -> list[Event]:
        quote = chosen.quote
        assert quote is not None, "the caller looked"
        boot, wall = self.clock.boot(), self.clock.wall()
        price, kind = quote.usd_micros_per_hour, quote.kind.value
        return [PriceRead(at, boot, wall, price, quote.source, quote.as_of, quote.since, tuple(alarms), kind)]


def _doubt_in(chosen: Chosen) -> Remark | None:
    return next((remark for remark in chosen.remarks if remark.kind is RemarkKind.DOUBTED), None)
