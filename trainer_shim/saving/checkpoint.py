"""Whole and durable checkpoints on disk: names, fsync, hashes, manifest, `latest`, and which there are.

A checkpoint exists when its manifest does. DeepSpeed writes its pointer `latest` before the other ranks' shards exist,
so `latest` proves nothing. Here it moves last, atomically, and for good checkpoints only. A script's own stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from trainer_shim.guard import attempt, print_line

from .manifest import MANIFEST as MANIFEST
from .manifest import OWN_FILES, Entry, TornError, count_bytes, open_regular, parse, size_fault

MANIFEST_VERSION = 1
MANIFEST_BYTES_MAX = 64 << 20  # A quarter of a million files: ten times the largest sharded checkpoint known to us.
LATEST = "latest"
_NAME_BYTES_MAX = 255
_OWN_TAG = re.compile(rb"cg_\d+\s*\Z")
_LEFT_ALONE: Set[str] = set()  # Each `latest` of which was said that it stays as it is.
_TMP_SUFFIX = ".costgov-tmp"
_RANK_FILE = "costgov_rank_%05d.json"
_OF_RANK = re.compile(r"costgov_rank_(\d{5,9})\.json\Z")
RANKS_READ_MAX = 64  # Each rank reads those of all.
_CHUNK_BYTES = 8 << 20  # A few milliseconds: hashing reads the clock after each.
HASH_TIME_MAX_S = 60.0  # The node stands idle meanwhile, and sizes and fsync already show whole files.
HASH_FRAC_OF_GRACE = 0.5  # The other half is for whatever else comes before the deadline.


class Part(NamedTuple):
    """One file of a checkpoint. `node` only where the directory is not shared by all nodes."""

    path: str
    size_bytes: int
    sha256: Optional[str]
    node: Optional[str] = None


def tag_of(step: int, kind: str) -> str:
    """Name a checkpoint. The name alone shows a suspect one."""
    return "cg_%d" % step if kind == "good" else "cg_%d_suspect" % step


def rank_file(rank: int) -> str:
    """Name the file with one rank's generator states and data position."""
    return _RANK_FILE % rank


def write_rank_file(path: str, rank: int, state: Dict[str, Any]) -> None:
    """Write what only one rank knows into a checkpoint directory. Raises OSError."""
    write_durably(os.path.join(path, rank_file(rank)), json.dumps(state))


def discard_manifest(path: str) -> None:
    """Before a checkpoint directory is written again: without a manifest it counts as none."""
    try:
        os.unlink(os.path.join(path, MANIFEST))
    except OSError:  # It is not there, or we may not remove it: then the save will fail and say so.
        pass


def is_whole(path: str) -> bool:
    """Whether it was ever committed: then nobody removes it, whatever he was told of the save."""
    return os.path.lexists(os.path.join(path, MANIFEST))


def stage_rank_file(path: str, rank: int, state: Dict[str, Any]) -> None:
    """Write a rank file beside its place, so that an older checkpoint of this step stays whole. Raises OSError."""
    write_durably(_staged(path, rank), json.dumps(state))


def place_rank_file(path: str, rank: int) -> bool:
    """Put a staged file into its place; False when there is none. Raises OSError."""
    try:
        os.replace(_staged(path, rank), os.path.join(path, rank_file(rank)))
    except FileNotFoundError:
        return False
    fsync(path)
    return True


def _staged(path: str, rank: int) -> str:
    return os.path.join(path, rank_file(rank) + _TMP_SUFFIX)


def discard_staged_file(path: str, rank: int) -> None:
    """Take stage_rank_file() back, and the directory if nothing else is in it."""
    try:
        os.unlink(_staged(path, rank))
        os.rmdir(path)
    except OSError:  # Other ranks' files are still there: the last one removes the directory.
        pass


def read_rank_file(path: str, rank: int) -> Optional[Dict[str, Any]]:
    """Return what that rank wrote, or None when it cannot be read."""
    try:
        descriptor, _ = open_regular(os.path.join(path, rank_file(rank)))
        with open(descriptor, encoding="utf-8") as stream:
            state = json.load(stream)
    except (OSError, TornError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def position_in(path: str, rank: int) -> Dict[str, Any]:
    """Return what that rank has noted of where it stood, else what rank 0 has. {}: nothing.

    Whose it is, and the tokens, are alike. Rank 0's place in the data is no other one's.
    """
    for one in (rank, 0):
        position = (read_rank_file(path, one) or {}).get("position")
        if isinstance(position, dict):
            return position
    return {}


def positions_in(path: str) -> List[Dict[str, Any]]:
    """Return what the ranks have noted of where they stood. []: more are there than are read."""
    names = os.listdir(path) if os.path.isdir(path) else []
    ranks = [int(found[1]) for found in map(_OF_RANK.match, names) if found is not None]
    noted = [(read_rank_file(path, rank) or {}).get("position") for rank in ranks if len(ranks) <= RANKS_READ_MAX]
    return [position for position in noted if isinstance(position, dict)]


def write_durably(path: str, text: str) -> None:
    """Replace a file atomically: after a crash it is the old one or the whole new one. Raises OSError."""
    temporary = "%s.%d%s" % (path, os.getpid(), _TMP_SUFFIX)
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    fsync(os.path.dirname(path))


def fsync(path: str) -> None:
    """Flush one file or directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def listing(path: str) -> List[Tuple[str, int]]:
    """Return (relative path, size) of every file below, sorted, without the manifest and temporary files."""
    found = []
    for parent, _, names in os.walk(path):
        for name in names:
            full = os.path.join(parent, name)
            relative = os.path.relpath(full, path)
            if relative != MANIFEST and not name.endswith(_TMP_SUFFIX) and os.path.isfile(full):
                found.append((relative, os.path.getsize(full)))
    return sorted(found)


def secure(
    path: str, rank: int, world_size: int, local_rank: int, local_world_size: int, deadline_ns: int
) -> List[Part]:
    """Make this rank's share of a written checkpoint durable and hash it while time lasts. Raises OSError.

    One rank of each node flushes a file: only the node that wrote it has it in its cache. One rank of all lists and
    hashes it; where each node has a directory of its own, one rank of the node.
    """
    files = listing(path)
    names = {name for name, _ in files}
    shared = all(rank_file(other) in names for other in range(world_size))
    for name, _ in files:
        if owner(name, local_world_size) == local_rank:
            fsync(os.path.join(path, name))
    if local_rank == 0:
        for parent, _, _ in os.walk(path):
            fsync(parent)
        fsync(os.path.dirname(path))
    mine, of = (rank, world_size) if shared else (local_rank, local_world_size)
    share = [(name, size) for name, size in files if owner(name, of) == mine]
    hashes = hash_while_time_lasts(path, share, deadline_ns)
    node = None if shared else socket.gethostname()
    return [Part(name, size, hashes.get(name), node) for name, size in share]


def owner(name: str, of: int) -> int:
    """Return which of so many ranks takes care of a file."""
    # The name decides, not the position: two ranks of a network filesystem may see listings of different length.
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) % max(1, of)


def hash_while_time_lasts(path: str, share: List[Tuple[str, int]], deadline_ns: int) -> Dict[str, str]:
    """Return sha256 by name for all files, or for none when the measured throughput will not fit the time."""
    started_ns = time.monotonic_ns()
    budget_s = min(HASH_TIME_MAX_S, (deadline_ns - started_ns) / 1e9 * HASH_FRAC_OF_GRACE)
    total_bytes = sum(size for _, size in share)
    done_bytes = 0
    hashes: Dict[str, str] = {}
    for name, _ in share:
        digest = hashlib.sha256()
        for chunk in _chunks(os.path.join(path, name)):
            digest.update(chunk)
            done_bytes += len(chunk)
            elapsed_s = (time.monotonic_ns() - started_ns) / 1e9
            if elapsed_s * max(1.0, total_bytes / done_bytes) > budget_s:
                return {}
        hashes[name] = digest.hexdigest()
    return hashes


def _chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as stream:
        while True:
            chunk = stream.read(_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


def commit(path: str, parts: List[Part], facts: Dict[str, Any], move_latest: bool) -> Dict[str, Any]:
    """On rank 0, once every rank's share is durable: write the manifest, then `latest`. Raises OSError.

    Also where the files hold less than the parameters need: resume() would refuse it, so it is none.
    `facts` has step, tokens_total, kind, world_size and whatever else identifies it; the return value is the
    checkpoint record of an `ack`.
    """
    known = {(part.path, part.node): part for part in parts}
    ordered = [known[key] for key in sorted(known, key=lambda key: (key[0], key[1] or ""))]
    _demand_bytes(ordered, facts)
    hashed = bool(ordered) and all(part.sha256 is not None for part in ordered)
    manifest = dict(facts, v=MANIFEST_VERSION, hashed=hashed, files=[_entry(part) for part in ordered])
    target = os.path.join(path, MANIFEST)
    write_durably(target, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    if move_latest:
        _move_latest(path, [part.path for part in parts])
    return {
        "path": path,
        "manifest": target,
        "files": len(ordered),
        "bytes": sum(part.size_bytes for part in ordered),
        "hashed": hashed,
        "kind": facts["kind"],
        "tokens_total": facts.get("tokens_total"),
        "trained_finite": facts.get("trained_finite", False),
    }


def _demand_bytes(parts: List[Part], facts: Dict[str, Any]) -> None:
    if not holds_any(parts):  # The agreement has refused nothing at all.
        return
    entries = [Entry(part.path, part.size_bytes, part.sha256, part.node) for part in parts]
    try:
        count_bytes(dict(facts, files=entries))
    except TornError as torn:
        raise OSError(0, str(torn)) from None


def holds_any(parts: List[Part]) -> bool:
    """Whether there is more in it than our own small files: without weights it is none."""
    return any(part.size_bytes for part in parts if not os.path.basename(part.path).startswith(OWN_FILES))


def _move_latest(path: str, names: List[str]) -> None:
    """Have `latest` name checkpoint `path`, unless it is the script's own. The checkpoint is whole without it."""
    latest = os.path.join(os.path.dirname(path), LATEST)
    is_deepspeed = any(name.endswith("model_states.pt") and os.sep not in name for name in names)
    if _is_pointer(latest, is_deepspeed):
        _, error = attempt(write_durably, latest, os.path.basename(path))
        why = None if error is None else "it cannot be written: %s" % error
    else:
        why = "it is the script's own"
    if why is not None and latest not in _LEFT_ALONE:
        _LEFT_ALONE.add(latest)
        print_line("%s stays as it is: %s. resume() needs no such file" % (latest, why))


def _is_pointer(latest: str, is_deepspeed: bool) -> bool:
    """Whether `latest` is not there, or is a file that names a checkpoint of ours, or any where DeepSpeed writes it."""
    if not os.path.lexists(latest):
        return True
    if os.path.islink(latest) or not os.path.isfile(latest):
        return False
    try:
        with open(latest, "rb") as stream:
            named = stream.read(_NAME_BYTES_MAX + 1)
    except OSError:
        return False
    return _OWN_TAG.match(named) is not None or (is_deepspeed and len(named) <= _NAME_BYTES_MAX)


def _entry(part: Part) -> Dict[str, Any]:
    entry: Dict[str, Any] = {"path": part.path, "bytes": part.size_bytes, "sha256": part.sha256}
    if part.node is not None:
        entry["node"] = part.node
    return entry


def read_manifest(path: str) -> Optional[Dict[str, Any]]:
    """Return a checkpoint directory's manifest with `files` as entries, or None when there is none to be understood."""
    try:
        descriptor, _ = open_regular(os.path.join(path, MANIFEST))
        with open(descriptor, "rb") as stream:
            raw = stream.read(MANIFEST_BYTES_MAX + 1)
        return parse(raw) if len(raw) <= MANIFEST_BYTES_MAX else None
    except (OSError, TornError):
        return None


def verify_manifest(path: str, hashes: bool = False) -> List[str]:
    """Name everything that is wrong with a checkpoint directory; empty when it is whole.

    Sizes always, contents too with `hashes` where the manifest has them. Files of other nodes are not looked for.
    """
    manifest = read_manifest(path)
    if manifest is None:
        return ["no readable manifest"]
    here = socket.gethostname()
    entries: List[Entry] = manifest["files"]
    try:
        count_bytes(manifest)
    except TornError as error:
        return [str(error)]
    found = []
    for entry in entries:
        if entry.node not in (None, here):
            continue
        fault = _fault(os.path.join(path, entry.path), entry.size, entry.sha256 if hashes else None)
        if fault is not None:
            found.append("%s %s" % (entry.path, fault))
    return found


def _fault(full: str, size_bytes: int, sha256: Optional[str]) -> Optional[str]:
    try:
        fault = size_fault(full, size_bytes)
        if fault is None and sha256 is not None and _sha256(full) != sha256:
            return "differs from its hash"
    except PermissionError:
        return "is not readable"
    except OSError as error:
        return "cannot be read: %s" % (error.strerror or error)
    return fault


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def candidates(directory: str, kind: str = "good") -> List[Dict[str, Any]]:
    """Return manifests of that kind below a checkpoint directory, newest step first, each with its `path`."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    found = []
    for name in names:
        path = os.path.join(directory, name)
        manifest = read_manifest(path)
        if manifest is not None and manifest.get("kind") == kind:
            found.append(dict(manifest, path=path))
    return sorted(found, key=lambda manifest: (manifest["step"], manifest["path"]), reverse=True)
