"""What an hour of a GPU costs, of the built-in price table: for plans, which buy no machine and ask no provider."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.base.units import MICROS_PER_USD
from governor.core.money.prices import Machine, PriceKind
from governor.planner.model.hardware import Gpu
from governor.planner.model.searching import Offer
from governor.planner.plan_catalog import gpus as catalogue_gpus
from governor.wire.price_table import KINDS, PriceTable, built_in, key, look_up

# No list has a GPU above $14.24 an hour: what is dearer was meant for the whole machine.
GPU_HOUR_USD_MAX = 40.0
CHEAPEST = "cheapest"


class NoPriceError(ValueError):
    """Nobody is listed with such a GPU. The text says who is, and at what price."""


@dataclass(frozen=True, slots=True)
class GpuPrice:
    gpu_hour_usd: float
    source: str
    is_spot: bool = False


def listed_price(gpu: Gpu, gpus: int, provider: str, kind: str) -> GpuPrice:
    """The provider's newest price for a machine with such GPUs, a GPU and hour. Raises NoPriceError."""
    wanted = price_kind(kind)
    if provider == CHEAPEST:
        return _cheapest(gpu, wanted)
    in_machine = max(min(gpus, gpu.gpus_per_node), 1)
    quote = look_up(built_in(), Machine(provider, gpu=gpu.name, gpus=in_machine, kind=wanted))
    if quote is None:
        raise NoPriceError(f"no {kind} price of {gpu.name} at {provider}; {offers_text(gpu, wanted)}")
    per_gpu = quote.usd_micros_per_hour / MICROS_PER_USD / (quote.gpus or in_machine)
    return GpuPrice(per_gpu, f"{quote.source}, {quote.as_of}", wanted is PriceKind.SPOT)


def price_kind(name: str) -> PriceKind:
    kind = KINDS.get(name)
    if kind is None:
        known = ", ".join(name for name, known in KINDS.items() if known)
        raise NoPriceError(f"price-kind {name!r}: there are {known}")
    return kind


def _cheapest(gpu: Gpu, kind: PriceKind) -> GpuPrice:
    found = offers((gpu,), kind)
    if not found:
        raise NoPriceError(offers_text(gpu, kind))
    best = min(found, key=lambda offer: offer.gpu_hour_usd)
    return GpuPrice(best.gpu_hour_usd, f"{best.seller}, the cheapest listed", kind is PriceKind.SPOT)


def offers_text(gpu: Gpu, kind: PriceKind = PriceKind.ON_DEMAND) -> str:
    """Who is listed with this GPU, the cheapest first, for an error or a note."""
    found = sorted(offers((gpu,), kind), key=lambda offer: offer.gpu_hour_usd)
    if not found:
        return f"no provider is listed with {gpu.name}: state a price with price (USD per GPU-hour)"
    return "listed per GPU-hour: " + ", ".join(f"{one.seller} ${one.gpu_hour_usd:.2f}" for one in found[:6])


def offers(wanted: tuple[Gpu, ...], kind: PriceKind, provider: str | None = None) -> list[Offer]:
    """Each provider's newest price of each of these GPUs, in machines as large as it rents them out."""
    table = built_in()
    names = {gpu.name: gpu for gpu in wanted}
    made = []
    for seller, gpu_name in _listed(table, kind):
        gpu = names.get(gpu_name)
        if gpu is None or (provider is not None and key(provider) != key(seller)):
            continue
        quote = look_up(table, Machine(seller, gpu=gpu_name, gpus=gpu.gpus_per_node, kind=kind))
        if quote is not None:
            per_gpu = quote.usd_micros_per_hour / MICROS_PER_USD / (quote.gpus or gpu.gpus_per_node)
            made.append(Offer(gpu, per_gpu, seller.partition(" (")[0], kind is PriceKind.SPOT))
    return made


def priced_gpus(kind: PriceKind) -> list[Gpu]:
    """GPUs of the catalogue that somebody is listed with."""
    listed = {gpu_name for _, gpu_name in _listed(built_in(), kind)}
    return [gpu for name, gpu in catalogue_gpus().items() if name in listed]


def sellers() -> list[str]:
    return sorted({row.provider.partition(" (")[0] for row in built_in().rows if row.kind is not None})


def _listed(table: PriceTable, kind: PriceKind) -> list[tuple[str, str]]:
    return sorted({(row.provider, row.gpu) for row in table.rows if row.kind is kind})
