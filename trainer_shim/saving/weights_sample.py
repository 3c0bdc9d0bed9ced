"""Samples of a checkpoint's weights: does any hold NaN? For the governor's reader, and before the shim resumes.

A sample proves harm, not health: a NaN spreads over all weights within a step or two, so that a few kilobytes of some
tensors show it. What looks like weights and was not looked into is named, whatever else of the checkpoint is healthy.
"""

from __future__ import annotations

import math
import os
import re
import struct
import time
from typing import IO, Callable, Final, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple
from zlib import adler32, crc32

from .manifest import OWN_FILES, TornError, opened
from .weights_formats import (
    BITS,
    CUT_IN_A_ZIP,
    MADE_UP,
    PIECES_OF,
    TENSORS_PER_FILE_MAX,
    Budget,
    Piece,
    of_distcp,
    spread,
    width_of,
)
from .weights_indexes import Lacking, indexed, partitions, stored, unindexed

TIME_MAX_S: Final = 2.0
FILES_MAX: Final = 1024
FILES_FIRST: Final = 64  # Over the whole length: where the time ends early, they stand for the others.
TENSORS_MAX: Final = FILES_FIRST * TENSORS_PER_FILE_MAX
TENSORS_PER_FILE_MIN: Final = TENSORS_MAX // FILES_MAX
SAMPLES_PER_TENSOR: Final = 3  # More where a file has few tensors.
SAMPLE_BYTES: Final = 4096
NAMED_TOLD_MAX: Final = 3
OVERHEAD_BYTES: Final = 1 << 16  # States of generators, counters and tables of a file with few weights.
# Counters, scales and the best loss so far are no weights, and some of them begin as NaN.
ELEMENTS_MIN: Final = 64
HARMED_MAX: Final = 64  # Of so many harmed tensors no buffers are the reason: the rest is not looked at.
_FLOATS: Final = {"F64": "d", "F32": "f", "BF16": "f", "F16": "e"}  # BF16 is the upper half of an F32.
_ANYTHING: Final = ".bin"
_MODEL: Final = re.compile(r"(?:\b|_)(?:model|weights)(?:\b|_)")  # pytorch_model-00001-of-00002, adapter_model, ...
_WEIGHTS: Final = (*PIECES_OF, ".npz", ".h5", ".msgpack", ".gguf")
# What a framework saves beside the weights, in files that are called as weights are. As it is spelled and no further:
# sampler_net.safetensors and tokenizer.safetensors are models, and optimizer_and_model.pt holds one.
_LOADED: Final = re.compile(  # With the weights.
    r"((optimizer|(lr_)?scheduler|scaler|sampler)(_\d+)?\.(pt|pth|bin)|rng_state(_\d+)?\.pth|random_states_\d+\.pkl)\Z"
)
_WORDS: Final = r"(tokenizer|vocab).*(?<!\.safetensors)(?<!\.pt)(?<!\.pth)(?<!\.ckpt)\Z"
_STATE: Final = re.compile(r"(%s|training_args\.bin\Z|%s|%s)" % (_LOADED.pattern, _WORDS, OWN_FILES), re.DOTALL)
_OPTIMIZER: Final = re.compile(r"optimizer(_\d+)?\.(pt|pth|bin)\Z")
_TRAINER_STATE: Final = "trainer_state.json"
# Of DCP nobody knows by the names what is in it.
_BESIDE_WEIGHTS: Final = re.compile(r"%s|global_step\d|.*(?:optim_states\.pt|\.distcp)\Z" % _LOADED.pattern, re.DOTALL)
# Of a checkpoint: text, and pickles of generators.
_NO_WEIGHTS: Final = (".json", ".jsonl", ".txt", ".md", ".yaml", ".yml", ".jinja", ".py", ".csv", ".log")


def nonfinite(path: str, names: Sequence[str], step: Callable[[], None], time_s: float = TIME_MAX_S) -> Optional[str]:
    """The first sampled tensor with a NaN or an infinity, as "FILE: TENSOR". None: none was seen. Never raises."""
    return look_into(path, names, step, time_s).harm


class Looked(NamedTuple):
    """What a look at a checkpoint has come to."""

    harm: Optional[str]
    wanted: Sequence[str]  # Not all, where there are very many.
    into: Sequence[str]  # Those most of which was sampled.
    torn: Sequence[Tuple[str, str]]  # Those that are cut short, and how.
    is_cut: bool  # The time or the bytes of a look were over before its end.
    few_harmed: Optional[str]  # As in Sampled.


def look_into(path: str, names: Sequence[str], step: Callable[[], None], time_s: float = TIME_MAX_S) -> Looked:
    """As nonfinite(), and what was looked into. Never raises."""
    wanted = _wanted(names)
    most = min(TENSORS_PER_FILE_MAX, max(TENSORS_PER_FILE_MIN, TENSORS_MAX // max(1, len(wanted))))
    budget = Budget(step, until=time.monotonic() + time_s, tensors_per_file=most)
    into: List[str] = []
    torn: List[Tuple[str, str]] = []
    found = _harms(path, wanted, budget, into, torn)
    harm = "%s: %s" % found.harmed[0][:2] if found.harmed else None
    few = None if budget.is_spent else _few(found, len(names) > 1)
    return Looked(harm, wanted, into, torn, budget.is_spent and len(into) < len(wanted), few)


def _wanted(names: Sequence[str]) -> Sequence[str]:
    sampled = [name for name in names if is_sampled(name)]
    first = dict.fromkeys(spread(sampled, FILES_FIRST))
    return [*first, *spread([name for name in sampled if name not in first], FILES_MAX - FILES_FIRST)]


def is_sampled(name: str) -> bool:
    return name.endswith(tuple(PIECES_OF))


class _Found:
    """What samples of pieces have shown."""

    def __init__(self) -> None:
        self.looked = 0
        # File, tensor, and how a later save has it too: of an archive of DCP its number.
        self.harmed: List[Tuple[str, str, str]] = []
        self.is_over = False  # As many are harmed as are counted, or there is no memory for the rest.


def _few(found: _Found, is_by_file: bool) -> Optional[str]:
    """A digest of which are harmed, unless they are most. Files may be called by their step."""
    if found.is_over or not 0 < 2 * len(found.harmed) <= found.looked:
        return None
    lines = ["%s: %s" % (_unnumbered(name), key) if is_by_file else key for name, _, key in found.harmed]
    text = "\n".join(sorted(lines)).encode("utf-8", "backslashreplace")
    return "%08x%08x" % (crc32(text), adler32(text))  # Of the run's own words. hashlib costs each ready reader 4 MiB.


def _harms(path: str, wanted: Sequence[str], budget: Budget, into: List[str], torn: List[Tuple[str, str]]) -> _Found:
    """Sample the files. `into` takes those most of which can be sampled, and was; `torn` those that are cut short."""
    found = _Found()
    for name in wanted:
        pieces_of = next(read for ending, read in PIECES_OF.items() if name.endswith(ending))
        try:
            with open(opened(os.path.join(path, name)), "rb", buffering=0) as file:
                large: List[Piece] = []
                blind = _take(large, pieces_of(file, budget), torn, name)
                chosen = spread(large, budget.tensors_per_file)
                for number, piece in enumerate(chosen):
                    if budget.is_spent:
                        return found
                    found.looked += 1
                    if _is_harmed(file, piece, SAMPLES_PER_TENSOR * budget.tensors_per_file // len(chosen), budget):
                        key = str(number) if pieces_of is of_distcp else piece.name
                        found.harmed.append((name, piece.name, key))
                        found.is_over = len(found.harmed) >= HARMED_MAX
                    if found.is_over:
                        return found
                known = sum(piece.size for piece in large)
                is_most = known + OVERHEAD_BYTES >= (blind or 0)
                if pieces_of is of_distcp:  # Its pieces are those of some of its archives: perhaps none with a weight.
                    is_most = is_most and bool(chosen)
                if blind is not None and is_most:
                    into.append(name)
        except MADE_UP:
            continue  # Not what its name says, or not to be read.
        except MemoryError:
            found.is_over = True
            break
    return found


def _take(large: List[Piece], pieces: Iterator[Piece], torn: List[Tuple[str, str]], name: str) -> Optional[int]:
    """Collect what can hold weights. Returns the bytes that cannot be sampled; None if the file is torn.

    What is there of a torn file may show harm too.
    """
    blind = 0
    try:
        for piece in pieces:
            if piece.dtype not in BITS:
                blind += piece.size
            elif piece.size >= ELEMENTS_MIN * width_of(piece):
                large.append(piece)
    except TornError as error:
        torn.append((name, str(error)))
        return None
    return blind


def _is_harmed(file: IO[bytes], piece: Piece, samples: int, budget: Budget) -> bool:
    """Look at the beginning, the end, and evenly between: a flat partition of ZeRO is the whole model in one piece."""
    code, exponent, negative_infinity = BITS[piece.dtype]
    width = width_of(piece)
    last = max(0, piece.size - SAMPLE_BYTES) // width * width
    samples = min(samples, max(2, -(-piece.size // SAMPLE_BYTES)))  # So many are all of it.
    for offset in sorted({last * index // (samples - 1) // width * width for index in range(samples)}):
        raw = budget.read(file, piece.begin + offset, min(SAMPLE_BYTES, piece.size - offset))
        raw = raw[: len(raw) // width * width]
        if math.isfinite(_sum(raw, piece.dtype)):
            continue  # One that is not finite would make the sum so.
        values = struct.unpack("<%d%s" % (len(raw) // width, code), raw)
        if any(value & exponent == exponent and value != negative_infinity for value in values):
            return True
    return False


def _sum(raw: bytes, dtype: str) -> float:
    if dtype == "BF16":
        widened = bytearray(2 * len(raw))
        widened[2::4], widened[3::4] = raw[0::2], raw[1::2]
        raw = bytes(widened)
    code = _FLOATS[dtype]
    return float(sum(struct.unpack("<%d%s" % (len(raw) // struct.calcsize("<" + code), code), raw)))


# --- a checkpoint as a whole ---------------------------------------------------------------------------------------


class Sampled(NamedTuple):
    """What a look at the weights of a checkpoint has shown."""

    harm: Optional[str]  # The first tensor with a NaN or an infinity, as "FILE: TENSOR". None: none was seen.
    unsampled: Optional[str]  # What was not looked into. None: all that looks like weights was, and most bytes.
    torn: Optional[str] = None  # The first file that is missing or cut short.
    lacks: Optional[str] = None  # What a training that goes on from it begins anew.
    # A digest of which tensors are harmed, where they are few of those that were looked at, and all were.
    few_harmed: Optional[str] = None


def sample(
    path: str, sizes: Sequence[Tuple[str, int]], step: Callable[[], None], time_s: float = TIME_MAX_S,
    *, are_all: bool = True, mine: Optional[Sequence[str]] = None,
) -> Sampled:  # fmt: skip
    """As nonfinite(), and whether all is there and was looked into. Never raises.

    `sizes`: names and bytes of the files, of which there may be more unless `are_all`. `mine`: those of them that are
    looked into; others look into the rest, which may be on another node.
    """
    names = [name for name, _ in sizes]
    indexes = indexed(path, names, step, time_s)
    parts = stored(path, sizes, step, time_s)
    named, torn = indexes.named | parts.named, indexes.torn
    weights = [(name, size) for name, size in sizes if name in named or _is_weights(name)]
    aside = _aside(weights, named)
    looked_for = set(names if mine is None else mine)
    seen = look_into(path, names if mine is None else mine, step, time_s)
    # Beside a .metadata that was read, what it does not name is of another save.
    own = [
        one for one in weights if one[0] not in aside
        if one[0] in named or not _is_distcp(one[0]) or os.path.dirname(one[0]) not in parts.folders
    ]  # fmt: skip
    # What it names has all of its zips, so what follows is none.
    cut = [one for one in seen.torn if one != (one[0], CUT_IN_A_ZIP) or one[0] not in parts.named]
    dcp = unindexed(path, sizes) if are_all else Lacking(None, [])
    torn = torn or parts.torn or dcp.torn or _empty(own, sizes) or _cut(cut, {name for name, _ in own})
    ranks = Lacking(None, [])
    if are_all:
        ranks = partitions(path, names, Budget(step, time.monotonic() + time_s))
        torn = torn or ranks.torn or _without_weights(path, sizes, weights)
    if torn is not None or seen.harm is not None:
        return Sampled(seen.harm, None, torn, None, seen.few_harmed)
    lacks = lacking(path, names) if are_all else None
    blind = [*_blind_indexes(parts.unread, sizes), *indexes.unread, *dcp.elsewhere, *ranks.elsewhere]
    # Generators and positions are ours, and no weights: of a small model they are most of its bytes, as indexes are.
    looked_for.difference_update(parts.read, blind)
    sizes = [one for one in sizes if one[0] in looked_for and not os.path.basename(one[0]).startswith(OWN_FILES)]
    sizes = [one for one in sizes if one[0] not in aside or not _is_marker(one[0])]
    return Sampled(None, _unsampled(path, sizes, weights, seen, blind), None, lacks)


def _blind_indexes(unread: Sequence[str], sizes: Sequence[Tuple[str, int]]) -> List[str]:
    folders = {os.path.dirname(name) for name, _ in sizes if _is_distcp(name)}
    return [name for name in unread if os.path.dirname(name) in folders]


def _unsampled(
    path: str, sizes: Sequence[Tuple[str, int]], weights: Sequence[Tuple[str, int]], seen: Looked, blind: List[str]
) -> Optional[str]:
    """What nobody has looked into: `blind`, and more of the files that are looked for."""
    if not seen.wanted:
        return "no file of a format that is sampled"
    if seen.is_cut:
        return "%d of %d files in the time and the bytes of a look" % (len(seen.into), len(seen.wanted))
    others = {name for name, _ in sizes if is_sampled(name)}.difference(seen.wanted)
    if others:
        return "%d of %d files, of which a look takes no more" % (len(others), len(others) + len(seen.wanted))
    missed = {one for one in sizes if one[0] not in seen.into and (one[0] in seen.wanted or not is_sampled(one[0]))}
    vouching = sum(size for name, size in sizes if name in seen.into and not _is_optimizer(name))
    if missed and (not vouching or sum(size for _, size in missed) > vouching):
        return "most of its bytes: %s" % max(missed, key=lambda one: one[1])[0]
    unknown = (name for name, _ in missed.difference(weights) if _is_unknown(name) and _is_saved(path, name))
    blind = sorted([*blind, *(name for name, _ in missed.intersection(weights)), *unknown])
    if not blind:
        return None
    more = ["%d more" % (len(blind) - NAMED_TOLD_MAX)] if len(blind) > NAMED_TOLD_MAX else []
    return ", ".join(blind[:NAMED_TOLD_MAX] + more)


def _is_weights(name: str) -> bool:
    """Whether a framework names its weights so."""
    return name.endswith(_WEIGHTS) and not _STATE.match(os.path.basename(name)) and not _is_unknown(name)


def _is_unknown(name: str) -> bool:
    """Whether it may be anything: tokens and vocabularies end in .bin as the weights of older frameworks do."""
    base = os.path.basename(name)
    return base.endswith(_ANYTHING) and not _STATE.match(base) and not _MODEL.search(base)


def _is_saved(path: str, name: str) -> bool:
    """Whether it begins as what torch saves: a zip, or a pickle of older torch."""
    try:
        with open(opened(os.path.join(path, name)), "rb") as file:
            return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
    except OSError:
        return True  # Nobody knows.


def _is_distcp(name: str) -> bool:
    return name.endswith(".distcp")


def _is_optimizer(name: str) -> bool:
    return _OPTIMIZER.match(os.path.basename(name)) is not None


def _empty(weights: Sequence[Tuple[str, int]], sizes: Sequence[Tuple[str, int]]) -> Optional[str]:
    """The first that is empty of the weights, or of the states that are loaded with them.

    A rank that has nothing to save leaves an empty .distcp file beside the others'.
    """
    shared = any(size and _is_distcp(name) for name, size in weights)
    needed = [*weights, *(one for one in sizes if _LOADED.match(os.path.basename(one[0])))]
    empty = (name for name, size in needed if not size and not (shared and _is_distcp(name)))
    return next(("%s is empty" % name for name in empty), None)


_NEEDED: Final = re.compile(r"model|weight|state|optim|param|shard|adapter|lora|ckpt|checkpoint", re.IGNORECASE)
_MARKER: Final = re.compile(r"(?:.*[._-])?(?:done|lock|complete|completed|finished|success|ok|ready|marker)\.\w+\Z")


def _aside(weights: Sequence[Tuple[str, int]], named: Set[str]) -> Set[str]:
    """Those that are empty and that nothing calls a part of the checkpoint: somebody's marks beside the weights.

    No index names them and no framework does, and they are not numbered as one that holds something.
    """
    filled = {_unnumbered(name) for name, size in weights if size}
    empty = {name for name, size in weights if not size and name not in named and not _is_distcp(name)}
    if not filled:
        return set()
    return {one for one in empty if not _NEEDED.search(os.path.basename(one)) and _unnumbered(one) not in filled}


def _is_marker(name: str) -> bool:
    return _MARKER.match(os.path.basename(name)) is not None


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def _cut(torn: Sequence[Tuple[str, str]], weights: Set[str]) -> Optional[str]:
    """The first of what is cut short that the weights need, or the states that are loaded with them."""
    return next(("%s %s" % one for one in torn if one[0] in weights or _LOADED.match(os.path.basename(one[0]))), None)


def _without_weights(path: str, sizes: Sequence[Tuple[str, int]], weights: Sequence[object]) -> Optional[str]:
    """An optimizer's state alone is no checkpoint. What is unknown, or in a linked directory, may be the weights."""
    optimizer = next((name for name, _ in sizes if _is_optimizer(name)), None)
    if optimizer is None or weights:
        return None
    if any(
        size and not name.endswith(_NO_WEIGHTS) and not _STATE.match(os.path.basename(name)) for name, size in sizes
    ):
        return None
    return None if _is_partly_elsewhere(path) else "no weights are beside %s" % optimizer


def lacking(path: str, names: Sequence[str]) -> Optional[str]:
    """What of a whole checkpoint its framework was told to leave out: the Trainer by save_only_model.

    It saves the weights and its own state then, and nothing of an optimizer, a schedule or generators.
    """
    if _TRAINER_STATE not in names or any(_BESIDE_WEIGHTS.match(name) for name in names) or _is_partly_elsewhere(path):
        return None
    return "no optimizer in it"


def _is_partly_elsewhere(path: str) -> bool:
    """Whether a linked directory holds what nobody has listed."""
    try:
        with os.scandir(path) as entries:
            return any(entry.is_symlink() and entry.is_dir() for entry in entries)
    except OSError:
        return True
