"""Drives one incident from the first notice to its outcome, on a thread of its own beside the listener.

A thread of its own because every store call can hang with the process that hosts the store: beats, requests and
`received` must not hang with it. No CUDA call happens here.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import checkpoint
from .agreement import MARGIN_STEPS, CheckpointRequest, Round, notice_of, request_of_notice
from .governor_socket import clip
from .guard import attempt, note, say
from .launch import Place
from .open_requests import OpenRequests
from .save_at_step import SaveAtStep
from .step_gate import Order, StepGate
from .store import KeyStore, StoreLostError
from .wakeup import Wakeup

# Positions come from the other ranks' threads within milliseconds. A rank that is silent for so long is frozen or
# gone, and those that hold for it would rather train, or be seen to hang.
AGREE_LIMIT_NS = 30_000_000_000
# A save that began is finished, past the deadline too. Past this much more, some rank will never be heard of again.
FINISH_LIMIT_NS = 600_000_000_000
POLL_S = 0.005  # While a round is open.
POLL_PER_RANK_S = 0.0002  # The one store serves every rank: at most 5,000 polls per second in all.
IDLE_POLL_S = 0.05
IDLE_POLL_PER_RANK_S = 0.001  # Likewise, at most 1,000.
RECONNECT_S = 5.0
_DECIDE_AGAIN_NS = 1_000_000_000  # The rank that posted last should have decided; it may have died between the two.


class Ending(NamedTuple):
    """How a round ended: the last ack."""

    what: str
    fields: Dict[str, Any]


class AgreementThread:
    """`connect` opens the ranks' store when there is one, `on_saved` gets each ack record and its step."""

    def __init__(
        self,
        place: Place,
        gate: StepGate,
        save_at_step: SaveAtStep,
        requests: OpenRequests,
        connect: Callable[[], Optional[KeyStore]],
        on_saved: Callable[[Dict[str, Any], int], None],
    ) -> None:
        self._place = place
        self._gate = gate
        self._save_at_step = save_at_step
        self._requests = requests
        self._connect = connect
        self._on_saved = on_saved
        save_at_step.wake = self.wake
        self._store: Optional[KeyStore] = None
        self._generation = 0
        self._boot_id = _boot_id()
        self._entered = False  # This generation's round began here.
        self._spoiled = False  # It broke off here: nobody may wait for our part of it.
        self._stop = threading.Event()
        self._wake = Wakeup()
        self.poll_s = max(POLL_S, POLL_PER_RANK_S * place.world_size)
        self.reconnect_s = RECONNECT_S
        self._idle_s = max(IDLE_POLL_S, IDLE_POLL_PER_RANK_S * place.world_size)
        self._thread = threading.Thread(target=self._run, name="costgov-agree", daemon=True)

    def start(self) -> None:
        """Begin to listen to the other ranks."""
        self._thread.start()

    def wake(self) -> None:
        """An incident was opened or hardened on this rank. Any thread."""
        self._wake.set()

    def stop(self, timeout_s: float) -> None:
        """Finish a round that is past its agreement, then end; at most so long."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._turn()

    def _turn(self) -> None:
        played, error = attempt(self._play_if_asked)
        if error is not None:
            self._recover(error)
        elif not played:
            # One rank has nobody to listen to: it sleeps until its own request comes.
            self._wake.wait(self._idle_s if self._place.world_size > 1 else None)

    def _recover(self, error: Exception) -> None:
        """Let the training thread go and say so; the other ranks learn it when the store can be reached again."""
        self._gate.release()
        # Between two rounds nothing broke off: a generation skipped here would be one where all others wait for us.
        self._spoiled = self._entered
        if isinstance(error, StoreLostError):
            self._store = None
            reason = "the ranks' store is gone: %s" % error
        else:
            note("the agreement", error)
            reason = "%s: %s" % (type(error).__name__, error)
        if self._requests.request is not None:
            self._requests.close("failed", reason=clip(reason))
        self._gate.settled = True
        self._stop.wait(self.reconnect_s)

    def _play_if_asked(self) -> bool:
        request = self._requests.request
        if self._store is None:
            self._store = self._connect()
            if self._store is None:
                if request is not None and time.monotonic_ns() > request.deadline_ns:
                    self._requests.close("aborted", reason="the ranks have no common store yet")
                return False
        round_ = Round(self._store, self._generation, self._place.rank, self._place.world_size)
        if self._spoiled:
            for phase in ("position", "ready", "written", "outcome"):
                round_.settle(phase, {"abort": "rank %d lost its way" % self._place.rank})
            self._spoiled = False
            self._next_generation()
            return False
        notice = round_.notice()
        if notice is None:
            if request is None:
                return False
            notice = round_.announce(notice_of(request, self._boot_id, time.monotonic_ns()))
        self._entered = True
        request = self._requests.adopt(request_of_notice(notice, self._boot_id, time.monotonic_ns()))
        round_.harden(request)
        ending = _Conduct(self, round_).run()
        final = self._requests.request
        self._next_generation()
        self._requests.close(ending.what, **ending.fields)
        if ending.what == "saved":
            self._on_saved(ending.fields["checkpoint"], ending.fields["step"])
        self._gate.settled = True
        if final is not None and final.exit_after and ending.what in ("saved", "failed", "declined"):
            self._requests.halted = final.incident
            self._park(final)
        return True

    def _next_generation(self) -> None:
        self._generation += 1
        self._entered = False

    def _park(self, request: CheckpointRequest) -> None:
        """A rank that was ordered to park with its save does so already; this reaches the others."""
        self._gate.order(
            Order(
                False,
                "",
                request.checkpoint,
                True,
                request.exit_code,
                request.deadline_ns,
                request.incident,
                self._gate.step,
            )
        )


class _Conduct:
    """One round on this rank, step by step. StoreLostError and OSError end it from outside."""

    def __init__(self, owner: AgreementThread, round_: Round) -> None:
        self._owner = owner
        self._place = owner._place
        self._gate = owner._gate
        self._requests = owner._requests
        self._round = round_

    @property
    def _request(self) -> CheckpointRequest:
        request = self._requests.request
        assert request is not None, "a round has an open incident"
        return request

    def run(self) -> Ending:
        if self._gate.finished:
            return self._give_up("position", "training has finished")
        if self._request.checkpoint == "none":
            return Ending("declined", {"reason": "no checkpoint was asked for", "step": self._gate.step})
        if not self._owner._save_at_step.can_save():
            return Ending("declined", {"reason": "this loop has no way to save", "step": self._gate.step})
        target = self._agree()
        if isinstance(target, Ending):
            return target
        self._requests.report("agreed", step=target)
        order = self._gather_at(target)
        if isinstance(order, Ending):
            return order
        self._requests.report("saving", step=target)
        self._gate.order(order)
        return self._finish(order)

    def _agree(self) -> Any:
        """Return the target step, or the Ending."""
        deadline_ns = min(self._request.deadline_ns, time.monotonic_ns() + AGREE_LIMIT_NS)
        verdict = self._round.verdict("position")  # A rank that slept through it finds it decided, always as an abort.
        if verdict is None:
            step = self._gate.promise(MARGIN_STEPS, max(deadline_ns, self._request.deadline_ns))
            self._round.post("position", {"step": step})
            verdict = self._verdict("position", lambda: deadline_ns, "no agreement on a step")
        if "abort" in verdict:
            return self._aborted(verdict)
        self._gate.aim(verdict["target"])
        return int(verdict["target"])

    def _gather_at(self, target: int) -> Any:
        """Wait until every rank stands at the target and can write; return the Order, or the Ending."""
        while self._gate.arrived is None and self._gate.busy() and time.monotonic_ns() < self._request.deadline_ns:
            self._pause()
        arrived = self._gate.arrived
        if arrived is None:
            left = "training has finished" if self._gate.finished else "step %d was not reached in time" % target
            return self._give_up("ready", left)
        self._share()  # The verdict of this phase names kind and exit for everyone.
        self._round.post("ready", {"error": arrived.get("error") or self._try_disk(target, arrived)})
        verdict = self._verdict("ready", lambda: self._request.deadline_ns, "step %d was not reached in time" % target)
        if "abort" in verdict:
            self._clear_disk(target)
            return self._aborted(verdict)
        if verdict["suspect"]:
            self._requests.harden(self._request._replace(checkpoint="suspect"))
        if verdict["exit"] is not None:
            self._requests.harden(self._request._replace(exit_after=True, exit_code=int(verdict["exit"])))
        # The verdict alone names the tag: a request merged meanwhile on one rank must not split the shards.
        kind = "suspect" if verdict["suspect"] else "good"
        park = verdict["exit"] is not None
        request = self._request
        return Order(
            True,
            checkpoint.tag_of(target, kind),
            kind,
            park,
            request.exit_code,
            request.deadline_ns,
            request.incident,
            target,
        )

    def _try_disk(self, target: int, arrived: Dict[str, Any]) -> Optional[str]:
        """Write this rank's own file before the collective save begins: a full disk is cheaper to learn of now.

        One rank failing inside the save would leave the others in its barrier.
        """
        directory = self._owner._save_at_step.directory()
        if directory is None:  # Delegate mode: the framework knows the place, and tells it afterwards.
            return None
        kind = "suspect" if self._round.hardened(self._request).checkpoint == "suspect" else "good"
        path = os.path.join(directory, checkpoint.tag_of(target, kind))
        self._clear_disk(target)  # Of an attempt that died here: whichever kind it becomes, it places this trial's.
        try:
            os.makedirs(path, exist_ok=True)
            checkpoint.stage_rank_file(path, self._place.rank, arrived["rank_state"])
        except OSError as error:
            return clip("cannot write to %s: %s" % (path, error.strerror or error))
        return None

    def _clear_disk(self, target: int) -> None:
        directory = self._owner._save_at_step.directory()
        if directory is not None:
            for kind in ("good", "suspect"):
                path = os.path.join(directory, checkpoint.tag_of(target, kind))
                checkpoint.discard_staged_file(path, self._place.rank)

    def _finish(self, order: Order) -> Ending:
        """Wait for this rank's part, make it durable, and learn what became of the whole."""
        verdict = None
        while self._gate.result is None and self._gate.busy() and verdict is None:
            self._pause()
            # A rank that failed says so at once: others may sit in a collective of the save for as long as it lasts.
            verdict = self._round.verdict("written")
        result = self._gate.result
        error = "the training thread left before the save" if result is None else result.error
        limit_ns = max(time.monotonic_ns(), order.deadline_ns) + FINISH_LIMIT_NS
        if verdict is None and error:
            self._round.settle("written", {"abort": clip("rank %d: %s" % (self._place.rank, error))})
        elif verdict is None:
            self._round.post("written", {"error": None})
        verdict = verdict or self._verdict("written", lambda: limit_ns, "not every part was written")
        if "abort" in verdict:
            return Ending("failed", {"step": order.step, "reason": clip(verdict["abort"])})
        assert result is not None, "a written part has a result"
        assert result.path is not None, "a written part has a place"
        self._clear_disk(order.step)  # The trial, where a request changed the kind since.
        place = self._place
        try:
            parts = checkpoint.secure(
                result.path, place.rank, place.world_size, place.local_rank, place.local_world_size, order.deadline_ns
            )
            vote: Dict[str, Any] = {"parts": [list(part) for part in parts]}
        except OSError as failure:
            vote = {"error": clip("%s: %s" % (failure.filename or result.path, failure.strerror or failure))}
        self._round.post("vote", vote)
        if place.rank == 0:
            self._commit(order, result.path, limit_ns)
        outcome = self._verdict("outcome", lambda: limit_ns + FINISH_LIMIT_NS, "rank 0 did not commit the checkpoint")
        if "abort" in outcome:
            return Ending("failed", {"step": order.step, "reason": clip(outcome["abort"])})
        if outcome["exit"] is not None:
            self._requests.harden(self._request._replace(exit_after=True, exit_code=int(outcome["exit"])))
        return Ending("saved", {"step": order.step, "checkpoint": outcome["record"]})

    def _commit(self, order: Order, path: str, limit_ns: int) -> None:
        while not self._round.complete("vote"):
            if time.monotonic_ns() > limit_ns:
                self._round.abort("vote", "not every rank made its files durable")
                break
            self._pause()
        votes = self._round.posted("vote")
        for rank, vote in enumerate(votes):
            if vote is None or vote.get("error"):
                why = "did not vote" if vote is None else vote["error"]
                self._round.settle("outcome", {"abort": clip("rank %d: %s" % (rank, why))})
                return
        parts: List[checkpoint.Part] = [checkpoint.Part(*part) for vote in votes if vote for part in vote["parts"]]
        self._share()
        request = self._round.hardened(self._request)
        kind = "suspect" if "suspect" in (request.checkpoint, order.kind) else "good"
        facts: Dict[str, Any] = {
            "step": order.step,
            "tokens_total": (self._gate.arrived or {}).get("tokens_total"),  # As of that step: training goes on.
            "created_unix_s": int(time.time()),
            "kind": kind,
            "world_size": self._place.world_size,
            "run": self._place.run,
            "attempt": self._place.attempt,
            "incident": order.incident,
        }
        # A framework that saved by its own means has its own way to find its newest checkpoint.
        ours = self._owner._save_at_step.directory() is not None
        try:
            record = checkpoint.commit(path, parts, facts, move_latest=ours and kind == "good")
        except OSError as failure:
            self._round.settle("outcome", {"abort": "rank 0: manifest: %s" % (failure.strerror or failure)})
            return
        exit_code = str(request.exit_code) if request.exit_after else None
        self._round.settle("outcome", {"record": record, "exit": exit_code})

    def _verdict(self, phase: str, until_ns: Callable[[], int], why: str) -> Dict[str, Any]:
        """Wait for a verdict; past its time, abort for everyone, or learn who was faster."""
        again_ns = time.monotonic_ns() + _DECIDE_AGAIN_NS
        while True:
            verdict = self._round.verdict(phase)
            if verdict is not None:
                return verdict
            now_ns = time.monotonic_ns()
            if now_ns > until_ns():
                return self._round.abort(phase, why)
            if now_ns > again_ns:
                again_ns = now_ns + _DECIDE_AGAIN_NS
                if self._round.complete(phase):
                    self._round.decide(phase)
            self._pause()

    def _share(self) -> None:
        """Tell the other ranks what a request merged here has added."""
        if self._requests.changed:
            self._requests.changed = False
            self._round.harden(self._request)

    def _pause(self) -> None:
        self._share()
        self._owner._wake.wait(self._owner.poll_s)

    def _give_up(self, phase: str, why: str) -> Ending:
        verdict = self._round.abort(phase, "rank %d: %s" % (self._place.rank, why))
        return self._aborted(verdict if "abort" in verdict else {"abort": why})

    def _aborted(self, verdict: Dict[str, Any]) -> Ending:
        self._gate.release()
        what = "failed" if verdict.get("error") else "aborted"
        return Ending(what, {"reason": clip(verdict["abort"]), "step": self._gate.step})


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        say("no boot id: deadlines from other ranks are taken as time left")
        return "pid-%d" % os.getpid()
