"""How loss and norm come home from a device: what torch is asked to do, seen by its own dispatcher."""

from __future__ import annotations

import pytest

from tests.drills.components import needs
from trainer_shim.device_timing import CudaScalars

needs("torch")


def copies():
    """A mode that notes the dtypes of every copy_()."""
    import torch  # Here: every process that only collects would import it.
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copies(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.dtypes: list[tuple] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.copy_.default:
                self.dtypes.append((args[0].dtype, args[1].dtype))
            return function(*args, **(kwargs or {}))

    return Copies()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_no_copy_to_the_host_changes_the_dtype_on_its_way(dtype: str) -> None:
    """From a device to the host such a copy goes through pageable memory, and the host waits for it."""
    import torch

    scalars = CudaScalars(torch, pinned=False)
    kind = getattr(torch, dtype)
    with copies() as seen:
        scalars.put(3, torch.tensor(2.5, dtype=kind), torch.tensor([0.5], dtype=kind))
    assert seen.dtypes == [(torch.float64, torch.float64)] * 2
    assert scalars.get(3) == (2.5, 0.5)


def test_numbers_of_the_host_and_absent_ones_come_back_as_they_are() -> None:
    import torch

    scalars = CudaScalars(torch, pinned=False)
    scalars.put(0, 1.25, None)
    assert scalars.get(0) == (1.25, None)
