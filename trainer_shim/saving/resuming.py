"""Continue from the newest whole checkpoint: the same one on every rank, with generator states and data position.

"Good" says that nobody had a finding when it was saved. A NaN that nobody saw (a loss that the loop hides) makes good
checkpoints of broken weights. So the weights are sampled before they are loaded, each file by one rank.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from trainer_shim.guard import attempt, print_line
from trainer_shim.interfaces import NamedCheckpoints, OwnCheckpoints, OwnMeans, Resumed, Saver

from . import checkpoint, rng
from .facts import told_in
from .manifest import Entry
from .store import KeyStore
from .weights_sample import Sampled, lacking, sample

CANDIDATES_MAX = 32  # Going back further costs so much training that a person should decide.
_WAIT_S = 300.0  # Ranks reach resume() minutes apart when their images or imports load slowly.
_POLL_S = 0.05
DATA_ANEW = (
    "resume(): the checkpoint knows no place in the data. What the loop draws by the generators of torch, numpy and "
    "python goes on, but for what it had drawn ahead; a loader begins anew, unless it is shim.wrap_loader(loader)"
)


def resume_from(
    saver: Saver, directory: str, rank: int, store: KeyStore, world_size: int, call: int = 0
) -> Optional[Resumed]:
    """Load the newest good checkpoint below `directory` that every rank finds whole; None when there is none.

    Collective, on the training thread, before the first step. `call` counts the calls of this process, and is the same
    on every rank. A torn checkpoint is passed over with one line, and so is one whose sampled weights are not finite or
    cut short. Where all are like that the newest is taken in which no more is harmed than in the oldest, or else the
    newest, since they may be meant so. Raises what the engine's load raises, TimeoutError when a rank does not join,
    and RuntimeError where CANDIDATES_MAX are like that, no two of them alike, and more may be older.
    """
    manifest = _common(saver, directory, rank, store, world_size, call)
    return None if manifest is None else _load(saver, directory, manifest, rank, world_size)


def resume_at(
    saver: Saver, path: str, home: Optional[str], rank: int, store: KeyStore, world_size: int, call: int = 0
) -> Optional[Resumed]:
    """As resume_from() for a path that the script names: a checkpoint, or a directory of checkpoints.

    A named checkpoint is taken for what it is, a suspect one and one that is not finite too: ours by its manifest,
    another one by the framework's means. Raises FileNotFoundError on every rank where one of them finds nothing: only
    `home`, where this run saves, may be empty, as at the first launch. Then None.
    """
    path = os.path.abspath(path)
    is_home = home is not None and os.path.realpath(path) == os.path.realpath(home)
    manifest, fault = _named(saver, path, is_home)
    seen = "nothing" if fault is not None else "directory" if manifest is None else "checkpoint"
    found = _exchanged(store, "resume/%d//named" % call, rank, world_size, [seen, fault or ""])
    for other, (what, text) in enumerate(found):
        if what == "nothing":
            raise FileNotFoundError("resume(): %s" % text)
        if what != found[0][0]:
            raise FileNotFoundError(
                "resume(): %s is a %s to rank 0 and a %s to rank %d" % (path, found[0][0], what, other)
            )
    if manifest is None:
        resumed = resume_from(saver, path, rank, store, world_size, call)
        if resumed is None and not is_home:
            raise FileNotFoundError("resume(): %s %s" % (path, _HOLDS_NONE))
        return resumed
    harm = harm_of(manifest, rank, world_size)
    found = _exchanged(store, "resume/%d//harm" % call, rank, world_size, [harm] if harm else [])
    harms = [text for of_rank in found for text in of_rank]
    if harms and rank == 0:
        print_line("%s is %s: going on from it all the same, since it was named" % (path, harms[0]))
    return _load(saver, os.path.dirname(manifest["path"]), manifest, rank, world_size)


_OTHER_WORLD = (
    "%s was saved by %d ranks, and these are %d: wrapped loaders begin anew, and the generators of ranks it has not"
)
_HOLDS_NONE = (
    "is no checkpoint that this loop can load, and no whole good one is in it. resume() without a path begins anew"
)


def _named(saver: Saver, path: str, is_home: bool) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """Return the manifest of the checkpoint at `path`, or what is wrong. Neither: it is a directory to look in."""
    if os.path.isfile(path) and os.path.lexists(os.path.join(os.path.dirname(path), checkpoint.MANIFEST)):
        path = os.path.dirname(path)  # One of its files stands for it.
    if os.path.lexists(os.path.join(path, checkpoint.MANIFEST)):
        faults = checkpoint.verify_manifest(path)
        manifest = None if faults else checkpoint.read_manifest(path)
        if manifest is None:
            return None, "%s is not whole: %s" % (path, "".join(faults[:1]))
        return dict(manifest, path=path, tag=os.path.basename(path)), None
    if isinstance(saver, NamedCheckpoints):
        own, error = attempt(saver.named_checkpoint, path)
        if own is not None:
            return dict(own, tag=os.path.basename(own["path"])), None
        if error is not None:
            return None, "%s: %s" % (path, error)
    if os.path.isdir(path) or is_home:
        return None, None
    missing = "is no checkpoint that this loop can load" if os.path.lexists(path) else "does not exist"
    return None, "%s %s" % (path, missing)


def _load(saver: Saver, directory: str, manifest: Dict[str, Any], rank: int, world_size: int) -> Resumed:
    path = manifest["path"]
    lacks = lacking(path, [name for name, _ in checkpoint.listing(path)]) if rank == 0 else None
    if lacks is not None:
        print_line("%s: %s, so optimizer and schedule begin anew" % (path, lacks))
    saver.load(directory, manifest["tag"])
    step = manifest["step"]
    if step is None:  # The framework knows it once it is loaded.
        step = saver.position()["step"]
    state = checkpoint.read_rank_file(path, rank)
    position = None
    told = manifest.get("world_size")
    is_other_world = isinstance(told, int) and told != world_size and not isinstance(saver, OwnMeans)
    if is_other_world and rank == 0:
        print_line(_OTHER_WORLD % (path, told, world_size))
    if isinstance(saver, OwnMeans):
        position = (state or {}).get("position")
    elif state is None or "rng" not in state:
        if not is_other_world:
            print_line("%s has no state of rank %d: generators and data start anew" % (path, rank))
    else:
        rng.restore(state["rng"])
        position = state.get("position")
        if position is not None:
            if "tokens_own" in position and manifest.get("tokens_total") is not None:  # Of all ranks together.
                position = dict(position, tokens_total=manifest["tokens_total"])
            of_whom = told_in(manifest)  # Also of what an earlier version has saved.
            position = {**position, **{name: of_whom[name] for name in ("run", "origin") if name in of_whom}}
            # Each rank has a place of its own: all go on in the data, or none.
            saver.restore_position({**position, "path": path, **({"loaders": []} if is_other_world else {})})
    age_s = max(0.0, time.time() - manifest.get("created_unix_s", time.time()))
    return Resumed(step, manifest.get("tokens_total"), path, position, age_s)


def _common(
    saver: Saver, directory: str, rank: int, store: KeyStore, world_size: int, call: int
) -> Optional[Dict[str, Any]]:
    usable = {manifest["tag"]: manifest for manifest in _whole(saver, directory, rank)}
    lists = _exchanged(store, "resume/%d" % call, rank, world_size, list(usable))
    # Rank 0 wrote the manifests, so its order counts. Another node's directory may show fewer.
    common = [tag for tag in lists[0] if all(tag in other for other in lists)]
    whole: List[Tuple[str, Tuple[str, ...]]] = []  # And which few tensors are not finite in each. Empty: more.
    for tag in common:
        seen = _look_into(usable[tag], rank, world_size)
        harm = _harm(seen)
        mine = [harm, seen.few_harmed or ""] if harm else []
        found = _exchanged(store, "resume/%d/%s" % (call, tag), rank, world_size, mine)
        harms = [of_rank[0] for of_rank in found if of_rank]
        if not harms:
            return usable[tag]
        if not any(text.startswith(_TORN) for text in harms):
            few = tuple(sorted(of_rank[1] for of_rank in found if of_rank))
            whole.append((tag, few if all(few) else ()))
        if rank == 0:
            print_line("passing over %s: %s" % (usable[tag]["path"], harms[0]))
    if not common:
        return None
    alike = _alike(whole)
    if len(alike) < 2 and len(lists[0]) >= CANDIDATES_MAX:  # There may be older ones.
        raise RuntimeError(
            "resume(): the newest %d checkpoints below %s are not finite or not whole: name the one to go on from"
            % (CANDIDATES_MAX, directory)
        )
    taken = usable[(alike or [tag for tag, _ in whole] or common)[0]]
    if rank == 0:
        print_line("nothing older is finite and whole: going on from %s all the same" % taken["path"])
    return taken


def _alike(whole: List[Tuple[str, Tuple[str, ...]]]) -> List[str]:
    """Those in which the same few tensors are not finite as in the oldest, the newest first: the governor's rule.

    Training went on over them. What broke later is not among them, though it may be newer.
    """
    oldest = whole[-1][1] if whole else ()
    return [tag for tag, harmed in whole if harmed == oldest] if oldest else []


def harm_of(manifest: Dict[str, Any], rank: int, world_size: int) -> Optional[str]:
    """Sample this rank's share of a checkpoint's files; return what is cut short, or the first harmed tensor."""
    return _harm(_look_into(manifest, rank, world_size))


def _harm(seen: Sampled) -> Optional[str]:
    if seen.torn is not None:
        return _TORN + seen.torn
    return None if seen.harm is None else "not finite: " + seen.harm


def _look_into(manifest: Dict[str, Any], rank: int, world_size: int) -> Sampled:
    path, here = manifest["path"], socket.gethostname()
    entries: List[Entry] = manifest.get("files") or []
    if os.path.isfile(path):  # Lightning's own are single files.
        entries = [Entry(os.path.basename(path), os.path.getsize(path), None, None)]
        path = os.path.dirname(path)
    elif not entries:  # What a framework saved by itself has no list of its files.
        entries = [Entry(name, size, None, None) for name, size in checkpoint.listing(path)]
    files = sorted(entry.path for entry in entries if entry.node in (None, here))
    apart = any(entry.node for entry in entries)  # Each node has a directory of its own.
    mine = files if apart else [name for name in files if checkpoint.owner(name, world_size) == rank]
    sizes = [(entry.path, entry.size) for entry in entries]
    return sample(path, sizes, lambda: None, mine=mine)


_TORN = "not whole: "


def _whole(saver: Saver, directory: str, rank: int) -> List[Dict[str, Any]]:
    found = []
    for manifest in checkpoint.candidates(directory)[:CANDIDATES_MAX]:
        faults = checkpoint.verify_manifest(manifest["path"])
        if not faults:
            found.append(manifest)
        elif rank == 0:
            print_line("passing over %s: %s" % (manifest["path"], faults[0]))
    if isinstance(saver, OwnCheckpoints):
        found += saver.own_checkpoints(directory)
        found.sort(key=lambda manifest: int(manifest["step"]), reverse=True)
    return [dict(one, tag=os.path.relpath(one["path"], directory)) for one in found[:CANDIDATES_MAX]]


def _exchanged(store: KeyStore, prefix: str, rank: int, world_size: int, mine: List[str]) -> List[List[str]]:
    """Give this rank's list to all, and return every rank's. Raises TimeoutError."""
    keys = ["%s/%d" % (prefix, other) for other in range(world_size)]
    store.set(keys[rank], json.dumps(mine))
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
