"""The capabilities of a GPU and its links, and one way to train one model.

Figures come from vendors' sheets and from measurements, in the dated catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from governor.planner.model.shape import Shape


class Precision(StrEnum):
    """The number format of the large matmuls. The framework decides that of master weights and optimizer states."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    def __init__(self, name: str) -> None:
        self.bits = {"bf16": 16, "fp16": 16, "fp8": 8, "mxfp8": 8, "nvfp4": 4}[name]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. Rates in TFLOP/s (dense), bandwidths in GB/s (1e9) one way, memory in GB (1e9)."""

    name: str
    arch: str
    peak_bf16: float
    peak_fp8: float | None
    peak_fp4: float | None
    reached_bf16: float  # the best rate of a large matmul (MAMF), measured if available
    reached_fp8: float | None
    hbm_gb: float
    hbm_gbps: float
    link_gbps: float  # to the GPUs of its scale-up domain; PCIe if there is no NVLink
    pcie_gbps: float  # to the host, as measured
    gpus_per_node: int
    scale_up_domain: int  # GPUs that reach one another at `link_gbps`
    has_nvlink: bool

    def runs(self, kernel: Kernel) -> bool:
        """Whether the attention kernel is made for it: flash-attention's READMEs, cuDNN's support matrix."""
        match kernel:
            case Kernel.FLASH_2:
                return self.arch != "Volta"
            case Kernel.FLASH_3:
                return self.arch == "Hopper"
            case Kernel.FLASH_4:
                return self.arch in ("Hopper", "Blackwell", "Blackwell Ultra")
            case Kernel.CUDNN:
                return self.arch != "Volta" and not self.arch.startswith("CDNA")
        return True

    def supports(self, precision: Precision) -> bool:
        match precision:
            case Precision.FP8:
                return self.peak_fp8 is not None
            case Precision.MXFP8:
                return self.peak_fp8 is not None and self.arch.startswith(("Blackwell", "CDNA4"))
            case Precision.NVFP4:
                return self.peak_fp4 is not None and self.arch in ("Blackwell", "Blackwell Ultra")
        return True


# One way to train one model: everything that memory and step time depend on.


class ImpossibleSetupError(ValueError):
    """A combination that no framework runs. The text says what is possible instead."""


class Checkpointing(StrEnum):
    """Activation checkpointing: what the backward pass recomputes."""

    NONE = "none"
    SELECTIVE = "selective"  # the attention core, or the cheap operators
    FULL = "full"  # every layer from its input


class Attention(StrEnum):
    FLASH = "flash"
    UNFUSED = "unfused"
    SPARSE = "dsa"  # DeepSeek Sparse Attention
    NATIVE_SPARSE = "nsa"


class Kernel(StrEnum):
    """The fused kernel of flash attention."""

    USUAL = "usual"  # of the framework, on the GPU
    FLASH_2 = "fa2"
    # These use a Hopper's and a Blackwell's own units.
    FLASH_3 = "fa3"
    FLASH_4 = "fa4"
    CUDNN = "cudnn"
    FLEX = "flex"  # FlexAttention, compiled by Triton


class Framework(StrEnum):
    """Classes of software with similar memory and time. A named framework belongs to one of them."""

    # fused kernels, tensor and pipeline parallelism: Megatron-Core, NeMo, InternEvo, nanotron
    MEGATRON = "megatron"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"  # Megatron's layers under DeepSpeed's ZeRO and pipeline: BLOOM
    FSDP = "fsdp"  # FSDP1 under its own trainer: llm-foundry/Composer
    FSDP2 = "fsdp2"  # compiled, per-parameter sharding: torchtitan, fms-fsdp
    XLA = "xla"  # MaxText, PaxML
    DEEPSPEED = "deepspeed"  # DeepSpeed under Hugging Face models, eager
    DEEPSPEED_COMPILED = "deepspeed-compiled"  # the same under torch.compile or DeepCompile
    DDP = "ddp"  # plain replicas


class Offload(StrEnum):
    NONE = "none"
    OPTIMIZER_CPU = "optimizer_cpu"
    # states on the host, Adam on the GPU: DeepCompile's adaptive offload
    OPTIMIZER_STREAMED = "optimizer_streamed"
    PARAM_OPTIMIZER_CPU = "param+optimizer_cpu"
    OPTIMIZER_NVME = "optimizer_nvme"
    PARAM_OPTIMIZER_NVME = "param+optimizer_nvme"

    def __init__(self, name: str) -> None:
        self.moves_optimizer = name != "none"
        self.moves_params = name.startswith("param+")
        self.is_nvme = name.endswith("_nvme")


@dataclass(frozen=True, slots=True)
class Setup:
    """A run's layout on the machines. Ranks: `gpus == dp * tp * pp * cp`; experts are within `dp * cp * tp`."""

    shape: Shape
    gpu: Gpu
    gpus: int
    seq_len: int
    micro_batch: int  # sequences of one rank at a time
    grad_accum: int  # micro-batches per step
    dp: int
    tp: int = 1
    pp: int = 1
    virtual_stages: int = 1  # model chunks per pipeline stage (interleaving)
    cp: int = 1
    ep: int = 1
    # ranks that share one expert (Megatron's expert_tensor_parallel_size)
    expert_tp: int = 1
    sequence_parallel: bool = True  # Megatron's, along tp
    zero_stage: int = 0
    # Ranks that share the sharded states. None: all of dp*cp; fewer with hpZ or HSDP.
    shard_ranks: int | None = None
    checkpointing: Checkpointing = Checkpointing.NONE
    precision: Precision = Precision.BF16
    attention: Attention = Attention.FLASH
    kernel: Kernel = Kernel.USUAL
    framework: Framework = Framework.DEEPSPEED
    offload: Offload = Offload.NONE
    # Network of one node, GB/s one way. None: that of the GPU's usual node.
    node_gbps: float | None = None
    vintage: float = 2025.5  # year of the software
    fp8_params: bool = False  # Weights are stored and gathered in the low precision.
    bf16_gradients: bool = False  # Megatron's main gradients are bf16 instead of fp32.
    # Master weights, gradients and Adam's moments are bf16 too. Nothing is fp32.
    bf16_states: bool = False
    dropout: bool = False
    fused_loss: bool = False  # Chunked or fused cross-entropy: the logits are never whole.
    # Adam as separate kernels, with whole copies of its shard during the step.
    unfused_optimizer: bool = False
    # LoRA: the weights are frozen, and only narrow extra matrices are trained.
    adapters: bool = False
    # All-to-all overlaps another micro-batch's work: DualPipe, Megatron's overlap.
    overlapped_experts: bool = False
    uniform_routing: bool = True  # Tokens are spread evenly over experts, as benchmarks force it.

    def __post_init__(self) -> None:
        _check(self)

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one data-parallel rank. A whole tp*pp*cp group works on them."""
        return self.micro_batch * self.seq_len

    @property
    def tokens_per_step(self) -> int:
        return self.tokens_per_micro_batch * self.grad_accum * self.dp

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards."""
        return min(self.shard_ranks or self.dp * self.cp, self.dp * self.cp)

    @property
    def is_dual_pipe(self) -> bool:
        """DeepSeek's DualPipe (arXiv 2412.19437 §3.2.1), whose halves of the micro-batches enter at both ends.

        Megatron overlaps all-to-all in an interleaved pipeline alone. Without chunks, the overlap is DualPipe's.
        """
        is_overlapped = self.overlapped_experts and self.shape.is_moe and self.virtual_stages == 1
        return is_overlapped and self.pp > 1 and self.pp % 2 == 0 and self.grad_accum >= 2 * self.pp

    @property
    def recomputes_modules(self) -> bool:
        """Megatron's selective checkpointing of a mixture: norms, activations and MLA's up-projections.

        Those are DeepSeek-V3's (arXiv 2412.19437 §3.2.3), and --recompute-modules of Megatron's recipes. A fused kernel
        leaves no scores to recompute.
        """
        is_fused = self.framework is Framework.MEGATRON and self.attention is not Attention.UNFUSED
        return self.checkpointing is Checkpointing.SELECTIVE and is_fused and self.shape.is_moe

    @property
    def is_sharding_params(self) -> bool:
        return self.zero_stage >= 3

    @property
    def node_bandwidth(self) -> float:
        """GB/s one way out of one node of `gpu.gpus_per_node`."""
        usual = USUAL_PORT_GBPS.get(self.gpu.arch, 6.0) * self.gpu.gpus_per_node
        return self.node_gbps if self.node_gbps is not None else usual

    def but(self, **changes: object) -> Setup:
        return replace(self, **changes)  # type: ignore[arg-type]


# One way, for one GPU's share. AWS p4d: 4x100 Gb/s for 8 GPUs, DGX A100 8x200; DGX H100 and B200: 400 Gb/s per GPU;
# GB200 trays: the same; B300 and GB300: 800; MI300X nodes: 400; L40S and RTX machines usually share one port of 100.
USUAL_PORT_GBPS = {
    "Volta": 1.5,
    "Ampere": 12.5,
    "Hopper": 50.0,
    "Blackwell": 50.0,
    "Blackwell Ultra": 100.0,
    "CDNA2": 25.0,
    "CDNA3": 50.0,
    "CDNA4": 50.0,
    "Ada": 1.5,
    "Blackwell GB202": 1.5,
}


def _check(setup: Setup) -> None:
    shape = setup.shape
    for name in ("gpus", "seq_len", "micro_batch", "grad_accum", "dp", "tp", "pp", "virtual_stages", "cp", "ep"):
        if getattr(setup, name) < 1:
            raise ImpossibleSetupError(f"{name} must be at least 1, not {getattr(setup, name)}")
    ranks = setup.dp * setup.tp * setup.pp * setup.cp
    if ranks != setup.gpus:
        raise ImpossibleSetupError(
            f"dp {setup.dp} x tp {setup.tp} x pp {setup.pp} x cp {setup.cp} makes {ranks} ranks, not {setup.gpus} GPUs"
        )
    if setup.tp > shape.heads or shape.heads % setup.tp:
        fits = [t for t in (1, 2, 4, 8, 16, 32) if t <= shape.heads and shape.heads % t == 0]
        raise ImpossibleSetupError(f"tp {setup.tp} does not divide the {shape.heads} heads; possible: {_listed(fits)}")
    if setup.pp > shape.layers:
        raise ImpossibleSetupError(f"pp {setup.pp} leaves stages without a layer: the model has {shape.layers}")
    experts = shape.experts.count if shape.experts else 1
    if setup.ep > 1 and (experts % setup.ep or setup.ep > experts):
        fits = [e for e in (1, 2, 4, 8, 16, 32, 64, 128) if experts % e == 0]
        raise ImpossibleSetupError(f"ep {setup.ep} does not divide the {experts} experts; possible: {_listed(fits)}")
    if not 0 <= setup.zero_stage <= 3:
        raise ImpossibleSetupError(f"ZeRO stage {setup.zero_stage}: there are 0, 1, 2 and 3")
    if setup.zero_stage >= 2 and setup.pp > 1 and setup.framework is Framework.DEEPSPEED:
        raise ImpossibleSetupError(f"DeepSpeed's pipeline takes ZeRO 0 or 1, not {setup.zero_stage}; or pp 1")
    if not setup.gpu.runs(setup.kernel):
        instead = ", ".join(one for one in Kernel if setup.gpu.runs(one) and one is not Kernel.USUAL)
        raise ImpossibleSetupError(f"attention {setup.kernel}: {setup.gpu.name} has no such kernel; it runs {instead}")
    if not setup.gpu.supports(setup.precision):
        raise ImpossibleSetupError(f"{setup.gpu.name} has no {setup.precision} matmuls, only {_supported(setup.gpu)}")


def _listed(values: list[int]) -> str:
    return ", ".join(map(str, values))


def _supported(gpu: Gpu) -> str:
    return ", ".join(p for p in Precision if gpu.supports(p))
