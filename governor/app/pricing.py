"""What this machine costs an hour: everybody who may know is asked, and
`governor.core.money.prices` believes one of them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from governor.adapters import prices
from governor.core.base.units import UsdMicros
from governor.core.engine import node_money
from governor.core.money.budgets import TORN
from governor.core.money.prices import (
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
from governor.ports import Preflight, PriceAnswer, PriceSource
from governor.settings.settings_model import Settings
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
    """The look-up, ready to be asked. None where there is none. CloudConfigError: a wrong key."""
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
