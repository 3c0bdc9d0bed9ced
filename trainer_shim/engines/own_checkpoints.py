"""Checkpoints that the framework or the script saved without us: which of them resume() may go on from.

A saver tells of each where it is, of which step, and how it is looked into. What follows is the same for all.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

from trainer_shim.guard import print_line
from trainer_shim.saving import checkpoint
from trainer_shim.saving.weights_sample import nonfinite


class OwnCheckpoint(NamedTuple):
    """One that is whole."""

    step: int
    path: str
    last_file: str  # Written last: its time is the checkpoint's.
    is_finite: Callable[[], bool]  # Reads the weights, which takes its time. It says what it passes over.


def manifests(directory: str, own: Iterable[OwnCheckpoint]) -> List[Dict[str, Any]]:
    """Return them as manifests without files. `directory`: where ours are.

    One that stands beside a later suspect one of ours may hold the same broken weights: it is looked into.
    """
    suspect = max((ours["step"] for ours in checkpoint.candidates(directory, "suspect")), default=-1)
    return [manifest(one.step, one.path, one.last_file) for one in own if one.step > suspect or one.is_finite()]


def manifest(step: Optional[int], path: str, last_file: str) -> Dict[str, Any]:
    """Return one without files: nobody has listed them."""
    return {"step": step, "path": path, "kind": "good", "created_unix_s": os.path.getmtime(last_file)}


def is_finite(path: str) -> bool:
    """Whether no weight that can be read is NaN or infinite: all of safetensors, samples of torch's files.

    Under ZeRO-3 the weights are in the optimizer's partitions, which are torch's files, and safetensors hold none.
    """
    files = [name for name, _ in checkpoint.listing(path)]
    harm = _harm_in_safetensors(path, [name for name in files if name.endswith(".safetensors")])
    if harm is None:
        harm = nonfinite(path, files, lambda: None)
        harm = harm and "not finite: " + harm
    if harm is not None:
        print_line("passing over %s: %s" % (path, harm))
    return harm is None


def _harm_in_safetensors(path: str, names: List[str]) -> Optional[str]:
    if not names:
        return None
    import torch
    from safetensors import SafetensorError, safe_open

    for name in names:
        try:
            with safe_open(os.path.join(path, name), framework="pt") as stored:
                for each in stored.keys():  # noqa: SIM118  It is no dict.
                    if not bool(torch.isfinite(stored.get_tensor(each)).all()):
                        return "not finite: %s: %s" % (name, each)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            return "%s cannot be read: %.200s" % (name, error)
    return None
