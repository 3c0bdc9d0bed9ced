"""NAME@UID: how a user's run is called where another user has its name, and which name it has announced."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

from governor.core.base.identity import RUN_CHARS_MAX

# NAME@UID is reserved for that uid, so the second name is free. A journal of before may have another owner of it.
NAMES_TRIED_MAX: Final = 4
_RESERVED: Final = re.compile(r".+@([0-9]{1,10})", re.DOTALL)


def names_of(announced: str, uid: int) -> Iterator[str]:
    """The names by which a run may be watched that the uid has announced under this one, in order of preference."""
    name = announced
    for _ in range(NAMES_TRIED_MAX + 1):
        yield name
        name = own_name(name, uid)


def announced_as(run: str, uid: int, among: Iterable[str]) -> str | None:
    """Which of these names the uid has announced for the run that is watched as `run`. None: none of them.

    They must be given: a long name is not whole in the one that is made of it.
    """
    return next((name for name in among if run in names_of(name, uid)), None)


def reserved_for(name: str) -> int | None:
    """The uid whose own name this would be."""
    found = _RESERVED.fullmatch(name)
    return int(found[1]) if found is not None else None


def own_name(name: str, uid: int) -> str:
    """The name of a uid's own run where another uid has the name. A long one keeps both ends, and is no other's."""
    end = f"@{uid}"
    if len(name) + len(end) <= RUN_CHARS_MAX:
        return name + end
    middle = f"..{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}.."
    left = RUN_CHARS_MAX - len(end) - len(middle)
    return name[: left - left // 2] + middle + name[-(left // 2) :] + end
