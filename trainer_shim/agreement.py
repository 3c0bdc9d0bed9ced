"""Agreement of all ranks on one step, and on what became of it. Decision logic over a key-value store, nothing else.

A round is one generation of keys. Every phase of it is the same small thing: each rank posts once, the rank that posts
last computes the verdict and writes it once; whoever runs out of time may write "abort" instead, once as well.
Whichever was first is what every rank reads. There is no leader whose death could hold the others.

    notice     what was asked (the first writer's request counts for all)
    position   each rank's last finished step s, with the promise not to pass s + margin  -> target = max(s) + margin
    ready      each rank stands at the target and can write                               -> go (tag, kind, exit)
    written    each rank's part is written                                                -> all is there
    outcome    rank 0 has every rank's durable files and the manifest                     -> saved, or failed and why
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from .store import KeyStore

MARGIN_STEPS = 1  # A rank that holds at s + 1 cannot pass a target that is at least s + 1: measured to be enough.


OWN = "own."  # How the incidents begin that the training script opens: see Watcher.checkpoint.


class CheckpointRequest(NamedTuple):
    """What a governor, or the script, asks for, as one rank holds it. `deadline_ns` is this node's CLOCK_MONOTONIC."""

    incident: str
    checkpoint: str  # good | suspect | none
    deadline_ns: int
    exit_after: bool
    exit_code: int
    reason: str


def request_of(frame: Dict[str, Any]) -> CheckpointRequest:
    """Read a valid `letter` frame."""
    kind = frame["checkpoint"]
    return CheckpointRequest(
        incident=frame["incident"],
        checkpoint=kind
        if kind in ("good", "none")
        else "suspect",  # Unknown to us: keep it, and never as the last good.
        deadline_ns=frame["deadline_mono_ns"],
        exit_after=frame["exit_after"],
        exit_code=frame["exit_code"],
        reason=frame.get("reason") or "",
    )


def merged(first: CheckpointRequest, second: CheckpointRequest) -> CheckpointRequest:
    """Fold a later request into the open one: the first incident's name, the more cautious of everything else.

    A governor's name goes before the script's own: it waits for acks under that one, and does not know the other.
    """
    if first.incident.startswith(OWN) and not second.incident.startswith(OWN):
        first = first._replace(incident=second.incident, reason=second.reason)
    kinds = {first.checkpoint, second.checkpoint}
    return first._replace(
        checkpoint="suspect" if "suspect" in kinds else "good" if "good" in kinds else "none",
        deadline_ns=min(first.deadline_ns, second.deadline_ns),
        exit_after=first.exit_after or second.exit_after,
        exit_code=first.exit_code if first.exit_after else second.exit_code,
    )


def notice_of(request: CheckpointRequest, boot_id: str, now_ns: int) -> str:
    """Write a request for the other ranks. On another node its clock means nothing, so the time left goes along."""
    return json.dumps(dict(request._asdict(), boot_id=boot_id, left_ns=request.deadline_ns - now_ns))


def request_of_notice(text: str, boot_id: str, now_ns: int) -> CheckpointRequest:
    """Read another rank's notice."""
    fields = json.loads(text)
    left_ns = fields.pop("left_ns")
    if fields.pop("boot_id") != boot_id:
        fields["deadline_ns"] = now_ns + left_ns
    return CheckpointRequest(**fields)


class Round:
    """One rank's view of one generation. Every verdict is a dict; {"abort": reason} releases everyone.

    With "error" beside it, a rank could not; without, a rank did not answer in time.
    """

    def __init__(self, store: KeyStore, generation: int, rank: int, world_size: int) -> None:
        self._store = store
        self._prefix = "%d/" % generation
        self._rank = rank
        self._world_size = world_size

    def notice(self) -> Optional[str]:
        """Return what was asked in this generation, by whichever rank."""
        return self._store.get(self._prefix + "notice")

    def announce(self, text: str) -> str:
        """Ask all ranks; return the notice that counts, which may be another rank's."""
        return self._store.settle(self._prefix + "notice", text)

    def harden(self, request: CheckpointRequest) -> None:
        """Tell the ranks that a merged request made the checkpoint suspect or the halt final. Never taken back."""
        if request.checkpoint == "suspect":
            self._store.set(self._prefix + "suspect", "1")
        if request.exit_after:
            self._store.set(self._prefix + "exit", str(request.exit_code))

    def hardened(self, request: CheckpointRequest) -> CheckpointRequest:
        """Return the request with what other ranks' requests added to it."""
        if request.checkpoint == "good" and self._store.get(self._prefix + "suspect"):
            request = request._replace(checkpoint="suspect")
        if not request.exit_after:
            code = self._store.get(self._prefix + "exit")
            if code is not None:
                request = request._replace(exit_after=True, exit_code=int(code))
        return request

    def post(self, phase: str, value: Dict[str, Any]) -> None:
        """Post this rank's part of a phase. Call once per phase."""
        self._store.set("%s%s/%d" % (self._prefix, phase, self._rank), json.dumps(value))
        if self._store.add("%s%s/count" % (self._prefix, phase), 1) >= self._world_size:
            self.decide(phase)

    def complete(self, phase: str) -> bool:
        """Whether every rank has posted."""
        return self._store.add("%s%s/count" % (self._prefix, phase), 0) >= self._world_size

    def posted(self, phase: str) -> List[Optional[Dict[str, Any]]]:
        """Return every rank's post, None where it is missing. One read per rank: not for polling."""
        texts = [self._store.get("%s%s/%d" % (self._prefix, phase, rank)) for rank in range(self._world_size)]
        return [None if text is None else json.loads(text) for text in texts]

    def decide(self, phase: str) -> None:
        """Write the verdict of a complete phase, unless somebody did."""
        decider = _DECIDERS.get(phase)
        if decider is None:  # `vote`: rank 0 turns it into the outcome by hand.
            return
        posts = self.posted(phase)
        assert None not in posts, "decide() before every rank has posted"
        verdict = decider([post for post in posts if post is not None])
        if phase == "ready" and "go" in verdict:
            verdict["suspect"] = self._store.get(self._prefix + "suspect") is not None
            verdict["exit"] = self._store.get(self._prefix + "exit")
        self._settle(phase, verdict)

    def verdict(self, phase: str) -> Optional[Dict[str, Any]]:
        """Return the verdict, or None while there is none."""
        text = self._store.get("%s%s/verdict" % (self._prefix, phase))
        return None if text is None else json.loads(text)

    def settle(self, phase: str, verdict: Dict[str, Any]) -> Dict[str, Any]:
        """Write a verdict by hand, once; return the one that counts."""
        return self._settle(phase, verdict)

    def abort(self, phase: str, why: str) -> Dict[str, Any]:
        """Give up a phase for all ranks, naming those that did not post; return the verdict that counts."""
        missing = [str(rank) for rank, post in enumerate(self.posted(phase)) if post is None]
        names = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        return self._settle(phase, {"abort": "%s: no answer from rank %s" % (why, names) if missing else why})

    def _settle(self, phase: str, verdict: Dict[str, Any]) -> Dict[str, Any]:
        stays: Dict[str, Any] = json.loads(
            self._store.settle("%s%s/verdict" % (self._prefix, phase), json.dumps(verdict))
        )
        return stays


def _target(posts: List[Dict[str, Any]]) -> Dict[str, Any]:
    return {"target": max(post["step"] for post in posts) + MARGIN_STEPS}


def _go(posts: List[Dict[str, Any]]) -> Dict[str, Any]:
    return _first_error(posts) or {"go": True}


def _all_there(posts: List[Dict[str, Any]]) -> Dict[str, Any]:
    return _first_error(posts) or {"written": True}


def _first_error(posts: List[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    for rank, post in enumerate(posts):
        if post.get("error"):
            return {"abort": "rank %d: %s" % (rank, post["error"]), "error": True}
    return None


_DECIDERS: Dict[str, Callable[[List[Dict[str, Any]]], Dict[str, Any]]] = {
    "position": _target,
    "ready": _go,
    "written": _all_there,
}
