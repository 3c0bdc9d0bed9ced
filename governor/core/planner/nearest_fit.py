"""What would fit, when a set-up does not: the smallest change, then the next smallest. What costs least comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from governor.core.planner.setup import Checkpointing, Framework, ImpossibleSetupError, Offload, Setup

AND: Final = " and "
OFFERED: Final = 3
PLAIN_ZERO: Final = (
    Framework.MEGATRON,
    Framework.MEGATRON_DEEPSPEED,
)  # Beside tp and pp they shard the optimizer only.
GPUS_MAX: Final = 16_384  # Llama 3's: beyond it nobody has published a run.


@dataclass(frozen=True, slots=True)
class Fit:
    setup: Setup
    change: str


def what_fits(setup: Setup, fits: Callable[[Setup], bool], count: int = OFFERED) -> list[Fit]:
    """The first `count` changes that fit, each once: a further change on top of one that suffices is none."""
    return list(islice(_least(fit for fit in _changes(setup) if fits(fit.setup)), count))


def _least(fits: Iterator[Fit]) -> Iterator[Fit]:
    seen: list[set[str]] = []
    for fit in fits:
        words = {"more GPUs" if word.endswith(" GPUs") else word for word in fit.change.split(AND)}
        if not any(before <= words for before in seen):
            seen.append(words)
            yield fit


def _changes(setup: Setup) -> Iterator[Fit]:
    """On the same GPUs first, from what costs no time to what costs much; then more GPUs; then the host's memory."""
    variants = list(_on_the_same_gpus(setup))
    yield from variants
    thriftiest = variants[-1] if variants else Fit(setup, "")
    gpus = setup.gpus
    while 2 * gpus <= GPUS_MAX:
        gpus *= 2
        for base in (Fit(setup, ""), thriftiest):
            made = _with_gpus(base.setup, gpus)
            if made is not None:
                yield Fit(made, AND.join(filter(None, (f"{gpus} GPUs", base.change))))
    for offload in (Offload.OPTIMIZER_CPU, Offload.PARAM_OPTIMIZER_CPU):
        made = _but(
            thriftiest.setup,
            offload=offload,
            zero_stage=3 if offload.moves_params else max(thriftiest.setup.zero_stage, 1),
        )
        if made is not None:
            yield Fit(made, AND.join(filter(None, (f"offload {offload.value}", thriftiest.change))))


def _on_the_same_gpus(setup: Setup) -> Iterator[Fit]:
    stages = [(setup, "")]
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
                    word,
                    f"checkpointing {checkpointing}" if checkpointing is not setup.checkpointing else "",
                    f"micro-batch {micro}" if micro != setup.micro_batch else "",
                ]
                change = AND.join(filter(None, words))
                if made is not None and change:
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
