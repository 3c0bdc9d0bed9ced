"""Which changes would make a set-up fit, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from governor.planner.catalog import catalogue_gpus
from governor.planner.estimate import Estimate
from governor.planner.model.candidates import DEEPSPEED, MARGIN
from governor.planner.model.memory import memory_frac, memory_of
from governor.planner.model.setup import Attention, Checkpointing, Framework, Gpu, ImpossibleSetupError, Offload, Setup
from governor.planner.words import gigabytes, share

AND: Final = " and "
OFFERED: Final = 3
PLAIN_ZERO: Final = (Framework.MEGATRON, Framework.MEGATRON_DEEPSPEED)  # With tp and pp, they shard only the optimizer.
# Tokens of a rank. Shorter sequences are for larger batches, not for a further split.
SEQUENCE_PART_MIN: Final = 8192
GPUS_MAX: Final = 16_384  # Llama 3's. No published run has more.


@dataclass(frozen=True, slots=True)
class Fit:
    setup: Setup
    change: str


def what_fits(
    setup: Setup, fits: Callable[[Setup], bool], count: int = OFFERED, larger: Sequence[Gpu] = ()
) -> list[Fit]:
    """The first `count` changes that fit, each kind once. `larger`: other available GPUs.

    A change that extends one that suffices is left out.
    """
    return list(islice(_least(fit for fit in _changes(setup, larger) if fits(fit.setup)), count))


def _least(fits: Iterator[Fit]) -> Iterator[Fit]:
    seen: list[set[str]] = []
    for fit in fits:
        words = {"GPUs" if word.endswith(" GPUs") else word.split()[0] for word in fit.change.split(AND)}
        if not any(before <= words for before in seen):
            seen.append(words)
            yield fit


def _changes(setup: Setup, larger: Sequence[Gpu]) -> Iterator[Fit]:
    """Changes in the order of their cost.

    First on the same GPUs, from no loss of time to much, then more GPUs, other GPUs, the host's memory, and at last
    more of other GPUs.
    """
    if setup.attention is Attention.UNFUSED:
        # The scores are never whole, and it is faster too: every other change is tried with it.
        flash = Fit(setup.but(attention=Attention.FLASH), "attention flash")
        yield flash
        for fit in _changes(flash.setup, larger):
            yield from _made(fit.setup, fit.change, flash)
        return
    fused, variants = _with_fused_loss(setup), list(_on_the_same_gpus(setup))
    fused_variants = [] if fused is None else [fused, *_on_the_same_gpus(fused.setup, fused.change)]
    yield from fused_variants[:1]
    yield from variants
    yield from fused_variants[1:]
    thriftiest = _thriftiest(setup, variants) or Fit(setup, "")
    bases = tuple(filter(None, (Fit(setup, ""), thriftiest, _thriftiest(setup, fused_variants))))
    if setup.framework in PLAIN_ZERO:
        for base in bases:
            yield from _split_further(base)
    if setup.seq_len >= 2 * SEQUENCE_PART_MIN:
        yield from _split_sequence(setup, bases)
    more = [count for count in _doubles(setup.gpus, GPUS_MAX) if count > setup.gpus]
    for gpus in more:
        for base in bases:
            yield from _made(_with_gpus(base.setup, gpus), f"{gpus} GPUs", base)
    roomier = sorted((gpu for gpu in larger if gpu.hbm_gb > setup.gpu.hbm_gb), key=lambda gpu: gpu.hbm_gb)
    for gpu in roomier:
        for base in bases:
            yield from _made(_but(base.setup, gpu=gpu), f"gpu {gpu.name}", base)
    for offload in (Offload.OPTIMIZER_CPU, Offload.PARAM_OPTIMIZER_CPU):
        if offload.moves_params and setup.framework in PLAIN_ZERO:
            continue
        zero = 3 if offload.moves_params else max(thriftiest.setup.zero_stage, 1)
        yield from _made(
            _but(thriftiest.setup, offload=offload, zero_stage=zero), f"offload {offload.value}", thriftiest
        )
    for gpus in more:
        for gpu in roomier:
            made = _with_gpus(thriftiest.setup, gpus)
            yield from _made(made and _but(made, gpu=gpu), AND.join((f"gpu {gpu.name}", f"{gpus} GPUs")), thriftiest)


def _made(setup: Setup | None, word: str, base: Fit) -> Iterator[Fit]:
    if setup is not None:
        yield Fit(setup, AND.join(filter(None, (word, base.change))))


def _split_further(base: Fit) -> Iterator[Fit]:
    """More ranks per copy of the model, on the same GPUs: fewest first, and experts before layers."""
    setup = base.setup
    experts = setup.shape.experts.count if setup.shape.experts else 1
    tries = [
        (tp, pp, ep)
        for tp in _doubles(setup.tp, min(setup.gpu.scale_up_domain, setup.shape.heads))
        for pp in _doubles(setup.pp, setup.shape.layers)
        for ep in _doubles(setup.ep, experts)
        if setup.gpus % (tp * pp * setup.cp) == 0 and (setup.tp, setup.pp, setup.ep) != (tp, pp, ep)
    ]
    for tp, pp, ep in sorted(tries, key=lambda ways: (ways[0] * ways[1] * ways[2], ways[1], ways[0])):
        dp = setup.gpus // (tp * pp * setup.cp)
        if setup.gpus % ep:
            continue
        split = _but(
            setup, tp=tp, pp=pp, ep=ep, dp=dp, sequence_parallel=tp > 1 or setup.sequence_parallel,
            grad_accum=max(setup.grad_accum * setup.dp // dp, 1),
        )  # fmt: skip
        ways = (("tp", tp, setup.tp), ("pp", pp, setup.pp), ("ep", ep, setup.ep))
        yield from _made(split, AND.join(f"{name} {now}" for name, now, was in ways if now != was), base)


def _split_sequence(setup: Setup, bases: Sequence[Fit]) -> Iterator[Fit]:
    """The fewest parts first."""
    for cp in _doubles(2 * setup.cp, min(setup.seq_len // SEQUENCE_PART_MIN, setup.gpus)):
        dp = setup.gpus // (setup.tp * setup.pp * cp)
        if dp * setup.tp * setup.pp * cp != setup.gpus:
            continue
        for base in bases:
            accum = max(base.setup.grad_accum * base.setup.dp // dp, 1)
            yield from _made(_but(base.setup, cp=cp, dp=dp, grad_accum=accum), f"cp {cp}", base)


def _doubles(first: int, last: int) -> list[int]:
    found = [first]
    while 2 * found[-1] <= last:
        found.append(2 * found[-1])
    return found


def _thriftiest(setup: Setup, variants: Sequence[Fit]) -> Fit | None:
    """The last, but no plain replica in the place of what shards: it gains nothing from more GPUs."""
    kept = [fit for fit in variants if fit.setup.framework is not Framework.DDP or setup.framework is Framework.DDP]
    return kept[-1] if kept else None


def _with_fused_loss(setup: Setup) -> Fit | None:
    """Liger's, or a chunked one: the logits are never whole, and no time is lost. Megatron's and XLA's are fused."""
    if setup.fused_loss or setup.framework in (*PLAIN_ZERO, Framework.XLA):
        return None
    return Fit(setup.but(fused_loss=True), "fused-loss 1")


def _on_the_same_gpus(setup: Setup, before: str = "") -> Iterator[Fit]:
    """`before`: the change that made the set-up."""
    stages = [(setup, "")]
    if setup.gpus == 1 and setup.framework in (*DEEPSPEED, Framework.FSDP, Framework.FSDP2):
        # A rank alone shards nothing, and needs no buckets for it.
        stages.append((setup.but(framework=Framework.DDP, zero_stage=0), "framework ddp"))
    if setup.framework in (*PLAIN_ZERO, Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED):
        last = 1 if setup.pp > 1 or setup.framework in PLAIN_ZERO else 3
        stages += [
            (made, f"zero {zero}")
            for zero in range(setup.zero_stage + 1, last + 1)
            if (made := _but(setup, zero_stage=zero)) is not None
        ]
    elif (
        setup.framework is Framework.DDP and (made := _but(setup, framework=Framework.FSDP2, zero_stage=3)) is not None
    ):
        stages.append((made, "framework fsdp2"))
    for micro in _halves(setup.micro_batch):
        for checkpointing in _thriftier(setup.checkpointing):
            for base, word in stages:
                made = _but(
                    base, checkpointing=checkpointing, micro_batch=micro,
                    grad_accum=max(setup.grad_accum * setup.micro_batch // micro, 1),
                )  # fmt: skip
                words = [
                    before,
                    word,
                    f"checkpointing {checkpointing}" if checkpointing is not setup.checkpointing else "",
                    f"micro-batch {micro}" if micro != setup.micro_batch else "",
                ]
                change = AND.join(filter(None, words))
                if made is not None and change != before:
                    yield Fit(made, change)


def _halves(micro: int) -> list[int]:
    halves = [micro]
    while halves[-1] > 1:
        halves.append(halves[-1] // 2)
    return halves


def _thriftier(checkpointing: Checkpointing) -> list[Checkpointing]:
    order = list(Checkpointing)
    return order[order.index(checkpointing) :]


def _with_gpus(setup: Setup, gpus: int) -> Setup | None:
    dp = gpus // (setup.tp * setup.pp * setup.cp)
    return _but(setup, gpus=gpus, dp=dp, grad_accum=max(setup.grad_accum * setup.dp // dp, 1))


def _but(setup: Setup, **changes: object) -> Setup | None:
    try:
        return setup.but(**changes)
    except ImpossibleSetupError:
        return None


# One line about what would fit, when a plan does not.


def refusal(one: Estimate) -> str | None:
    """The line, or None if the plan fits."""
    return None if one.prediction.memory.fits else would_fit(one.plan.asked.name, one.setup)


def would_fit(name: str, setup: Setup) -> str:
    """What a set-up that does not fit needs, and what would fit instead."""
    memory = memory_of(setup)
    needed, has = gigabytes(memory.reserved), gigabytes(memory.capacity)
    need = f"{name} needs {needed} GB of a {setup.gpu.name}'s {has}"
    larger = list(catalogue_gpus().values())
    fits = what_fits(setup, lambda one: memory_frac(one) <= MARGIN, larger=larger)
    only_just = [fit for fit in what_fits(setup, lambda one: memory_frac(one) <= 1, 1, larger) if fit not in fits]
    tight = [f"only just ({share(memory_frac(fit.setup))} of the memory) with {fit.change}" for fit in only_just]
    if not fits and not tight:
        rest = "split the model (tp, pp) or the sequence (cp)"
        return f"{need}, and no smaller step, sharding, offload or number of GPUs makes it fit: {rest}"
    return f"{need}; it fits {', or '.join([*(f'with {fit.change}' for fit in fits), *tight])}"
