"""How loss and norm come home from a device: what torch is asked to do, seen by its own dispatcher."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  (after importorskip)

from trainer_shim.device_timing import CudaScalars  # noqa: E402


class Copies(TorchDispatchMode):
    """Notes the dtypes of every copy_()."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default:
            self.dtypes.append((args[0].dtype, args[1].dtype))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_no_copy_to_the_host_changes_the_dtype_on_its_way(dtype) -> None:
    """From a device to the host such a copy goes through pageable memory, and the host waits for it."""
    scalars = CudaScalars(torch, pinned=False)
    with Copies() as copies:
        scalars.put(3, torch.tensor(2.5, dtype=dtype), torch.tensor([0.5], dtype=dtype))
    assert copies.dtypes == [(torch.float64, torch.float64)] * 2
    assert scalars.get(3) == (2.5, 0.5)


def test_numbers_of_the_host_and_absent_ones_come_back_as_they_are() -> None:
    scalars = CudaScalars(torch, pinned=False)
    scalars.put(0, 1.25, None)
    assert scalars.get(0) == (1.25, None)
