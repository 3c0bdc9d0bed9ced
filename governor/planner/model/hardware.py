"""What a GPU and its links can do: figures of vendors' sheets and of measurements, read from the dated catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """In which numbers the large matmuls run. Master weights and optimizer states stay as the framework keeps them."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def bits(self) -> int:
        return {Precision.BF16: 16, Precision.FP16: 16, Precision.FP8: 8, Precision.MXFP8: 8, Precision.NVFP4: 4}[self]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. Rates in TFLOP/s (dense), bandwidths in GB/s (1e9) one way, memory in GB (1e9)."""

    name: str
    arch: str
    peak_bf16: float
    peak_fp8: float | None
    peak_fp4: float | None
    reached_bf16: float  # the best that a large matmul reaches (MAMF), measured where anyone did
    reached_fp8: float | None
    hbm_gb: float
    hbm_gbps: float
    link_gbps: float  # to the GPUs of its scale-up domain; PCIe where there is no NVLink
    pcie_gbps: float  # to the host, as measured
    gpus_per_node: int
    scale_up_domain: int  # GPUs that reach one another at `link_gbps`
    has_nvlink: bool

    def supports(self, precision: Precision) -> bool:
        match precision:
            case Precision.FP8:
                return self.peak_fp8 is not None
            case Precision.MXFP8:
                return self.peak_fp8 is not None and self.arch.startswith(("Blackwell", "CDNA4"))
            case Precision.NVFP4:
                return self.peak_fp4 is not None and self.arch in ("Blackwell", "Blackwell Ultra")
        return True
