"""The planner's dated catalogue: architectures and GPUs by name, read from the package's tables."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from governor.core.base.model_speed import Peak
from governor.core.base.units import MICROS_PER_USD, is_whole
from governor.core.money.prices import Machine, PriceKind
from governor.planner.model.candidates import Offer
from governor.planner.model.setup import Gpu
from governor.planner.model.shape import Experts, Hybrid, Latent, Shape
from governor.planner.model.training_stages import stage_named
from governor.wire.price_table import KINDS, PriceTable, built_in, key, look_up

Row = Mapping[str, str]

# The share of the peak that a large matmul reaches: the median of the measured ones, for GPUs without a measurement.
USUAL_REACHED = 0.80
USUAL_REACHED_FP8 = 0.72
# Matmuls in fp8 over bf16, the least of the measured: an H100. A GPU whose bf16 is far below its peak is so in fp8 too.
USUAL_FP8_GAIN = 1.77


class UnknownNameError(ValueError):
    """The name is not in the catalogue. The text offers similar names."""


@cache
def models() -> dict[str, Shape]:
    """Every architecture of the table with stated sizes, by its name in the table."""
    return {row["model"]: shape_of(row) for row in _rows("models.csv") if row["layers"] and row["hidden"]}


@cache
def catalogue_gpus() -> dict[str, Gpu]:
    table = {row["gpu"]: _gpu(row) for row in _rows("gpus.csv")}
    # The export variant of the A100: the same chip, with NVLink limited to 400 GB/s for both directions together.
    a100 = table["A100-SXM-80GB"]
    table["A800-80GB"] = replace(a100, name="A800-80GB", link_gbps=200.0)
    return table


def model_named(name: str) -> Shape:
    """The model of that name. Case and notes in brackets do not matter. Raises UnknownNameError."""
    return models()[_nearest(name, list(models()), "model")]


def shape_named(name: str) -> Shape:
    """The shape of a stage ("stage4", "70B MoE-large"), or of a model in the table. Raises UnknownNameError."""
    stage = stage_named(name)
    return stage.shape if stage else model_named(name)


def gpu_named(name: str) -> Gpu:
    """The GPU of that name. `H100` is enough if it names only one GPU or the usual one. Raises UnknownNameError."""
    return catalogue_gpus()[_nearest(name, list(catalogue_gpus()), "GPU")]


# The usual meaning of short names, and other names of an architecture.
USUAL_MODELS = {
    "llama318b": "Llama3-8B", "llama3170b": "Llama3-70B", "llama3370b": "Llama3-70B", "llama3405b": "Llama3.1-405B",
}  # fmt: skip
USUAL = {"a100": "A100-SXM-80GB", "h100": "H100-SXM-80GB", "h200": "H200-SXM-141GB", "h800": "H800-SXM-80GB"}


# What NVIDIA's drivers call them; old drivers leave out the first word. What is not here has no known peak: an H100 NVL
# and an A10G are other chips, or other clocks.
DRIVER_NAMES = {
    "A100-SXM-40GB": "NVIDIA A100-SXM4-40GB", "A100-SXM-80GB": "NVIDIA A100-SXM4-80GB",
    "A100-PCIe-80GB": "NVIDIA A100 80GB PCIe", "A800-80GB": "NVIDIA A800-SXM4-80GB",
    "H100-SXM-80GB": "NVIDIA H100 80GB HBM3", "H100-PCIe-80GB": "NVIDIA H100 PCIe",
    "H200-SXM-141GB": "NVIDIA H200", "H800-SXM-80GB": "NVIDIA H800", "H20-96GB": "NVIDIA H20",
    "GH200-96GB": "NVIDIA GH200 480GB", "B200": "NVIDIA B200", "B300": "NVIDIA B300 SXM6 AC", "GB200": "NVIDIA GB200",
    "GB300": "NVIDIA GB300", "L40S": "NVIDIA L40S", "L4": "NVIDIA L4", "A10": "NVIDIA A10", "A6000": "NVIDIA RTX A6000",
    "RTX4090": "NVIDIA GeForce RTX 4090", "RTX5090": "NVIDIA GeForce RTX 5090", "RTX3090": "NVIDIA GeForce RTX 3090",
    "RTX4070Ti-SUPER": "NVIDIA GeForce RTX 4070 Ti SUPER",
}  # fmt: skip


@cache
def driver_peaks() -> dict[str, Peak]:
    """Dense bf16 peaks by the name that a driver has for the GPU."""
    known = {told: catalogue_gpus()[name] for name, told in DRIVER_NAMES.items()}
    peaks = {told: Peak(gpu.name, gpu.peak_bf16 * 1e12) for told, gpu in known.items()}
    return peaks | {told.removeprefix("NVIDIA "): peak for told, peak in peaks.items()}


def _nearest(name: str, known: list[str], kind: str) -> str:
    wanted, usual = _plain(name), USUAL
    if kind == "model":  # Hugging Face's names begin with an owner.
        wanted, usual = _plain(name.rsplit("/", 1)[-1]).removeprefix("meta"), USUAL_MODELS
    if wanted in usual:
        return usual[wanted]
    by_plain = {_plain(k): k for k in known}
    if wanted in by_plain:
        return by_plain[wanted]
    starting = [k for p, k in by_plain.items() if wanted and p.startswith(wanted)]
    if len(starting) == 1:
        return starting[0]
    if kind == "GPU" and (meant := _by_words(name)):
        return meant
    said = by_plain if kind == "model" else USUAL | by_plain
    near = starting[:5] or [said[p] for p in difflib.get_close_matches(wanted, said, 3, 0.5)]
    if kind == "GPU" and not near:
        near = sorted(known)[:5]
    hint = f"; near: {', '.join(near)}" if near else ""
    raise UnknownNameError(f"no {kind} named {name!r} in the catalogue{hint}")


# Further parts of GPU names as vendors and drivers write them.
_BESIDES = re.compile(r"nvidia|amd|instinct|geforce|tesla|[dh]gx|gb|hbm[0-9]+e?|nvl72")


def _by_words(name: str) -> str | None:
    """The GPU that has all the words, its memory and `sxm` among them: `a100-40`, `NVIDIA H100 80GB HBM3`.

    Of several GPUs, it is the only SXM one. Numbers and words match only as a whole: an H20 is no H200.
    """
    words = re.findall(r"[a-z]+[0-9]+|[0-9]+|[a-z]+", re.sub(r"(sxm)[0-9]", r"\1", name.split("(")[0].lower()))
    words = [word for word in words if not _BESIDES.fullmatch(word)]
    if (short := "".join(word for word in words if word != "sxm")) in USUAL:
        return USUAL[short]
    meant = [gpu.name for gpu in catalogue_gpus().values() if words and all(_has_word(gpu, word) for word in words)]
    meant = [one for one in meant if "SXM" in one] or meant
    return meant[0] if len(meant) == 1 else None


def _has_word(gpu: Gpu, word: str) -> bool:
    if word == "sxm" and "PCIe" not in gpu.name and gpu.has_nvlink:
        return True
    before = r"(?<![0-9])" if is_whole(word[0]) else "(?<![a-z])"
    after = r"(?![0-9])" if is_whole(word[-1]) else "(?![a-z])"
    return re.search(f"{before}{word}{after}", f"{gpu.name} {gpu.hbm_gb:g}".lower()) is not None


@cache
def _plain(name: str) -> str:
    name = name.split("(")[0]
    return "".join(c for c in name.lower() if c.isalnum())


def shape_of(row: Row) -> Shape:
    """A row of the table of architectures.

    Raises ImpossibleShapeError, or ValueError for a cell that is not a number.
    """
    hidden, heads = _int(row, "hidden"), _int(row, "heads")
    experts = None
    if _int(row, "n_experts"):
        experts = Experts(
            _int(row, "n_experts"),
            _int(row, "topk"),
            _int(row, "moe_ffn"),
            _int(row, "shared_ffn"),
            _int(row, "first_dense"),
            _int(row, "moe_latent"),
        )
    latent = None
    if _int(row, "kv_rank"):
        latent = Latent(*(_int(row, k) for k in ("q_rank", "kv_rank", "rope_dim", "nope_dim", "value_dim")))
    hybrid = None
    if _int(row, "ssm_layers"):
        hybrid = Hybrid(*(_int(row, k) for k in ("attention_layers", "ssm_layers", "mlp_layers", "ssm_inner")))
    return Shape(
        name=row["model"],
        layers=_int(row, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_int(row, "kv_heads") or heads,
        head_dim=_int(row, "head_dim") or hidden // heads,
        ffn=_int(row, "ffn") or 4 * hidden,
        vocab=_int(row, "vocab"),
        gated=bool(_int(row, "gated")),
        tied=bool(_int(row, "tied")),
        learned_positions=_int(row, "positions"),
        experts=experts,
        latent=latent,
        hybrid=hybrid,
        stated_params=_billions(row, "params_b"),
        stated_active=_billions(row, "active_params_b"),
    )


def _gpu(row: Row) -> Gpu:
    peak, peak_fp8 = float(row["bf16_tflops"]), _float(row, "fp8_tflops")
    reached = _float(row, "reached_bf16_tflops") or USUAL_REACHED * peak
    usual_fp8 = min(USUAL_REACHED_FP8 * (peak_fp8 or 0), USUAL_FP8_GAIN * reached)
    return Gpu(
        name=row["gpu"],
        arch=row["arch"],
        peak_bf16=peak,
        peak_fp8=peak_fp8,
        peak_fp4=_float(row, "fp4_tflops"),
        reached_bf16=reached,
        reached_fp8=_float(row, "reached_fp8_tflops") or (usual_fp8 if peak_fp8 else None),
        hbm_gb=float(row["hbm_gb"]),
        hbm_gbps=1000 * float(row["hbm_tbps"]),
        link_gbps=float(row["link_gbps"]),
        pcie_gbps=float(row["pcie_gbps"]),
        gpus_per_node=int(row["gpus_per_node"]),
        scale_up_domain=int(row["scale_up_domain"]),
        has_nvlink=bool(row["nvlink"]),
    )


def _rows(name: str) -> Iterator[Row]:
    text = files("governor").joinpath("data", name).read_text(encoding="utf-8")
    yield from csv.DictReader(line for line in io.StringIO(text) if not line.startswith("#"))


def _int(row: Row, key: str) -> int:
    return int(row.get(key) or 0)


def _float(row: Row, key: str) -> float | None:
    return float(row[key]) if row.get(key) else None


def _billions(row: Row, key: str) -> float | None:
    value = _float(row, key)
    return 1e9 * value if value else None


# The hourly price of a GPU from the built-in price table, for plans: they buy no machine and ask no provider.


# The highest listed price is $14.24 an hour per GPU. A higher value was probably meant for the whole machine.
GPU_HOUR_USD_MAX = 40.0
CHEAPEST = "cheapest"


class NoPriceError(ValueError):
    """No provider lists this GPU. The text names the listed ones with their prices."""


@dataclass(frozen=True, slots=True)
class GpuPrice:
    gpu_hour_usd: float
    source: str
    is_spot: bool = False


def listed_price(gpu: Gpu, gpus: int, provider: str, kind: str) -> GpuPrice:
    """The provider's newest price for a machine with such GPUs, per GPU and hour. Raises NoPriceError."""
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
    """The providers that list this GPU, cheapest first, for an error or a note."""
    found = sorted(offers((gpu,), kind), key=lambda offer: offer.gpu_hour_usd)
    if not found:
        return f"no provider is listed with {gpu.name}: state a price with price (USD per GPU-hour)"
    return "listed per GPU-hour: " + ", ".join(f"{one.seller} ${one.gpu_hour_usd:.2f}" for one in found[:6])


def offers(wanted: tuple[Gpu, ...], kind: PriceKind, provider: str | None = None) -> list[Offer]:
    """Each provider's newest price of each of these GPUs, in machines as large as the provider offers them."""
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
    """GPUs of the catalogue with a listed price."""
    listed = {gpu_name for _, gpu_name in _listed(built_in(), kind)}
    return [gpu for name, gpu in catalogue_gpus().items() if name in listed]


def sellers() -> list[str]:
    return sorted({row.provider.partition(" (")[0] for row in built_in().rows if row.kind is not None})


def _listed(table: PriceTable, kind: PriceKind) -> list[tuple[str, str]]:
    return sorted({(row.provider, row.gpu) for row in table.rows if row.kind is kind})
