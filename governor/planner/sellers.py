"""What sellers can give: a listed price is one of a machine, and a listing of one GPU is no thousand of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from governor.core.money.prices import PriceKind
from governor.planner.catalog import GpuPrice, NoPriceError, listed_price, offers, offers_text, price_kind
from governor.planner.model.candidates import Offer
from governor.planner.model.setup import Gpu
from governor.wire.price_table import built_in


@cache
def _sizes(kind: PriceKind) -> dict[tuple[str, str], tuple[int, ...]]:
    """GPUs of the listed machines, smallest first, by seller and GPU."""
    found: dict[tuple[str, str], set[int]] = {}
    for row in built_in().rows:
        if row.kind is kind:
            found.setdefault((row.provider.partition(" (")[0], row.gpu), set()).add(row.gpus)
    return {key: tuple(sorted(sizes)) for key, sizes in found.items()}


def with_machines(listed: Iterable[Offer], kind: PriceKind) -> list[Offer]:
    """The offers with the sizes of the machines that their sellers list."""
    return [replace(one, machines=_sizes(kind).get((one.seller, one.gpu.name), ())) for one in listed]


def cheapest_price(gpu: Gpu, gpus: int, kind: str) -> GpuPrice:
    """The cheapest listed price of a seller that can give so many. Raises NoPriceError."""
    wanted = price_kind(kind)
    listed = with_machines(offers((gpu,), wanted), wanted)
    if not listed:
        raise NoPriceError(offers_text(gpu, wanted))
    able = [one for one in listed if one.gives(gpus)]
    if not able:
        sizes = ", ".join(f"{one.seller} {machines_text(one)}" for one in listed[:6])
        raise NoPriceError(f"nobody is listed with {gpus} x {gpu.name}: {sizes}; state a price, or other gpus")
    best = min(able, key=lambda one: one.gpu_hour_usd)
    source = f"{best.seller}, the cheapest listed with {machines_text(best)}"
    return GpuPrice(best.gpu_hour_usd, source, wanted is PriceKind.SPOT)


def provider_price(gpu: Gpu, gpus: int, provider: str, kind: str) -> GpuPrice:
    """The listed price of a named seller that can give so many. Raises NoPriceError.

    A seller of single GPUs gives no more of them on one network than its largest machine has.
    """
    wanted = price_kind(kind)
    sold = with_machines(offers((gpu,), wanted), wanted)
    own = next((one for one in sold if one.seller.lower() == provider.strip().lower()), None)
    if own is not None and own.machines and gpus > own.machines[-1] and not own.gives(gpus):
        raise NoPriceError(
            f"{own.seller} lists {gpu.name} in {machines_text(own)}: {gpus} of them on one network it does not list; "
            "state a price, or other gpus"
        )
    return listed_price(gpu, gpus, provider, kind)


def machines_text(offer: Offer) -> str:
    """The listed machines: "machines of 1, 2 and 8"."""
    *others, last = map(str, offer.machines)
    return f"machines of {' and '.join(filter(None, (', '.join(others), last)))}"
