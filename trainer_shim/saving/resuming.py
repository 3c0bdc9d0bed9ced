"""Continue from the newest whole checkpoint: the same one on every rank, with generator states and data position."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Optional

from trainer_shim.guard import print_line
from trainer_shim.interfaces import OwnMeans, Resumed, Saver

from . import checkpoint, rng
from .store import KeyStore

CANDIDATES_MAX = 8  # Going back further costs so much training that a person should decide.
_WAIT_S = 300.0  # Ranks reach resume() minutes apart when their images or imports load slowly.
_POLL_S = 0.05


def resume_from(
    saver: Saver, directory: str, rank: int, store: KeyStore, world_size: int, call: int = 0
) -> Optional[Resumed]:
    """Load the newest good checkpoint below `directory` that every rank finds whole; None when there is none.

    Collective, on the training thread, before the first step. `call` counts the calls of this process, and is the same
    on every rank. A torn checkpoint is passed over with one line. Raises what the engine's load raises, and
    TimeoutError when a rank does not join.
    """
    manifest = _common(saver, directory, rank, store, world_size, call)
    if manifest is None:
        return None
    path = manifest["path"]
    saver.load(directory, manifest["tag"])
    state = checkpoint.read_rank_file(path, rank)
    position = None
    if isinstance(saver, OwnMeans):
        position = (state or {}).get("position")
    elif state is None:
        print_line("%s has no state of rank %d: generators and data start anew" % (path, rank))
    else:
        rng.restore(state["rng"])
        position = state.get("position")
        if position is not None:
            saver.restore_position(position)
    age_s = max(0.0, time.time() - manifest.get("created_unix_s", time.time()))
    return Resumed(manifest["step"], manifest.get("tokens_total"), path, position, age_s)


def _common(
    saver: Saver, directory: str, rank: int, store: KeyStore, world_size: int, call: int
) -> Optional[Dict[str, Any]]:
    usable = {manifest["tag"]: manifest for manifest in _whole(saver, directory, rank)}
    keys = ["resume/%d/%d" % (call, other) for other in range(world_size)]
    store.set(keys[rank], json.dumps(list(usable)))
    lists = _gathered(store, keys)
    # Rank 0 wrote the manifests, so its order counts. Another node's directory may show fewer.
    for tag in lists[0]:
        if all(tag in other for other in lists):
            return usable[tag]
    return None


def _whole(saver: Saver, directory: str, rank: int) -> List[Dict[str, Any]]:
    found = []
    for manifest in checkpoint.candidates(directory)[:CANDIDATES_MAX]:
        faults = checkpoint.verify_manifest(manifest["path"])
        if not faults:
            found.append(manifest)
        elif rank == 0:
            print_line("passing over %s: %s" % (manifest["path"], faults[0]))
    if isinstance(saver, OwnMeans):
        found += saver.own_checkpoints(directory)
        found.sort(key=lambda manifest: int(manifest["step"]), reverse=True)
    return [dict(manifest, tag=os.path.basename(manifest["path"])) for manifest in found[:CANDIDATES_MAX]]


def _gathered(store: KeyStore, keys: List[str]) -> List[List[str]]:
    until_ns = time.monotonic_ns() + int(_WAIT_S * 1e9)
    lists: List[List[str]] = []
    for key in keys:
        text = store.get(key)
        while text is None:
            if time.monotonic_ns() > until_ns:
                raise TimeoutError("resume(): rank %s did not join within %d s" % (key.rsplit("/", 1)[-1], _WAIT_S))
            time.sleep(_POLL_S)
            text = store.get(key)
        lists.append(json.loads(text))
    return lists
