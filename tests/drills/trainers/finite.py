"""Whether every tensor of a checkpoint is finite: safetensors, torch's files, torch.distributed.checkpoint.

It reads checkpoints that a drill has just written. Whatever a torch file holds besides tensors is not built.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
TRUSTED = ("torch", "collections", "numpy", "_codecs")


class _Whatever:
    """Stands for an object of a class that is not loaded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *_: Any, **__: Any) -> _Whatever:
        return self


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if module.split(".")[0] in TRUSTED else _Whatever


def not_finite(path: Path) -> str | None:
    """The first tensor that is not, or that nothing could be read. One number alone may be infinite: the best loss."""
    seen = 0
    for name, tensor in _tensors(path):
        seen += 1
        if tensor.numel() > 1 and tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
            return f"{name} is not finite"
    return None if seen else "no tensor is in it"


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            yield from ((f"{file.name}: {name}", tensor) for name, tensor in load_file(file).items())
        elif file.suffix in TORCH_FILES:
            import torch

            opener = SimpleNamespace(Unpickler=_Unpickler, load=pickle.load, __name__="pickle")
            loaded = torch.load(file, map_location="cpu", weights_only=False, pickle_module=opener)
            yield from _inside(loaded, file.name)
    for metadata in (file for file in files if file.name == ".metadata"):
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

        with warnings.catch_warnings(action="ignore"):  # That one process reads what several wrote.
            loaded = _load_state_dict_from_keys(checkpoint_id=str(metadata.parent))
        yield from _inside(loaded, metadata.parent.name)


def _inside(found: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(found, "is_floating_point"):
        yield name, found
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from _inside(value, f"{name}: {key}" if ":" not in name else f"{name}.{key}")
    elif isinstance(found, (list, tuple)):
        for index, value in enumerate(found):
            yield from _inside(value, f"{name}[{index}]")


if __name__ == "__main__":
    print(not_finite(Path(sys.argv[1])) or "finite")
