"""Answers a `show` on a thread of its own: neither beats nor requests wait for it, and no collective stops it."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Callable, Dict, List, Tuple

from trainer_shim import wire
from trainer_shim.guard import attempt, guarded

from .profile import StepProfile

_NAME_CHARS_MAX = 80
# One recorder a backend: what torch has, by the newest first. gloo writes into the first, NCCL into the second.
_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


class Shower:
    """`send` posts one frame now or never. One look at a time: a second one is told so."""

    def __init__(self, send: Callable[[str, Dict[str, Any]], Any], profile: StepProfile) -> None:
        self._send = send
        self._profile = profile
        self._busy = threading.Lock()

    @guarded()
    def show(self, frame: Dict[str, Any]) -> None:
        """Begin to answer, on another thread. Listener thread only."""
        look, what = frame["look"], frame["what"]
        if what == "profile":
            told = self._profile.ask(frame.get("steps") or 0, lambda found: self._answer(look, what, found))
            if told is not None:
                self._answer(look, what, {"problem": told})
        elif what != "collectives":
            self._answer(look, what, {"problem": "this shim does not know how to show %.40r" % what})
        elif not self._busy.acquire(blocking=False):
            self._answer(look, what, {"problem": "this rank is still busy with another look"})
        else:
            threading.Thread(target=self._collectives, args=(look,), name="costgov-show", daemon=True).start()

    def _collectives(self, look: str) -> None:
        try:
            found, error = attempt(collectives)
        finally:
            self._busy.release()
        if error is not None:
            found = {"problem": ("%s: %s" % (type(error).__name__, error))[: wire.TEXT_CHARS_MAX]}
        self._answer(look, "collectives", found)

    def _answer(self, look: str, what: str, found: Dict[str, Any]) -> None:
        attempt(self._send, "shown", dict(found, look=look, what=what))


def collectives() -> Dict[str, Any]:
    """Return the `shown` fields of this process's last collectives, by torch's flight recorder."""
    library = sys.modules.get("torch._C._distributed_c10d")
    if library is None:
        return {"problem": "torch.distributed is not loaded"}
    entries: List[Dict[str, Any]] = []
    for name in _RECORDERS:
        dump = getattr(library, name, None)
        if dump is not None:
            entries += json.loads(dump()).get("entries") or []
    if not entries:
        return {"problem": "the flight recorder is empty: no collective yet, or TORCH_FR_BUFFER_SIZE is 0"}
    return {"entries": [_text(entry) for entry in chosen(entries, wire.LIST_ITEMS_MAX)]}


def chosen(entries: List[Dict[str, Any]], most: int) -> List[Dict[str, Any]]:
    """Keep the newest of each group, then the newest of all, in their order."""
    newest: Dict[Tuple[Any, ...], int] = {}
    for place, entry in enumerate(entries):
        newest[_group(entry)] = place
    kept = set(sorted(newest.values())[-most:])
    for place in range(len(entries) - 1, -1, -1):
        if len(kept) >= most:
            break
        kept.add(place)
    return [entries[place] for place in sorted(kept)]


def _group(entry: Dict[str, Any]) -> Tuple[Any, ...]:
    named = entry.get("process_group")
    return (*(named if isinstance(named, list) else ()), bool(entry.get("is_p2p")))


def _text(entry: Dict[str, Any]) -> str:
    """One entry as the wire has it. Shapes and names, and nothing of any tensor."""
    group = entry.get("process_group") or ["", ""]
    is_p2p = bool(entry.get("is_p2p"))
    words = [
        "/".join(str(part) for part in group)[:_NAME_CHARS_MAX],
        entry.get("p2p_seq_id" if is_p2p else "collective_seq_id") or 0,
        str(entry.get("profiling_name", ""))[:_NAME_CHARS_MAX],
        str(entry.get("state", ""))[:20],
        str(entry.get("input_sizes", ""))[:_NAME_CHARS_MAX],
        is_p2p,
        entry.get("retired") is True,
    ]
    return json.dumps(words, separators=(",", ":"))
