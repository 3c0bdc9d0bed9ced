"""What this machine costs an hour: everybody who may know is asked, and
`governor.core.money.prices` believes one of them.
"""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from governor.adapters import prices
from governor.core.base.units import (
    NS_PER_HOUR,
    NS_PER_MINUTE,
    NS_PER_S,
    DurationNs,
    MonoNs,
    UsdMicros,
    format_duration,
    parse_duration,
)
from governor.core.engine import node_money
from governor.core.events.inputs import Event, PriceRead
from governor.core.money.budgets import TORN
from governor.core.money.prices import (
    NS_PER_DAY,
    Chosen,
    Day,
    Machine,
    Origin,
    PriceKind,
    Quote,
    Remark,
    RemarkKind,
    choose,
    day_text,
)
from governor.ports import Clock, Preflight, PriceAnswer, PriceSource
from governor.settings.model import Settings
from governor.wire.price_table import PriceTableError, built_in, look_up

_NOBODY: Final[Mapping[str, str]] = {}


def price_of(
    settings: Settings, preflight: Preflight | None, given: UsdMicros | None, today: Day, answer: PriceAnswer | None,
    left: Quote | None = None,
) -> Chosen:  # fmt: skip
    """Choose among the provider's answer, `given` (the command line's), costgov.toml's and the built-in table's price.

    `answer` is what `ask` returned, `left` what price_left() did. Every problem met on the way is a remark.
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
        answers, config, table, today, left=left, stale_after_days=settings.price.stale_after_days, remarks=remarks
    )  # fmt: skip


def price_left(
    settings: Settings, answer: PriceAnswer | None, journaled: Mapping[str, Any] | None, boot_id: str
) -> Quote | None:
    """The price that the governor before us charged in this boot, where the look-up was asked and does not answer.

    As while runs go on: a failed answer changes nothing. Or an upgrade while a provider's API is down would leave the
    node unmetered, and no policy with a ceiling could be started. `journaled`: the node's snapshot.
    """
    if journaled is None or answer is None or answer.quote is not None or not answer.problem:
        return None
    kind = settings.price.kind or (answer.machine.kind if answer.machine is not None else None) or PriceKind.ON_DEMAND
    basis = "as it was charged before this start"
    try:
        line = node_money.price_left(journaled, boot_id)
        if line is None:
            return None
        return Quote(UsdMicros(line.price_usd_micros), line.source, line.as_of, kind, basis, Origin.LEFT)
    except TORN:  # Another version's, or with a byte amiss: then nobody knows it.
        return None


def source_name(settings: Settings) -> str | None:
    """The look-up that is asked; None: nobody."""
    name = settings.price.source
    if name == "auto":
        name = settings.cloud.provider
        return name if name in prices.names() else None
    return None if name == "none" else name


def load_source(settings: Settings) -> PriceSource | None:
    """The look-up, ready to be asked. None where there is none. ConfigError: a wrong key."""
    name = source_name(settings)
    if name is None:
        return None
    return prices.load(name, settings.price.tables.get(name, _NOBODY), settings.cloud.tables.get(name, _NOBODY))


def ask(source: PriceSource | None, patience_s: float | None = None) -> PriceAnswer | None:
    """Ask the look-up, which only reads and is over within its bound; no longer than `patience_s`, if given."""
    if source is None or patience_s is None:
        return source.ask() if source is not None else None
    answers: queue.SimpleQueue[PriceAnswer] = queue.SimpleQueue()
    try:
        threading.Thread(target=lambda: answers.put(source.ask()), name="price", daemon=True).start()
        return answers.get(timeout=patience_s)
    except (RuntimeError, queue.Empty):  # No thread is to be had, or no answer in time.
        return PriceAnswer(problem=f"no answer within {patience_s:g} s, and a halt is under way")


def machine_of(settings: Settings, answer: PriceAnswer | None) -> Machine | None:
    """What the built-in table is asked for: the user's word over the provider's, key by key."""
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
    """The table's price. What keeps it from having one is worth a remark only where nobody else states a price."""
    try:
        quote = look_up(built_in(), machine)
    except PriceTableError as error:
        remarks.append(Remark(RemarkKind.UNANSWERED, str(error)))
        return None
    if is_needed and quote is None:
        remarks.append(Remark(RemarkKind.UNLISTED, f"the built-in table has no price for {machine.text}"))
    if is_needed and quote is not None and machine.kind is None:
        text = f"nobody says how {machine.text} is paid for: it is taken for on-demand, the dearest"
        remarks.append(Remark(RemarkKind.ASSUMED, text, "set price.kind"))
    return quote


# The price of this machine while runs go on: asked for again and again, beside the loop, and told as events.
#
# A look-up that fails changes nothing: the price that it said last counts on, and is alarmed once when it grows
# stale. What it says is chosen among everybody's word as at the start, so it overrules a configured price only as it
# did then.


SPOT_PERIOD_NS: Final = DurationNs(5 * NS_PER_MINUTE)  # AWS moves a spot price a few times a day, and says since when.
PERIOD_NS: Final = DurationNs(NS_PER_HOUR)
# A price that was to be confirmed so many times and was not: an hour for spot, half a day for any other.
STALE_AFTER_PERIODS: Final = 12
_ASKED: Final = (Origin.MACHINE, Origin.LIST)  # Who was asked now; the others said it once.
_TO_CONFIRM: Final = (*_ASKED, Origin.LEFT)


@dataclass(slots=True)
class PriceWatch:
    """A source of the loop, which it never holds up: whoever is asked answers on a thread of its own."""

    settings: Settings
    clock: Clock
    source: PriceSource | None
    preflight: Preflight | None
    given: UsdMicros | None  # The command line's.
    chosen: Chosen  # What counts now, as of the last answer.
    answer: PriceAnswer | None = None  # The last one that said something.
    asking: threading.Thread | None = None
    _answers: queue.SimpleQueue[tuple[PriceAnswer, Chosen]] = field(default_factory=queue.SimpleQueue)
    _gives_up_at: MonoNs = MonoNs(0)
    _next_at: MonoNs | None = None
    _confirmed_at: MonoNs = MonoNs(0)
    _problem: str = ""
    _is_stale_said: bool = False

    @property
    def period_ns(self) -> DurationNs:
        wanted = self.settings.price.ask_again
        if wanted not in ("auto", "off"):
            return parse_duration(wanted)
        is_spot = self.chosen.quote is not None and self.chosen.quote.kind is PriceKind.SPOT
        return SPOT_PERIOD_NS if is_spot else PERIOD_NS

    def poll(self, at: MonoNs) -> list[Event]:
        if self._next_at is None:
            # Nodes that start together ask apart: some APIs take one question a second.
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
            return self._told(self._choose(self.answer), at)  # A price that nobody is asked for grows old, too.
        self._ask(self.source, at)
        return []

    def _choose(self, answer: PriceAnswer | None) -> Chosen:
        today = Day(self.clock.wall() // NS_PER_DAY)
        return price_of(self.settings, self.preflight, self.given, today, answer)

    def _ask(self, source: PriceSource, at: MonoNs) -> None:
        # Of this question alone: an answer that comes after we gave it up is not taken for the next one's.
        answers = self._answers = queue.SimpleQueue()

        def ask() -> None:
            answer = source.ask()
            answers.put((answer, self._choose(answer)))

        self._gives_up_at = MonoNs(at + round(2 * source.bound_s * NS_PER_S))
        self.asking = threading.Thread(target=ask, name="price", daemon=True)
        try:
            self.asking.start()
        except RuntimeError:  # No thread is to be had: the next time, then.
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
            # A machine goes on having a price, and a spot machine is never another kind: this was half an answer.
            return self._failed(answer.problem or "it names no price any more", at)
        if answer.quote is not None and any(answer.quote in remark.quotes for remark in refused):
            return self._failed(refused[0].line, at)
        self.answer, self._confirmed_at, self._is_stale_said = answer, at, False
        return self._told(chosen, at)

    def _failed(self, problem: str, at: MonoNs) -> list[Event]:
        """The old price counts on; once it has not been confirmed for long, somebody should know."""
        assert self._next_at is not None
        self._next_at = min(self._next_at, MonoNs(at + SPOT_PERIOD_NS))
        quote, unconfirmed = self.chosen.quote, at - self._confirmed_at
        if quote is None or quote.origin not in _TO_CONFIRM or self._is_stale_said:
            return []
        if unconfirmed < STALE_AFTER_PERIODS * self.period_ns:
            return []
        self._is_stale_said = True
        name = source_name(self.settings)
        text = f"{name} has not confirmed {quote.text} for {format_duration(unconfirmed)}, and it counts on: {problem}"
        return self._event(self.chosen, [(RemarkKind.STALE.value, text)], at)

    def _told(self, chosen: Chosen, at: MonoNs) -> list[Event]:
        """An event where something has changed: the price, who says it, or what a person should know of it."""
        before, quote = self.chosen, chosen.quote
        if quote is None:
            return []  # Nobody knows it any more; what it was counts on.
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
        return [
            PriceRead(at, boot, wall, quote.usd_micros_per_hour, quote.source, quote.as_of, quote.since, tuple(alarms))
        ]
