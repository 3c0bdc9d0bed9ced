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
        scalars.put(3, torch.tensor(2.5, dtype=kind), torch.tensor([0.5], dtype=kind), torch.tensor(7))
    assert seen.dtypes == [(torch.float64, torch.float64)] * 3
    assert scalars.get(3) == (2.5, 0.5, 7)


def test_numbers_of_the_host_and_absent_ones_come_back_as_they_are() -> None:
    import torch

    scalars = CudaScalars(torch, pinned=False)
    scalars.put(0, 1.25, None)
    assert scalars.get(0) == (1.25, None, None)


def reads():
    """A mode that notes every question to a tensor without storage that only its device could answer."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    waits = (aten._local_scalar_dense, aten.equal, aten.nonzero, aten.is_nonzero, aten.masked_select)

    class Reads(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            far = any(isinstance(arg, torch.Tensor) and arg.is_meta for arg in args)
            comes_home = function.overloadpacket in (aten._to_copy, aten.copy_) and not args[0].is_meta
            leaves = function.overloadpacket is aten._to_copy and str((kwargs or {}).get("device", "meta")) != "meta"
            if far and (function.overloadpacket in waits or comes_home or leaves):
                self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    return Reads()


class Event:
    """An event of a device that has done everything already."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: object) -> float:
        return 1.0


class Kept:
    """Scalars that stay on their device."""

    def __init__(self) -> None:
        self.put_in: list[tuple] = []

    def put(self, slot: int, loss: object, norm: object, nonpad: object) -> None:
        self.put_in.append((loss, norm, nonpad))

    def get(self, slot: int) -> tuple[float, float, None]:
        return 2.5, 0.5, None


@pytest.mark.parametrize("is_timed", [False, True])
@pytest.mark.parametrize("how", ["returned", "tuple", "outside", "told", "clipped"])
def test_nothing_on_a_device_is_read_by_the_training_thread(how: str, is_timed: bool) -> None:
    """A read waits until the device has caught up. On the meta device it cannot be answered at all."""
    import torch

    from trainer_shim import guard
    from trainer_shim.attach import _ATTACHED, attach
    from trainer_shim.device_timing import DeviceTimer
    from trainer_shim.interfaces import NoWatch

    class Model(torch.nn.Linear):
        def forward(self, x):
            out = super().forward(x).square()
            return {"tuple": (out.mean(), out), "outside": out}.get(how, out.mean())

    class Watch(NoWatch):
        def __init__(self, hello, progress, saver, *, environ) -> None:
            pass

        def step_frame(self, fields) -> None:
            frames.append(fields)

    frames: list[dict] = []
    faults = dict(guard.faults)
    scalars = Kept()
    model = Model(4, 4, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    shim = attach(model, optimizer=optimizer, make_watch=Watch)
    if is_timed:
        shim._meter.time_device(DeviceTimer(Event, scalars, lambda: False))
    with reads() as seen:
        for _ in range(17):  # The gradient is sampled at every eighth.
            out = model(torch.zeros(2, 4, device="meta"))
            loss = out[0] if how == "tuple" else out.mean()
            (shim.loss(loss) if how == "told" else loss).backward()
            if how == "clipped":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    shim.close()
    _ATTACHED.clear()
    assert seen.seen == []
    assert guard.faults == faults
    assert len(frames) == 17
    if is_timed:  # Nothing was read, and yet everything is known.
        assert all(loss.is_meta for loss, _, _ in scalars.put_in)
        norms = {index for index, (_, norm, _) in enumerate(scalars.put_in) if norm is not None}
        assert norms == set(range(17)) if how == "clipped" else 0 in norms <= {0, 8, 16}
        assert all(frame["loss"] == 2.5 for frame in frames)
