"""The plain values of what torch has saved: step, state of a callback, which command saved it. Nothing of it is run.

The pickle is read as opcodes, as weights_formats.py reads it for its storages. Here a stack is kept as well: dicts,
words and numbers are themselves, and whatever code would make (tensors, paths, objects of the script's) is None.
"""

from __future__ import annotations

import pickletools
import struct
import zipfile
from typing import Any, Callable, Dict, List

from .weights_formats import PICKLE_BYTES_MAX

_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_GETS = ("GET", "BINGET", "LONG_BINGET")
_PLAIN = ("int", "int_or_bool", "bool", "long", "float", "str", "unicode", "bytes_or_str")
# What reading made-up files raises. RuntimeError: zipfile's for what is encrypted or unknown to it.
_MADE_UP = (
    zipfile.BadZipFile, ArithmeticError, LookupError, AttributeError, TypeError, RuntimeError, EOFError, struct.error,
)  # fmt: skip
_FLAGS = {"NEWTRUE": True, "NEWFALSE": False}
_WANTED = {one.name: [item.name for item in one.stack_before] for one in pickletools.opcodes}
_MADE = {one.name: len(one.stack_after) for one in pickletools.opcodes}
_IS_PLAIN = {
    one.name: not one.stack_before and all(item.name in _PLAIN for item in one.stack_after)
    for one in pickletools.opcodes
}


class TooLargeError(ValueError):
    """It may be whole. To read it takes too long."""


class Budget:
    """How much of many files is read: what fits into what is left. All of it takes a quarter of a minute."""

    def __init__(self, left: int = PICKLE_BYTES_MAX) -> None:
        self._left = left

    def values_of(self, path: str) -> Dict[str, Any]:
        """As values_of(). Raises TooLargeError for what is no longer read."""
        return _values_of(path, self._take)

    def _take(self, size: int) -> None:
        if size > self._left:
            raise TooLargeError("its values are too large to be read here: %d bytes" % size)
        self._left -= size


def values_of(path: str) -> Dict[str, Any]:
    """Return the plain values of the dict that torch saved as `path`. Raises OSError, or ValueError with the reason."""
    return _values_of(path, lambda _: None)


def _values_of(path: str, take: Callable[[int], None]) -> Dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next((one for one in archive.infolist() if one.filename.endswith("data.pkl")), None)
            if pickled is None or pickled.compress_type != zipfile.ZIP_STORED:
                raise ValueError("its values are not where torch saves them")
            take(pickled.file_size)
            if pickled.CRC == 0:  # torch was told to compute none.
                del pickled.CRC
            values = plain_values(archive.read(pickled))
    except _MADE_UP as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if not isinstance(values, dict):
        raise ValueError("it holds no dict")
    return values


def plain_values(pickled: bytes) -> object:
    """Return what is pickled as far as it is plain. Raises what pickletools.genops raises, and LookupError."""
    stack: List[Any] = []
    memo: Dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name == "STOP":
            break
        if name == "MARK":
            stack.append(_MARK)
        elif name in _PUTS:
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _GETS:
            stack.append(memo[argument])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name in ("SETITEM", "SETITEMS"):
            _set_items(stack, _taken(stack, _WANTED[name][1:]))
        elif _IS_PLAIN[name]:
            stack.extend([_FLAGS.get(name, argument)] * _MADE[name])
        else:
            _taken(stack, _WANTED[name])
            stack.extend([None] * _MADE[name])
    return stack[-1]


_MARK = object()


def _taken(stack: List[Any], wanted: List[str]) -> List[Any]:
    """Take from the stack what an opcode takes."""
    items: List[Any] = []
    if "mark" in wanted:
        at = len(stack) - 1 - stack[::-1].index(_MARK)
        items = stack[at + 1 :]
        del stack[at:]
        wanted = wanted[: wanted.index("mark")]
    begin = len(stack) - len(wanted)
    if begin < 0:
        raise IndexError("an opcode finds too little")
    items = stack[begin:] + items
    del stack[begin:]
    return items


def _set_items(stack: List[Any], items: List[Any]) -> None:
    if isinstance(stack[-1], dict):
        at = range(0, len(items) - 1, 2)
        stack[-1].update((items[key], items[key + 1]) for key in at if isinstance(items[key], str))
