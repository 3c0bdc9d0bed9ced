"""What times the steps of a torch module, whoever calls it: its device, else the host's clock, and its waits."""

from __future__ import annotations

from typing import Any, Optional

from trainer_shim import device_timing
from trainer_shim.engines import hooks
from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter

from . import recompute, torch_comm


def watch(model: Any, meter: StepMeter, undo: hooks.Undo) -> None:
    """Time the steps of `model` until `undo`."""
    import torch

    device = _device_timer(torch, model)
    meter.time_device(device)
    if device is None and not torch.cuda.is_initialized():  # A model that is offloaded trains on a device all the same.
        _watch_host(torch, model, meter, undo)


@guarded()
def _watch_host(torch: Any, model: Any, meter: StepMeter, undo: hooks.Undo) -> None:
    torch_comm.watch(torch, model, meter, undo)
    recompute.watch(meter, undo)


def _device_timer(torch: Any, model: Any) -> Optional[device_timing.DeviceTimer]:
    """Return a device timer where the module's parameters live on a device that runs behind the host."""
    first = next(iter(model.parameters()), None)
    return None if first is None else device_timing.for_device(torch, first.device.type)
