"""Which processes run a rank's program, and whether as another rank of its run or as another run of a sweep.

What is kept of a rank's command line outlives the rank and the governor: digests, for a command line may have secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from governor.core.halt.known_names import program_of

# Without case, "-" and "_", and without the part before the last dot. None of these is an experiment's parameter.
_NUMBERS_OF_RANKS: Final = frozenset((
    "localrank", "globalrank", "worldrank", "noderank", "machinerank", "hostrank", "rankid", "processid", "procid",
    "processindex", "localprocessid",
))  # fmt: skip
# LoRA has a rank, and each run of a sweep may have a GPU: it counts if it is the number that the rank has said.
_PERHAPS: Final = frozenset(("rank", "gpu", "gpuid", "localgpu", "device", "deviceid", "cuda", "cudadevice"))
_DIGITS_MAX: Final = 5
_DIGEST_BYTES: Final = 16


def program_key(argv: tuple[str, ...], numbers: Iterable[int] = ()) -> str | None:
    """What to keep of a rank's command line: its program, the rest, and which arguments are numbers of ranks.

    `numbers`: those that the rank has said to have. None if the command line shows no program.
    """
    program, given = program_of(argv) if argv else ("", ())
    if not program:
        return None
    said = {str(number) for number in numbers}
    names = {name for name, value, _ in _numbered(given) if name in _PERHAPS and value in said}
    return " ".join((_digest((program,)), _digest(_without(given, frozenset(names))), *sorted(names)))


def is_sibling(argv: tuple[str, ...], ranks: Iterable[str]) -> bool:
    """Whether it runs the program of ranks with arguments that no rank of the run has, as the runs of a sweep do.

    `ranks`: their keys. Arguments that differ by the number of a rank alone are the run's.
    """
    program, given = program_of(argv) if argv else ("", ())
    its = _digest((program,)) if program else ""
    alike = [rest for whose, _, rest in (key.partition(" ") for key in ranks) if whose == its]
    return bool(alike) and all(not _is_of(given, rest.split(" ")) for rest in alike)


def _is_of(given: tuple[str, ...], key: list[str]) -> bool:
    return _digest(_without(given, frozenset(key[1:]))) == key[0]


def _without(given: tuple[str, ...], names: frozenset[str]) -> tuple[str, ...]:
    """Arguments without those by which the ranks of one run are told apart."""
    places = {place for name, _, own in _numbered(given) if name in _NUMBERS_OF_RANKS | names for place in own}
    return tuple(word for place, word in enumerate(given) if place not in places)


def _numbered(given: tuple[str, ...]) -> Iterable[tuple[str, str, tuple[int, ...]]]:
    """Arguments with a small number as their value: name, number, and which words they are."""
    for place, word in enumerate(given):
        option, is_joined, value = word.partition("=")
        following = given[place + 1] if place + 1 < len(given) else ""
        if not is_joined and not option.startswith("-"):
            continue
        number = (value if is_joined else following).removeprefix("cuda:")
        if number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX:
            name = option.lstrip("-+").rpartition(".")[2].replace("-", "").replace("_", "").lower()
            yield name, str(int(number)), (place,) if is_joined else (place, place + 1)


def _digest(words: tuple[str, ...]) -> str:
    text = "\0".join(words).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()
