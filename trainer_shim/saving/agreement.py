"""Agreement of all ranks on one step, and on what became of it. Decision logic over a key-value store, nothing else.

A round is one generation of keys. In each phase every rank posts once, the rank that posts last computes the verdict
and writes it once. Whoever runs out of time may write "abort" instead, once as well. The first one is what every rank
reads. There is no leader whose death could hold the others.

    notice     what was asked for; the first writer's request counts for all
    position   each rank's last finished step s, with the promise not to pass s + margin  -> target = max(s) + margin
    ready      each rank stands at its first boundary from the target on, and can write   -> go (step, kind, exit, …)
    written    each rank's part is written                                                -> all is there
    outcome    each rank's files are durable; rank 0 writes the manifest and this verdict -> saved, or failed and why

Where the manifest stands the verdict is that it is saved. So rank 0 claims the outcome before it writes: who has given
the round up before has done so for all, and who does later speaks for itself alone.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import patience
from .open_requests import CheckpointRequest
from .store import KeyStore

MARGIN_STEPS = 1  # A rank that holds at s + 1 cannot pass a target that is at least s + 1: measured to be enough.


class Phase(Enum):
    """Where a round stands on this rank. The last four are its end, named as the last ack names it."""

    POSITION = "position"
    READY = "ready"
    WRITTEN = "written"
    OUTCOME = "outcome"
    SAVED = "saved"
    FAILED = "failed"
    ABORTED = "aborted"  # Training goes on as if nobody had asked.
    DECLINED = "declined"  # This rank knew before the round that it would not save.


class Answer(Enum):
    """What a phase's verdict says."""

    GO = "go"
    GIVEN_UP = "given_up"  # {"abort": reason}: a rank did not answer in time, or left.
    COULD_NOT = "could_not"  # {"abort": reason, "error": True}: a rank said that it could not.


def _table(*rows: Tuple[Phase, Tuple[Phase, ...]]) -> Dict[Tuple[Phase, Answer], Phase]:
    assert {phase for phase, _ in rows} == set(LIVE_PHASES), "every live phase has a row"
    assert all(len(nexts) == len(Answer) for _, nexts in rows), "every answer has a column"
    # strict= is not in Python 3.9, and the lengths are equal.
    return {(phase, answer): after for phase, nexts in rows for answer, after in zip(Answer, nexts)}  # noqa: B905


class Left(Enum):
    """Why nobody may wait for a rank, in words for people. An abort of its own has it as `left`, too."""

    FINISHED = "training has finished"
    LOST = "lost its way"


LIVE_PHASES = (Phase.POSITION, Phase.READY, Phase.WRITTEN, Phase.OUTCOME)

NEXT = _table(
    # In phase         GO             GIVEN_UP       COULD_NOT
    (Phase.POSITION, (Phase.READY, Phase.ABORTED, Phase.FAILED)),
    (Phase.READY, (Phase.WRITTEN, Phase.ABORTED, Phase.FAILED)),
    (Phase.WRITTEN, (Phase.OUTCOME, Phase.FAILED, Phase.FAILED)),  # Some files may be written: no longer as if unasked.
    (Phase.OUTCOME, (Phase.SAVED, Phase.FAILED, Phase.FAILED)),
)


_LEFT = "left"  # Of all rounds: the abort of the first rank that left.
_CLAIMED = "claimed"


class Round:
    """One rank's view of one generation. Every verdict is a dict; {"abort": reason} releases everyone."""

    def __init__(self, store: KeyStore, generation: int, rank: int, world_size: int) -> None:
        self.phase = Phase.POSITION
        self._store = store
        self._prefix = "%d/" % generation
        self._rank = rank
        self._world_size = world_size

    def notice(self) -> Optional[str]:
        """Return what was asked for in this generation, by whichever rank."""
        return self._store.get(self._prefix + "notice")

    def announce(self, text: str) -> str:
        """Ask all ranks; return the notice that counts, which may be another rank's."""
        return self._store.settle(self._prefix + "notice", text)

    def follow(self, verdict: Dict[str, Any]) -> Phase:
        """Go where the verdict of the present phase leads; return the phase reached."""
        answer = Answer.GO
        if "abort" in verdict:
            answer = Answer.COULD_NOT if verdict.get("error") else Answer.GIVEN_UP
        self.phase = NEXT[self.phase, answer]
        return self.phase

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

    def post(self, phase: Phase, value: Dict[str, Any]) -> None:
        """Post this rank's part of a phase. Call once per phase."""
        self._store.set("%s/%d" % (self._posts(phase), self._rank), json.dumps(value))
        if self._store.add(self._posts(phase) + "/count", 1) >= self._world_size:
            self.decide(phase)

    def complete(self, phase: Phase) -> bool:
        """Whether every rank has posted."""
        return self._store.add(self._posts(phase) + "/count", 0) >= self._world_size

    def posted(self, phase: Phase) -> List[Optional[Dict[str, Any]]]:
        """Return every rank's post, None where it is missing. One read per rank: not for polling."""
        texts = [self._store.get("%s/%d" % (self._posts(phase), rank)) for rank in range(self._world_size)]
        return [None if text is None else json.loads(text) for text in texts]

    def decide(self, phase: Phase) -> None:
        """Write the verdict of a complete phase, unless somebody did. The outcome is rank 0's to settle()."""
        decider = _DECIDERS.get(phase)
        if decider is None:
            return
        posts = self.posted(phase)
        assert None not in posts, "decide() before every rank has posted"
        verdict = decider([post for post in posts if post is not None])
        if phase is Phase.READY and "go" in verdict:
            verdict["suspect"] = self._store.get(self._prefix + "suspect") is not None
            verdict["exit"] = self._store.get(self._prefix + "exit")
        self.settle(phase, verdict)

    def verdict(self, phase: Phase) -> Optional[Dict[str, Any]]:
        """Return the verdict, or None while there is none. No round is agreed on once a rank has left."""
        text = self._store.get("%s%s/verdict" % (self._prefix, phase.value))
        if text is not None:
            known: Dict[str, Any] = json.loads(text)
            return known
        left = self._store.get(_LEFT) if phase is Phase.POSITION else None
        return None if left is None else dict(json.loads(left))

    def let_go(self, left: Left, has_voted: bool = False) -> Dict[str, Any]:
        """Nobody may wait for this rank in any phase of this round; return the abort that says so.

        For one that has voted nobody does: its part is durable, and the checkpoint may become whole.
        """
        verdict = {"abort": "rank %d: %s" % (self._rank, left.value), "left": left.name}
        for phase in LIVE_PHASES[:-1] if has_voted else LIVE_PHASES:
            self._give_up(phase, verdict)
        return verdict

    def leave(self, left: Left, has_voted: bool = False) -> None:
        """Nor in any later round."""
        self._store.settle(_LEFT, json.dumps(self.let_go(left, has_voted)))

    def claim(self) -> Optional[Dict[str, Any]]:
        """On rank 0, which alone commits: from here on nobody else gives the outcome up. Return the word of who has."""
        text = self._store.settle(self._prefix + "claim", _CLAIMED)
        return None if text == _CLAIMED else self.settle(Phase.OUTCOME, json.loads(text))

    def _give_up(self, phase: Phase, verdict: Dict[str, Any]) -> Dict[str, Any]:
        """Settle an abort. While rank 0 writes the manifest it is this rank's alone: the others wait for its word."""
        is_others = phase is Phase.OUTCOME and self._rank != 0
        if is_others and self._store.settle(self._prefix + "claim", json.dumps(verdict)) == _CLAIMED:
            return self.verdict(phase) or verdict
        return self.settle(phase, verdict)

    def votes(self) -> Tuple[List[Any], Optional[str]]:
        """Return what all ranks have made durable, or why that is not all."""
        parts: List[Any] = []
        for rank, vote in enumerate(self.posted(Phase.OUTCOME)):
            if vote is None or vote.get("error"):
                return [], "rank %d: %s" % (rank, "did not vote" if vote is None else vote["error"])
            parts += vote["parts"]
        return parts, None

    def settle(self, phase: Phase, verdict: Dict[str, Any]) -> Dict[str, Any]:
        """Write a verdict, once; return the one that counts."""
        key = "%s%s/verdict" % (self._prefix, phase.value)
        stays: Dict[str, Any] = json.loads(self._store.settle(key, json.dumps(verdict)))
        return stays

    def abort(self, phase: Phase, why: str, left: Optional[Left] = None) -> Dict[str, Any]:
        """Give up a phase for all ranks, naming those that did not post; return the verdict that counts."""
        missing = [str(rank) for rank, post in enumerate(self.posted(phase)) if post is None]
        who = "rank" if len(missing) == 1 else "ranks"
        names = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        verdict = {"abort": "%s (no answer from %s %s)" % (why, who, names) if missing else why}
        return self._give_up(phase, verdict if left is None else dict(verdict, left=left.name))

    def _posts(self, phase: Phase) -> str:
        return self._prefix + ("vote" if phase is Phase.OUTCOME else phase.value)


class Absent:
    """Who made no step while the others stood at the agreed one, for what the script had asked for."""

    def __init__(self) -> None:
        self._at: Dict[int, Any] = {}  # By rank, its step then.

    def note(self, round_: Round) -> None:
        """Time has run out for these."""
        stand = round_.posted(Phase.READY)
        self._at = {rank: step for rank, step in _steps(round_).items() if stand[rank] is None}

    def clear(self) -> None:
        """All stood there."""
        self._at = {}

    def still(self, round_: Round) -> Optional[str]:
        """Say who has made no step since; one read per rank where somebody was noted, else none."""
        now = _steps(round_) if self._at else {}
        stood = [rank for rank, step in self._at.items() if now.get(rank) == step]
        return "rank %d stands at step %s since the last request" % (stood[0], self._at[stood[0]]) if stood else None


def _steps(round_: Round) -> Dict[int, Any]:
    return {rank: post["step"] for rank, post in enumerate(round_.posted(Phase.POSITION)) if post is not None}


def _target(posts: List[Dict[str, Any]]) -> Dict[str, Any]:
    return {"target": max(post["step"] for post in posts) + MARGIN_STEPS}


def _go(posts: List[Dict[str, Any]]) -> Dict[str, Any]:
    """A boundary has several steps where several optimizers step in a batch: the same ones on every rank."""
    first = posts[0].get("step")
    other = next((rank for rank, post in enumerate(posts) if post.get("step") != first), None)
    error = _first_error(posts)
    if error is None and other is not None:
        told = "rank 0 stands at step %s and rank %d at step %s" % (first, other, posts[other].get("step"))
        error = {"abort": told, "error": True}
    return error or {"go": True, "step": first, "waits": patience.fits(posts)}


def _all_there(posts: List[Dict[str, Any]]) -> Dict[str, Any]:
    return _first_error(posts) or {"written": True}


def _first_error(posts: List[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    for rank, post in enumerate(posts):
        if post.get("error"):
            return {"abort": "rank %d: %s" % (rank, post["error"]), "error": True}
    return None


_DECIDERS: Dict[Phase, Callable[[List[Dict[str, Any]]], Dict[str, Any]]] = {
    Phase.POSITION: _target,
    Phase.READY: _go,
    Phase.WRITTEN: _all_there,
}
