"""The frames by which a governor looks at a rank: its `show`, and the rank's `shown`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.printable import printable
from governor.core.base.units import COUNT_MAX, MonoNs
from governor.core.events.shown import RankShowed
from trainer_shim.wire import WIRE_VERSION, encode

NUMBER_END = 2**53
NAME_CHARS_MAX = 80  # As the shim cuts them.


def show_packet(look: str, what: str, steps: int = 0) -> bytes:
    """Ask a rank to show something. Only for one whose hello has the capability `show`."""
    return encode({"v": WIRE_VERSION, "kind": "show", "look": look, "what": what, "steps": steps})


def shown(frame: Mapping[str, Any], connection: ConnectionId, at: MonoNs, run: str) -> RankShowed | list[str]:
    """Read a valid `shown` frame."""
    step, path, problem = frame.get("step"), frame.get("path"), frame.get("problem")
    if step is not None and not 0 <= step <= COUNT_MAX:
        return ["shown.step is no step"]
    return RankShowed(
        at=at,
        connection=connection,
        run=run,
        look=frame["look"],
        what=frame["what"],
        entries=tuple(printable(entry) for entry in frame.get("entries") or ()),
        path=path,
        step=step,
        problem=None if problem is None else printable(problem),
    )


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of a rank's flight recorder. `number` counts within its group, the same on every rank."""

    group: str
    number: int
    operation: str
    state: str
    sizes: str
    is_p2p: bool
    is_over: bool


def read_collectives(entries: tuple[str, ...] | list[str]) -> tuple[Collective, ...]:
    """What a rank has shown, in its order. An entry that is none is left out: a rank may send anything."""
    found = (_collective(entry) for entry in entries)
    return tuple(one for one in found if one is not None)


def _collective(entry: str) -> Collective | None:
    try:
        words = json.loads(entry)
    except (ValueError, RecursionError):
        return None
    if not isinstance(words, list) or len(words) != len(Collective.__slots__):
        return None
    group, number, operation, state, sizes, is_p2p, is_over = words
    if not all(isinstance(word, str) for word in (group, operation, state, sizes)):
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < NUMBER_END:
        return None
    texts = (printable(word)[:NAME_CHARS_MAX] for word in (group, operation, state, sizes))
    group, operation, state, sizes = texts
    return Collective(group, number, operation, state, sizes, is_p2p is True, is_over is True)
