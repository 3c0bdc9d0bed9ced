"""Turns a stated plan into the planner's input. Open values are chosen or assumed, and the report names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from governor.core.base.units import NS_PER_S, is_whole, parse_count, parse_duration, read_amount, read_float
from governor.planner.catalog import CHEAPEST, GPU_HOUR_USD_MAX, GpuPrice, gpu_named
from governor.planner.keys import PlanUnreadableError, attention_named, resolved
from governor.planner.model.candidates import (
    DEEPSPEED,
    EXPERT_RANKS,
    MARGIN,
    PARALLEL,
    ROUNDED,
    SHARDED,
    Space,
    candidates,
)
from governor.planner.model.setup import Checkpointing, Framework, Gpu, Offload, Precision, Setup
from governor.planner.model.shape import Shape, divisors_near
from governor.planner.model.training_stages import stage_named
from governor.planner.sellers import cheapest_price, provider_price
from governor.planner.shape import stated_shape
from governor.planner.words import count as count_text
from governor.text.table import plain

SEQ_LEN_USUAL: Final = 4096
CHUNKS: Final = (1, 2, 4, 8)  # Llama 3's 8 is the most of any published run.
SEQ_LEN_MAX: Final = 2**24
GPUS_MAX: Final = 1_000_000
# Earlier, no transformer was trained on tensor cores. No constant covers that.
VINTAGE_MIN: Final = 2018
# Keys with the value 0 or 1 -> fields of Setup.
FLAGS: Final = {
    "lora": "adapters",
    "bf16-states": "bf16_states",
    "fused-loss": "fused_loss",
    "overlap-experts": "overlapped_experts",
}
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Asked:
    """The stated values. None: not stated."""

    name: str
    shape: Shape
    gpu: Gpu
    gpus: int
    seq_len: int
    batch_tokens: float
    framework: Framework
    space: Space  # The values left to choose from.
    tokens: float | None
    price: GpuPrice | None
    measured_tokens_per_s: float | None
    save_s: float | None
    save_every_s: float | None
    data_wait: float | None
    given: dict[str, int | None]  # micro_batch, grad_accum, zero, tp, pp, vp, cp, ep
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A plan without open values. The report shows `assumed` and `chosen`.

    `passed_over`: a faster set-up that fits, and leaves no room for an error of the prediction.
    """

    asked: Asked
    setup: Setup
    assumed: tuple[str, ...]
    chosen: tuple[str, ...]
    passed_over: Setup | None = None


@dataclass(slots=True)
class Reader:
    """Typed values of a plan, with one line for the user when a value is wrong. Records the assumptions."""

    values: Mapping[str, str]
    assumed: list[str] = field(default_factory=list)

    def wrong(self, key: str, why: str) -> PlanUnreadableError:
        return PlanUnreadableError(f"{key} {self.values[key]!r}: {why}")

    def integer(self, key: str, most: int = GPUS_MAX, least: int = 1) -> int | None:
        if not (text := self.values.get(key, "")):
            return None
        if not is_whole(text) or not least <= int(text) <= most:
            raise self.wrong(key, f"must be a whole number from {least} to {most}")
        return int(text)

    def number(self, key: str, most: float = math.inf) -> float | None:
        if not (text := self.values.get(key, "")):
            return None
        try:
            value = read_float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most or math.isinf(value):
            raise self.wrong(key, "must be a number above 0" + ("" if math.isinf(most) else f", at most {most:g}"))
        return value

    def dollars(self, key: str) -> float | None:
        if not (text := self.values.get(key, "")):
            return None
        try:
            value = float(read_amount(text))
        except ValueError as error:
            raise PlanUnreadableError(f"{key}: {error}") from error
        if not 0 < value < math.inf:
            raise self.wrong(key, "must be above 0")
        return value

    def count(self, key: str) -> float | None:
        if not (text := self.values.get(key, "")):
            return None
        try:
            value = parse_count(text)
        except ValueError as error:
            raise PlanUnreadableError(f"{key}: {error}") from error
        if value <= 0:
            raise self.wrong(key, "must be above 0")
        return float(value)

    def word(self, key: str, kind: type[Word]) -> Word | None:
        if not (text := self.values.get(key, "")):
            return None
        try:
            return kind(text.lower())
        except ValueError:
            raise self.wrong(key, f"there are {', '.join(kind)}") from None

    def assume(self, what: str) -> None:
        self.assumed.append(what)


def asked(values: Mapping[str, str]) -> Asked:
    """Read a plan's values. Raises PlanUnreadableError and the planner's own errors, each one line for the user."""
    reader = Reader(with_stage(resolved(values)))
    shape = stated_shape(reader.values)
    if not reader.values.get("gpu"):
        reader.assume("gpu H100-SXM-80GB")
    gpu = gpu_named(reader.values.get("gpu") or "h100")
    gpus = reader.integer("gpus")
    if gpus is None:
        reader.assume(f"gpus {gpu.gpus_per_node}")
        gpus = gpu.gpus_per_node
    framework = reader.word("framework", Framework) or Framework.DEEPSPEED
    seq_len = reader.integer("seq-len", SEQ_LEN_MAX)
    if seq_len is None:
        seq_len = min(shape.learned_positions or SEQ_LEN_USUAL, SEQ_LEN_USUAL)
        reader.assume(f"seq-len {seq_len}")
    given = {key: reader.integer(key) for key in ("micro-batch", "grad-accum", "tp", "pp", "vp", "cp", "ep")}
    given["zero"] = reader.integer("zero", 3, 0)
    batch = _batch_tokens(reader, shape, given, seq_len, gpus)
    per_s = reader.count("tokens-per-s")
    save_every = reader.values.get("save-every")
    return Asked(
        name=plain(reader.values.get("name") or shape.name),
        shape=shape,
        gpu=gpu,
        gpus=gpus,
        seq_len=seq_len,
        batch_tokens=batch,
        framework=framework,
        space=_space(reader, framework, gpu, gpus, shape, given),
        tokens=reader.count("tokens"),
        price=_price(reader, gpu, gpus),
        measured_tokens_per_s=per_s if per_s is not None else _of_steps(reader, batch),
        save_s=reader.number("save-s"),
        save_every_s=None if not save_every else _seconds(save_every),
        data_wait=reader.number("data-wait", 0.99),
        given=given,
        assumed=tuple(reader.assumed),
    )


def with_stage(values: dict[str, str]) -> dict[str, str]:
    """A model that is one of the four stages adds the stage's tokens, sequence length and steps."""
    stage = stage_named(values.get("model", ""))
    if stage is None:
        return values
    own = {"tokens": f"{stage.tokens:.0f}", "seq-len": str(stage.seq_len)}
    if not values.get("grad-accum"):
        own["batch-tokens"] = str(stage.step_tokens)
    return {**own, **values}


def settle(plan: Asked, memory_frac: Callable[[Setup], float], tokens_per_gpu_s: Callable[[Setup], float]) -> RunPlan:
    """Choose the open values.

    The fastest set-up that fits with room is taken, else the fastest that fits, else the one with the least memory.
    """
    setups = list(candidates(plan.shape, (plan.gpu,), plan.seq_len, plan.batch_tokens, plan.space)) or [_stated(plan)]
    if len(setups) == 1:
        return RunPlan(plan, setups[0], plan.assumed, _chosen(plan, setups[0]))
    used = [(memory_frac(setup), setup) for setup in setups]
    roomy = max((setup for frac, setup in used if frac <= MARGIN), key=tokens_per_gpu_s, default=None)
    any_fit = max((setup for frac, setup in used if frac <= 1), key=tokens_per_gpu_s, default=None)
    best = roomy or any_fit
    if best is not None:
        faster = any_fit if any_fit is not None and tokens_per_gpu_s(any_fit) > tokens_per_gpu_s(best) else None
        return RunPlan(plan, best, plan.assumed, _chosen(plan, best), faster)
    least = min(used, key=lambda one: one[0])[1]
    return RunPlan(plan, least, plan.assumed, _chosen(plan, least))


def _stated(plan: Asked) -> Setup:
    """The plan exactly as stated, when no framework runs any of the space.

    Raises ImpossibleSetupError if none could.
    """
    tp, pp, cp, ep = (plan.given[key] or 1 for key in ("tp", "pp", "cp", "ep"))
    dp = max(plan.gpus // (tp * pp * cp), 1)
    micro, space = plan.given["micro-batch"] or 1, plan.space
    at_once = plan.seq_len * dp * micro
    if at_once > ROUNDED * plan.batch_tokens:
        raise PlanUnreadableError(
            f"batch-tokens {count_text(plan.batch_tokens)}: {dp} ranks take {micro} x {plan.seq_len} tokens each "
            f"at once, {count_text(at_once)} together; state that many, or a smaller micro-batch, or fewer gpus"
        )
    setup = Setup(
        shape=plan.shape, gpu=plan.gpu, gpus=dp * tp * pp * cp, seq_len=plan.seq_len, micro_batch=micro,
        grad_accum=max(round(plan.batch_tokens / (plan.seq_len * dp * micro)), 1), dp=dp, tp=tp, pp=pp, cp=cp, ep=ep,
        virtual_stages=plan.given["vp"] or 1,
        sequence_parallel=tp > 1, zero_stage=space.zero_stages[0], checkpointing=space.checkpointings[0],
        precision=space.precisions[0], framework=plan.framework, **space.fixed,  # type: ignore[arg-type]
    )  # fmt: skip
    if setup.gpus != plan.gpus:
        raise PlanUnreadableError(
            f"tp {tp} x pp {pp} x cp {cp} are {tp * pp * cp} ranks, which do not divide {plan.gpus} gpus"
        )
    return setup


def _chosen(plan: Asked, setup: Setup) -> tuple[str, ...]:
    words = []
    if plan.given["zero"] is None and len(plan.space.zero_stages) > 1:
        words.append(f"zero {setup.zero_stage}")
    if len(plan.space.checkpointings) > 1:
        words.append(f"checkpointing {setup.checkpointing}")
    if plan.given["micro-batch"] is None:
        words.append(f"micro-batch {setup.micro_batch}")
    space = plan.space
    for key, among in (("tp", space.tps), ("pp", space.pps), ("vp", space.vps), ("ep", space.eps)):
        if plan.given[key] is None and len(among) > 1:
            words.append(f"{key} {getattr(setup, PARALLEL[key])}")
    return tuple(words)


def _space(
    reader: Reader, framework: Framework, gpu: Gpu, gpus: int, shape: Shape, given: Mapping[str, int | None]
) -> Space:
    megatron = framework is Framework.MEGATRON
    checkpointing = reader.word("checkpointing", Checkpointing)
    offload = reader.word("offload", Offload) or Offload.NONE
    zeros = _zero_stages(reader, framework, offload, given["zero"])
    _check_ranks(reader, framework, shape, gpus, given)
    node = min(gpu.gpus_per_node, gpus)
    tps = tuple(t for t in (1, 2, 4, 8) if t <= node and shape.heads % t == 0) if megatron else (1,)
    pps = tuple(p for p in (1, 2, 4, 8, 16) if p * node <= gpus and p <= shape.layers) if megatron else (1,)
    eps: tuple[int, ...] = (1,)
    if shape.experts and megatron:
        eps = _expert_ranks(shape.experts.count, node, gpus)
    elif shape.experts and framework in DEEPSPEED:
        eps = tuple(ep for ep in EXPERT_RANKS if ep <= node and shape.can_spread(ep))

    def one(key: str, among: tuple[int, ...]) -> tuple[int, ...]:
        value = given[key]
        return among if value is None else (value,)

    fixed: dict[str, object] = {
        **dict(zip(("attention", "kernel"), attention_named(reader.values.get("attention", "")), strict=True)),
        "offload": offload,
        "shard_ranks": reader.integer("shard-ranks"),
        "node_gbps": reader.number("network", 100_000),
        "expert_tp": reader.integer("etp") or 1,
        **{field: bool(reader.integer(key, 1, 0)) for key, field in FLAGS.items()},
    }
    if (vintage := reader.number("vintage", 2100)) is not None:
        if vintage < VINTAGE_MIN:
            raise reader.wrong("vintage", f"must be a year from {VINTAGE_MIN} on, such as 2024.5")
        fixed["vintage"] = vintage
    return Space(
        gpus=(gpus,),
        frameworks=(framework,),
        zero_stages=zeros,
        micro_batches=one("micro-batch", (1, 2, 4) if megatron else (1, 2, 4, 8, 16, 32)),
        checkpointings=(checkpointing,) if checkpointing else tuple(Checkpointing),
        tps=one("tp", tps),
        pps=one("pp", pps),
        cps=one("cp", (1,)),
        eps=one("ep", eps),
        vps=one("vp", CHUNKS if max(pps) > 1 else (1,)),
        precisions=(reader.word("precision", Precision) or Precision.BF16,),
        fixed=fixed,
    )


def _zero_stages(reader: Reader, framework: Framework, offload: Offload, stated: int | None) -> tuple[int, ...]:
    """The stated stage, or those to try. Refuses what DeepSpeed and DDP refuse."""
    if framework is Framework.DDP and stated:
        raise reader.wrong("zero", "ddp replicates what ZeRO shards: 0; or framework deepspeed or fsdp2")
    if framework in DEEPSPEED:
        least = 3 if offload.moves_params or offload.is_nvme else 1
        if offload is not Offload.NONE and stated is not None and stated < least:
            raise reader.wrong("zero", f"offload {offload} needs {'3' if least == 3 else '1, 2 or 3'}")
        return (1, 2, 3)[least - 1 :] if stated is None else (stated,)
    if stated is not None:
        return (stated,)
    return (1,) if framework is Framework.MEGATRON else (3,) if framework in SHARDED else (0,)


def _check_ranks(
    reader: Reader, framework: Framework, shape: Shape, gpus: int, given: Mapping[str, int | None]
) -> None:
    shard_ranks, chunks, stages = reader.integer("shard-ranks"), given["vp"] or 1, given["pp"]
    if shard_ranks and gpus % shard_ranks:
        raise reader.wrong("shard-ranks", f"must divide the {gpus} gpus: {divisors_near(gpus, shard_ranks)}")
    if chunks > 1 and framework is not Framework.MEGATRON and (stages or 1) == 1:
        raise reader.wrong("vp", "cuts the stages of a pipeline: state pp")
    # Llama 3 split 126 layers into 16 x 8 chunks, two of them empty.
    if chunks > math.ceil(shape.layers / (stages or 1)):
        raise reader.wrong("vp", f"the model's {shape.layers} layers make no {chunks} chunks of {stages or 1} stages")


def _expert_ranks(experts: int, node: int, gpus: int) -> tuple[int, ...]:
    """Up to one node, and DeepSeek-V3's 64 (arXiv 2412.19437 §3.1) if there are as many GPUs and experts."""
    wide = (64,) if experts % 64 == 0 and gpus >= 64 > node else ()
    return (math.gcd(node, experts), *wide)


def _price(reader: Reader, gpu: Gpu, gpus: int) -> GpuPrice | None:
    stated, of_node = reader.dollars("price"), reader.dollars("node-price")
    kind = reader.values.get("price-kind") or "on-demand"
    is_spot = kind == "spot"
    if stated is not None and stated > GPU_HOUR_USD_MAX:
        raise reader.wrong("price", f"no GPU costs that an hour; for a whole machine write node-price {stated:g}")
    if stated is not None:
        return GpuPrice(stated, "stated", is_spot)
    if of_node is not None:
        # Whole machines are paid for.
        return GpuPrice(of_node * math.ceil(gpus / gpu.gpus_per_node) / gpus, "stated", is_spot)
    if provider := reader.values.get("provider"):
        return cheapest_price(gpu, gpus, kind) if provider == CHEAPEST else provider_price(gpu, gpus, provider, kind)
    return None


def _batch_tokens(reader: Reader, shape: Shape, given: Mapping[str, int | None], seq_len: int, gpus: int) -> float:
    """Tokens of a step: stated, else from micro-batch and accumulation, else the usual number for the size."""
    micro, accum = given["micro-batch"], given["grad-accum"]
    ranks = max(gpus // math.prod(given[key] or 1 for key in ("tp", "pp", "cp")), 1)
    at_once = (micro or 1) * seq_len * ranks
    stated = reader.count("batch-tokens")
    if accum is not None:
        if micro is None or stated is not None:
            raise reader.wrong("grad-accum", "goes with micro-batch and without batch-tokens: they say it twice")
        return float(accum * at_once)
    if stated is None:
        usual = max(usual_batch_tokens(shape.params), at_once)
        reader.assume(f"batch-tokens {usual / 1e6:.3g}M")
        return usual
    return stated


def _of_steps(reader: Reader, batch: float) -> float | None:
    steps = reader.number("steps-per-hour")
    return None if steps is None else steps * batch / 3600


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text) / NS_PER_S
    except ValueError as error:
        raise PlanUnreadableError(f"save-every: {error}") from error
    if seconds < 1:
        raise PlanUnreadableError(f"save-every {text!r}: must be a second at least")
    return seconds


def usual_batch_tokens(params: float) -> float:
    """Tokens of a step: as they grow in GPT-3's table (arXiv 2005.14165, table 2.1), and Llama 3's 4M at the start."""
    for below, tokens in ((1e9, 0.5e6), (3e9, 1e6), (2e10, 2e6)):
        if params < below:
            return tokens
    return 4e6
