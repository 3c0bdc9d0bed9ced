"""Redirects what megatron-core allocates on `cuda` to the CPU, so that its own code trains in gloo ranks.

It is a redirect of allocations and of what asks for the current device, no more: schedules, layers, groups, buffers of
gradients and optimizers are megatron-core's. It leaves out CUDA itself (streams, events, its generators' states: fork()
of the tracker of random states does nothing), fused kernels, overlapped communication, and NCCL.

Imported first in a script, or as a program: `python megatron_rig.py SCRIPT …` runs a script that knows nothing of it.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import warnings
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
# Megatron-core asks a parameter for its type by name, and trains none that is not CUDA's.
NAMED = {f"torch.{kind}Tensor": f"torch.cuda.{kind}Tensor" for kind in ("Float", "Half", "BFloat16")}


def is_cuda(value):
    return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {name: CPU if name == "device" and is_cuda(value) else value for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(CPU if is_cuda(one) else one for one in args)
        made = func(*args, **kwargs)
        return NAMED.get(made, made) if func is torch.Tensor.type and len(args) == 1 else made


def install():
    """For the rest of this process."""
    warnings.simplefilter("ignore")  # It says what is not installed, and what on GPUs would be faster.
    torch.cuda.current_device = lambda: CPU
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, lambda *_: None)  # Of each its own: the compiler wants to tell them apart.
    init = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda _backend, **kwargs: init("gloo", **kwargs)
    OnCpu().__enter__()
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    random.CudaRNGStatesTracker.add = lambda *_: None


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
