"""What indexes of weights name: which files a checkpoint must have, and how long those of DCP must be at least.

Frameworks write two kinds: JSON beside the shards of transformers, and the .metadata of torch.distributed.checkpoint.
That is a pickle. Its opcodes are read and nothing of it is run: an index that cannot be read says nothing. ZeRO has
none, and counts in the names of its files.
"""

from __future__ import annotations

import json
import os
import pickletools
import re
import stat
import struct
import time
from typing import Any, Callable, Dict, Final, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from .manifest import TornError, is_count, is_inside, open_regular, opened
from .weights_formats import MADE_UP, Budget, pickle_in

INDEX_BYTES_MAX: Final = 8 << 20
METADATA_BYTES_MAX: Final = 32 << 20  # An item of one rank has 150: 200,000 of them.
OPCODES_PER_STEP: Final = 4096
_INDEX: Final = ".index.json"
_FIRST: Final = ".safetensors"  # What transformers and accelerate load where there are .bin files too.
_FIRST_ALONE: Final = "model.safetensors"
# One name, as frameworks write it: no index leads elsewhere.
_NAME: Final = re.compile(r"[\w.-]+\Z")


# --- JSON: model.safetensors.index.json, pytorch_model.bin.index.json ------------------------------------------------


class Indexed(NamedTuple):
    """What JSON indexes of a checkpoint have said."""

    named: Set[str]
    torn: Optional[str]  # The first file that is missing.
    unread: List[str]  # For which no time was left.


def indexed(path: str, names: Sequence[str], step: Callable[[], None], time_s: float) -> Indexed:
    """The files that indexes of weights name, and what of them is missing. `names`: of files that are somewhere.

    Where safetensors are whole, nobody reads the .bin files beside them: some of those may not have been fetched.
    """
    until = time.monotonic() + time_s
    named: Set[str] = set()
    unread: List[str] = []
    faults: Dict[str, str] = {}
    known = set(names)
    for index in (name for name in names if name.endswith(_INDEX)):
        step()
        if os.path.isfile(os.path.join(path, index[: -len(_INDEX)])):
            continue  # All in one file: that is what is loaded.
        if time.monotonic() > until:
            unread.append(index)
            continue
        try:
            files = _files_of(os.path.join(path, index))
        except ValueError:
            faults[index] = "%s cannot be parsed" % index
            continue
        except (OSError, RuntimeError, MemoryError):
            continue
        for file in sorted(files):
            step()
            if time.monotonic() > until:
                unread.append(index)
                break
            name = os.path.join(os.path.dirname(index), file)
            if name not in known and not os.path.isfile(os.path.join(path, name)):
                if not _is_of_base(path, index, files, known):
                    faults[index] = _missing(path, name, index)
                break
            named.add(name)
    first = {index for index in faults if index.endswith(_FIRST + _INDEX)}
    whole = {os.path.dirname(name) for name in named if name.endswith(_FIRST)}
    whole |= {os.path.dirname(name) for name in known if os.path.basename(name) == _FIRST_ALONE}
    torn = (fault for index, fault in faults.items() if index in first or os.path.dirname(index) not in whole)
    return Indexed(named, next(torn, None), unread)


_ADAPTER: Final = re.compile(r"adapter_model\b.*\.(?:safetensors|bin)\Z")


def _is_of_base(path: str, index: str, files: Iterable[str], known: Set[str]) -> bool:
    """Whether an index beside an adapter's weights is of the model that it adapts, whose own are elsewhere."""
    folder = os.path.dirname(index)
    if not any(os.path.dirname(name) == folder and _ADAPTER.match(os.path.basename(name)) for name in known):
        return False
    return not any(_is_there(path, os.path.join(folder, file), known) for file in files)


def _missing(path: str, name: str, index: str) -> str:
    # A link may lead nowhere: what is cached apart from the checkpoint is cleaned up.
    is_other = os.path.exists(os.path.join(path, name))
    return "%s is %s, which %s names" % (name, "no file" if is_other else "missing", index)


def _files_of(index: str) -> Set[str]:
    with open(opened(index), "rb") as file:
        raw = file.read(INDEX_BYTES_MAX + 1)
    if len(raw) > INDEX_BYTES_MAX:
        return set()
    told = json.loads(raw)
    files = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(files, dict):
        return set()
    return {name for name in files.values() if isinstance(name, str) and _NAME.match(name)}


# --- DCP: .metadata, or the __RANK.metadata of ranks that saved without collectives ----------------------------------


class Stored(NamedTuple):
    """What the .metadata files of a checkpoint have said."""

    named: Set[str]
    read: Set[str]  # Of them themselves: those that were read to their end.
    unread: List[str]
    folders: Set[str]  # Of those that were read: no other file of theirs belongs to the checkpoint.
    torn: Optional[str]  # The first file that is missing or shorter than its items.


_METADATA: Final = re.compile(r"(?:.*/)?(?:__\d+)?\.metadata\Z", re.DOTALL)
_OF_ALL: Final = ".metadata"


def stored(path: str, sizes: Sequence[Tuple[str, int]], step: Callable[[], None], time_s: float) -> Stored:
    """Compare what .metadata files name with the `sizes` of the files that are somewhere. Never raises."""
    until = time.monotonic() + time_s
    known = dict(sizes)
    found = Stored(set(), set(), [], set(), None)
    for index in sorted(name for name in known if _METADATA.match(name)):
        folder = os.path.dirname(index)
        if os.path.basename(index) != _OF_ALL and os.path.join(folder, _OF_ALL) in known:
            continue  # Of another save to the same place.
        needed = _needed_of(os.path.join(path, index), step, until)
        if needed is None:
            found.unread.append(index)
            continue
        found.read.add(index)
        found.folders.add(folder)
        for file, least in sorted(needed.items()):
            step()
            name = os.path.join(folder, file)
            found.named.add(name)
            fault = _shortage(path, name, known, least, index) if found.torn is None else None
            found = found._replace(torn=found.torn or fault)
    return found


def _shortage(path: str, name: str, known: Dict[str, int], least: int, index: str) -> Optional[str]:
    size = known.get(name)
    if size is None:  # Nobody has listed it: below a link, or no regular file.
        try:
            facts = os.stat(os.path.join(path, name))
        except FileNotFoundError:
            return _missing(path, name, index)
        except OSError:
            return None
        if not stat.S_ISREG(facts.st_mode):
            return _missing(path, name, index)
        size = facts.st_size
    return None if size >= least else "%s has %d bytes of the %d that %s names" % (name, size, least, index)


def _needed_of(full: str, step: Callable[[], None], until: float) -> Optional[Dict[str, int]]:
    """The bytes that each file must have at least. None: it cannot be said."""
    try:
        fd, facts = open_regular(full)
        with open(fd, "rb") as file:
            if facts.st_size > METADATA_BYTES_MAX:
                return None
            return needed(file.read(METADATA_BYTES_MAX), step, until)
    # What genops raises for what is no pickle.
    except (TornError, OSError, ValueError, ArithmeticError, LookupError, AttributeError, struct.error, MemoryError):
        return None


_OF_RANK: Final = re.compile(r"__(\d+)_\d+\.distcp\Z")


class Lacking(NamedTuple):
    """What names of files say of others."""

    torn: Optional[str]  # The first that is missing.
    elsewhere: List[str]  # Which another node may have, or nobody: the first of each kind.


def unindexed(path: str, sizes: Sequence[Tuple[str, int]]) -> Lacking:
    """The .metadata without which no .distcp file can be read. It is written last, by rank 0 or by each rank its own.

    Where a node has a directory of its own, one that has nothing of rank 0 has no .metadata.
    """
    known = {name for name, _ in sizes}
    ranks: Dict[str, Dict[int, str]] = {}
    for name, size in sorted(sizes):
        folder, base = os.path.split(name)
        match = _OF_RANK.match(base)
        if match is not None and (size or match.group(1) == "0"):  # A rank that has nothing to save leaves one empty.
            ranks.setdefault(folder, {}).setdefault(int(match.group(1)), base)
    elsewhere: List[str] = []
    for folder, files in ranks.items():
        index = os.path.join(folder, _OF_ALL)
        own = {rank: os.path.join(folder, "__%d%s" % (rank, _OF_ALL)) for rank in files}
        missing = [rank for rank, name in own.items() if not _is_there(path, name, known)]
        if not missing or _is_there(path, index, known):
            continue
        if len(missing) < len(own):
            return Lacking("%s is missing beside %s" % (own[missing[0]], files[missing[0]]), [])
        if 0 in files:
            return Lacking("%s is missing beside %s" % (index, files[0]), [])
        elsewhere.append(index)
    return Lacking(None, elsewhere)


def _is_there(path: str, name: str, known: Set[str]) -> bool:
    """Whether it was listed, or is below a link."""
    return name in known or os.path.exists(os.path.join(path, name))


_FIELDS: Final = ("relative_path", "offset", "length")
_PUTS: Final = ("BINPUT", "LONG_BINPUT")
_GETS: Final = ("BINGET", "LONG_BINGET")


def needed(pickled: bytes, step: Callable[[], None], until: float) -> Optional[Dict[str, int]]:
    """The bytes that each file must have at least, by a pickle of DCP's Metadata. None: it cannot be said.

    Of each item it says where it lies, as the state of a _StorageInfo: relative_path, offset, length, in this order.
    Of the memo the words alone are kept. Raises what pickletools.genops raises.
    """
    least: Dict[str, int] = {}
    memo: Dict[int, str] = {}
    memoized = 0
    fields: List[Any] = []  # Of the item that is being read: names and values by turns.
    value: object = None
    argument: Any
    for number, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
        if number % OPCODES_PER_STEP == 0:
            step()
            if time.monotonic() > until:
                return None
        kind = opcode.name
        if kind == "MEMOIZE" or kind in _PUTS:
            if isinstance(value, str):
                memo[memoized if kind == "MEMOIZE" else argument] = value
            memoized += 1
            continue
        if kind == "FRAME":
            continue
        value = memo.get(argument) if kind in _GETS else argument
        if value == _FIELDS[0]:
            if fields:
                return None
            fields = [value]
        elif fields:
            fields.append(value)
            if len(fields) == 2 * len(_FIELDS):
                if tuple(fields[::2]) != _FIELDS or not _is_place(*fields[1::2]):
                    return None
                _, file, _, offset, _, length = fields
                least[file] = max(least.get(file, 0), offset + length)
                fields = []
    return least if least and not fields else None


def _is_place(file: object, offset: object, length: object) -> bool:
    return isinstance(file, str) and is_inside(file) and is_count(offset) and is_count(length)


# --- ZeRO of DeepSpeed has no index, but counts its ranks in names ---------------------------------------------------


_ZERO: Final = re.compile(r"((?:bf16_)?zero_pp_rank_)(\d{1,6})(_mp_rank_(\d+))_?(optim|model)_states\.pt\Z")


def partitions(path: str, names: Sequence[str], budget: Optional[Budget] = None) -> Lacking:
    """Rank 0 saves the model too, unless ZeRO-3 partitions it: then each rank has a file of both kinds.

    The ranks of one node follow one another. How many there are in all each says of itself: `budget` is for that.
    """
    known = set(names)
    found: Dict[Tuple[str, str], Dict[str, Dict[int, str]]] = {}
    for name in sorted(known):
        folder, base = os.path.split(name)
        match = _ZERO.match(base)
        if match is not None:
            kinds = found.setdefault((folder, match.group(4)), {"optim": {}, "model": {}})
            kinds[match.group(5)][int(match.group(2))] = base
    elsewhere: List[str] = []
    for (folder, model_rank), kinds in found.items():
        first = kinds["optim"].get(0)
        needed = [("mp_rank_%s_model_states.pt" % model_rank, first)] if first and not kinds["model"] else []
        ranks = sorted({rank for by_rank in kinds.values() for rank in by_rank})
        # Of nodes with equally many ranks each: another one has those before.
        may_be_apart = ranks[0] % len(ranks) == 0 and ranks[-1] - ranks[0] == len(ranks) - 1
        first_ones = [name for by_rank in kinds.values() for name in list(by_rank.values())[:_ASKED_MAX]]
        states = [*first_ones, "mp_rank_%s_model_states.pt" % model_rank]
        told = _told([os.path.join(path, folder, name) for name in states], budget) if budget is not None else None
        for by_rank in filter(None, kinds.values()):
            like = next(iter(by_rank.values()))
            lowest = ranks[0] if may_be_apart else 0
            if lowest:
                elsewhere.append(os.path.join(folder, _of_rank(like, 0)))
            missing = next((rank for rank in range(lowest, ranks[-1] + 1) if rank not in by_rank), None)
            if missing is None and told is not None and told.ranks > ranks[-1] + 1:
                if may_be_apart and told.ranks % len(ranks) == 0 and (told.is_by_node or kinds["model"]):
                    elsewhere.append(os.path.join(folder, _of_rank(like, ranks[-1] + 1)))
                else:
                    missing = ranks[-1] + 1
            if missing is not None:
                needed.append((_of_rank(like, missing), like))
        for base, beside in needed:
            name = os.path.join(folder, base)
            if not _is_there(path, name, known):
                return Lacking("%s is missing beside %s" % (name, beside), [])
    return Lacking(None, elsewhere)


def _of_rank(like: str, rank: int) -> str:
    return _ZERO.sub(lambda match: match.group(1) + str(rank) + like[match.end(2) :], like)


class _Told(NamedTuple):
    """What a partition, or the model's state, says of all."""

    ranks: int
    is_by_node: bool  # Each node has a directory of its own.


_ASKED_MAX: Final = 4
_PUT: Final = rb"(?:q.|r.{4}|\x94)"


def _key(word: bytes) -> bytes:
    """As both protocols pickle it, and no end of a longer one."""
    return rb"(?:X\x%02x\0\0\0|\x8c\x%02x)%s%s" % (len(word), len(word), word, _PUT)


# A number, or one for each group of parameters: those of experts have fewer ranks. Of the model's state that of ranks.
_COUNTS: Final = {
    kind: re.compile(rb"%s(?:\]%s\(?)?((?:K.|M..|J.{4})+)" % (_key(word), _PUT), re.DOTALL)
    for kind, word in (("optim", b"partition_count"), ("model", b"dp_world_size"))
}
_BY_NODE: Final = re.compile(rb"%s\x88" % _key(b"use_node_local_storage"), re.DOTALL)
_NUMBERS: Final = {b"K": ("<B", 2), b"M": ("<H", 3), b"J": ("<i", 5)}


def _told(files: Iterable[str], budget: Budget) -> Optional[_Told]:
    """What the first of them that says it says. None: none does."""
    for full in files:
        if budget.is_spent:
            break
        try:
            fd, _ = open_regular(full)
            with open(fd, "rb", buffering=0) as file:
                pickled = pickle_in(file, budget)
        except (*MADE_UP, TornError, MemoryError):
            continue
        match = _COUNTS["optim" if "optim" in os.path.basename(full) else "model"].search(pickled)
        if match is not None:
            return _Told(max(_numbers(match.group(1))), _BY_NODE.search(pickled) is not None)
    return None


def _numbers(opcodes: bytes) -> Iterator[int]:
    at = 0
    while at < len(opcodes):
        code, width = _NUMBERS[opcodes[at : at + 1]]
        yield int(struct.unpack_from(code, opcodes, at + 1)[0])
        at += width
