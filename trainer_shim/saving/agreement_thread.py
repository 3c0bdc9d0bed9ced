"""Drives one incident from the first notice to its outcome, on a thread of its own beside the listener.

Every store call can hang with the process that hosts the store. Beats, requests and `received` must not hang with it,
so the listener makes no such call. This thread makes no CUDA call.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

from trainer_shim.governor_socket import clip
from trainer_shim.guard import attempt, note, print_line
from trainer_shim.launch import Place, boot_id
from trainer_shim.signal_wakeup import ReentrantEvent

from . import outcome
from .agreement import MARGIN_STEPS, Absent, Left, Phase, Round
from .facts import position_of
from .open_requests import OWN, CheckpointRequest, OpenRequests, notice_of, request_of_notice
from .save_at_step import SaveAtStep, order_of
from .step_gate import Order, Result, StepGate
from .store import KeyStore, StoreLostError, polls_s

# Other ranks' threads post within milliseconds. Who holds for one that is frozen or gone would rather train.
AGREE_LIMIT_NS = 30_000_000_000
# So long the ranks that stand at the step wait where the script asked: another may be out of data, or evaluate alone.
OWN_WAIT_NS = 120_000_000_000
# A save that began is finished, past the deadline too. Past this much more, some rank will never be heard of again.
FINISH_LIMIT_NS = 600_000_000_000
RECONNECT_S = 5.0
_DECIDE_AGAIN_NS = 1_000_000_000  # The rank that posted last should have decided; it may have died between the two.

Verdict = Dict[str, Any]


class AgreementThread:
    """`connect` opens the ranks' store when there is one, `on_saved` gets each ack record and its step."""

    def __init__(
        self, place: Place, gate: StepGate, save_at_step: SaveAtStep, requests: OpenRequests,
        connect: Callable[[], Optional[KeyStore]], on_saved: Callable[[Dict[str, Any], int], None],
        absent: Callable[[], Optional[str]] = lambda: None,
    ) -> None:  # fmt: skip
        self._place = place
        self._gate = gate
        self._save_at_step = save_at_step
        self._requests = requests
        self._connect = connect
        self._on_saved = on_saved
        self._lacking = absent
        save_at_step.wake = self.wake
        self._store: Optional[KeyStore] = None
        self._generation = 0
        self._boot_id = boot_id()
        self._entered = False  # This generation's round began here.
        self._spoiled = False  # It broke off here: nobody may wait for our part of it.
        self._voted = False  # In this generation: our part is durable, or it never will be.
        self._committed: Optional[Verdict] = None  # Likewise, on rank 0: the manifest stands.
        self._absent = Absent()
        self._unsaved = outcome.Unsaved(place.rank)
        self._stop = threading.Event()
        self._wake = ReentrantEvent()
        self.poll_s, self._idle_s = polls_s(place.world_size)
        self.reconnect_s = RECONNECT_S
        self.own_wait_ns = OWN_WAIT_NS
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
            played, error = attempt(self._run_round_if_requested)
            if error is not None:
                self._recover(error)
            elif not played:
                # One rank has nobody to listen to: it sleeps until its own request comes.
                self._wake.wait(self._idle_s if self._place.world_size > 1 else None)
        attempt(self._leave)

    def _leave(self) -> None:
        """Tell the others that no answer comes from here. A round may have begun that this rank has not seen."""
        if self._store is not None and self._place.world_size > 1:
            round_ = self._round(self._store)
            self._settle_committed(round_)
            round_.leave(Left.LOST if self._spoiled else Left.FINISHED, self._voted)

    def _round(self, store: KeyStore) -> Round:
        return Round(store, self._generation, self._place.rank, self._place.world_size)

    def _recover(self, error: Exception) -> None:
        """Let the training thread go. The other ranks learn it when the store can be reached again."""
        self._gate.release()
        # Between two rounds nothing broke off: a generation skipped here would be one where all others wait for us.
        was_spoiled, self._spoiled = self._spoiled, self._entered
        if isinstance(error, StoreLostError):
            self._store = None
            reason = "the ranks' store is gone: %s" % error
        else:
            note("the agreement", error)
            reason = "%s: %s" % (type(error).__name__, error)
        if self._requests.request is not None:
            if self._committed is not None and not was_spoiled:
                self._close_saved(self._committed)
            else:
                self._close_unsaved(Phase.FAILED, {"abort": reason})
        self._gate.settle()
        self._stop.wait(self.reconnect_s)

    def _settle_committed(self, round_: Round) -> None:
        """What became whole before the store was lost: the others wait for the word of it."""
        if self._committed is not None:
            round_.settle(Phase.OUTCOME, self._committed)

    def _run_round_if_requested(self) -> bool:
        """Play one round if this rank or another was asked. False: nobody was."""
        request = self._requests.request
        if self._store is None:
            self._store = self._connect()
            if self._store is None:
                if request is not None and time.monotonic_ns() > request.deadline_ns:
                    self._close_unsaved(Phase.ABORTED, {"abort": "the ranks have no common store yet"})
                return False
            self._lacking()  # Who asks is counted.
        round_ = self._round(self._store)
        if self._spoiled:
            self._settle_committed(round_)
            round_.let_go(Left.LOST, self._voted)
            self._spoiled = False
            self._next_generation()
            return False
        notice = round_.notice()
        if notice is None:
            if request is None or self._lacks_rank(request):
                return False
            notice = round_.announce(notice_of(request, self._boot_id, time.monotonic_ns()))
        self._entered = True
        request = self._requests.adopt(request_of_notice(notice, self._boot_id, time.monotonic_ns()))
        round_.harden(request)
        self._end(*self._run_round(round_))
        return True

    def _lacks_rank(self, request: CheckpointRequest) -> bool:
        """Whether the script asked for what not all ranks would save, or not yet: nobody shall stand still for it."""
        told = self._lacking() if request.is_own else None
        if told:
            self._close_unsaved(Phase.ABORTED, {"abort": told})
        return told is not None

    def _end(self, ending: Phase, verdict: Verdict) -> None:
        """Ack the end of the round, and stand still where the incident is a halt."""
        final = self._request
        self._next_generation()
        if ending is Phase.SAVED:
            self._close_saved(verdict)
        else:
            self._close_unsaved(ending, verdict)
        self._save_at_step.note_end(ending is Phase.FAILED)
        self._gate.settle()
        if final.exit_after and ending is not Phase.ABORTED:
            self._requests.halt(final.incident)
            # A rank that was ordered to park with its save does so already; this reaches the others.
            self._gate.order(order_of(final, self._gate.step, final.checkpoint, save=False, park=True))

    def _close_saved(self, verdict: Verdict) -> None:
        record, step = self._save_at_step.dated(verdict["record"]), int(verdict["step"])
        self._unsaved.forget()
        self._requests.close(Phase.SAVED.value, step=step, checkpoint=record)
        self._on_saved(record, step)

    def _close_unsaved(self, ending: Phase, verdict: Verdict) -> None:
        """Ack why nothing is saved. What the script asked for and does not get is said where it runs, too."""
        reason = clip(verdict["abort"])
        has_ended = self._gate.finished or verdict.get("left") == Left.FINISHED.name  # Anywhere: each run ends once.
        self._unsaved.say(reason if self._request.incident.startswith(OWN) else "", is_silent=has_ended)
        step = {"step": verdict["step"]} if "step" in verdict else {}
        self._requests.close(ending.value, reason=reason, **step)

    def _next_generation(self) -> None:
        self._generation += 1
        self._entered, self._voted, self._committed = False, False, None

    # One round, phase after phase. StoreLostError and OSError end it from outside.

    @property
    def _request(self) -> CheckpointRequest:
        request = self._requests.request
        assert request is not None, "a round has an open incident"
        return request

    def _run_round(self, round_: Round) -> Tuple[Phase, Verdict]:
        """Take part in a round; return how it ended, and the verdict of that with this rank's step."""
        step = self._gate.step
        if not self._gate.finished and self._request.checkpoint == "none":
            return Phase.DECLINED, {"abort": "no checkpoint was asked for", "step": step}
        if not self._gate.finished and not self._save_at_step.can_save():
            return Phase.DECLINED, {"abort": "this loop has no way to save", "step": step}
        verdict = self._agree(round_)
        if round_.follow(verdict) is Phase.READY:
            target = int(verdict["target"])
            verdict = self._gather(round_, target)
            if round_.follow(verdict) is Phase.WRITTEN:
                return self._save(round_, self._ordered(verdict))
        self._gate.release()
        return round_.phase, dict(verdict, step=self._gate.step)

    def _save(self, round_: Round, order: Order) -> Tuple[Phase, Verdict]:
        """Have this rank's part written, make it durable, and learn what became of the whole."""
        self._requests.report("saving", step=order.step)
        self._gate.order(order)
        verdict = self._await_own_part(round_)
        result = self._gate.result
        until_ns = max(time.monotonic_ns(), order.deadline_ns) + FINISH_LIMIT_NS
        if verdict is None:
            verdict = self._report_part(round_, result, until_ns)
        if round_.follow(verdict) is Phase.OUTCOME:
            assert result is not None, "a written part has a result"
            assert result.path is not None, "a written part has a place"
            verdict = self._secure(round_, order, result.path, until_ns)
            if round_.follow(verdict) is Phase.SAVED:
                self._harden(verdict)
        return round_.phase, dict(verdict, step=order.step)

    def _agree(self, round_: Round) -> Verdict:
        """Promise this rank's position and wait for the target step."""
        if self._gate.finished:
            return self._give_up(round_)
        until_ns = min(self._request.deadline_ns, time.monotonic_ns() + AGREE_LIMIT_NS)
        verdict = round_.verdict(Phase.POSITION)  # A rank that slept through it finds it decided, always as an abort.
        if verdict is None:
            step = self._gate.promise(MARGIN_STEPS, max(until_ns, self._request.deadline_ns))
            round_.post(Phase.POSITION, {"step": step})
            verdict = self._await_verdict(round_, lambda: until_ns, "no agreement on a step")
        if "abort" not in verdict:
            self._gate.aim(verdict["target"])
            self._requests.report("agreed", step=int(verdict["target"]))
        return verdict

    def _gather(self, round_: Round, target: int) -> Verdict:
        """Wait until every rank stands at the target and can write."""
        still = self._absent.still(round_) if self._request.is_own else None
        if still is not None:
            return round_.settle(Phase.READY, {"abort": still})
        late, gate = "time ran out before step %d" % target, self._gate
        while gate.arrived is None and gate.busy() and time.monotonic_ns() < self._request.deadline_ns:
            if round_.verdict(Phase.READY) is not None:  # The others have given this rank up.
                break
            self._pause(round_)
        arrived = gate.arrived
        if arrived is None:
            return self._give_up(round_, None if gate.finished else late)
        step, error, harmed = arrived["step"], arrived.get("error"), arrived.get("harmed")
        error = error or (self._doubt(round_, step, harmed) if harmed else None)
        self._share(round_)  # The verdict of this phase names kind and exit for everyone.
        if not error:
            kind = "suspect" if round_.hardened(self._request).checkpoint == "suspect" else "good"
            error = self._save_at_step.try_disk(step, kind, arrived["rank_state"])
        tokens = position_of(arrived).get("tokens_own")
        times = self._save_at_step.times(self._request)
        post = {"step": step, "error": error, "tokens": tokens, "trained_finite": harmed == "", "times": times}
        round_.post(Phase.READY, post)
        stands_ns = time.monotonic_ns()
        verdict = self._await_verdict(round_, lambda: self._patience_ns(stands_ns), late)
        if "abort" in verdict:
            self._save_at_step.clear_trial(step)
            if self._request.is_own and time.monotonic_ns() > self._patience_ns(stands_ns):
                self._absent.note(round_)
        else:
            self._absent.clear()
        return verdict

    def _patience_ns(self, stands_ns: int) -> int:
        """Until when a rank that stands at the step waits for the others: for the script's own request not as long."""
        own_ns = stands_ns + self.own_wait_ns
        return min(self._request.deadline_ns, own_ns) if self._request.is_own else self._request.deadline_ns

    def _doubt(self, round_: Round, step: int, harmed: str) -> Optional[str]:
        """A trained parameter is not finite: a governor gets a suspect checkpoint, and the script, if it asked, none.

        A script that keeps its newest checkpoints would delete the last good one for it.
        """
        request = round_.hardened(self._request)
        if request.checkpoint != "good":
            return None
        told = "parameter %s is not finite" % harmed
        if request.is_own:
            return clip(told)
        print_line("rank %d, step %d: %s: it is saved as suspect" % (self._place.rank, step, told))
        suspect = request._replace(checkpoint="suspect")
        round_.harden(suspect)
        self._requests.harden(suspect)
        return None

    def _ordered(self, verdict: Verdict) -> Order:
        if verdict["suspect"]:
            self._requests.harden(self._request._replace(checkpoint="suspect"))
        self._harden(verdict)
        # The verdict alone names the tag: a request merged meanwhile on one rank must not split the shards.
        kind = "suspect" if verdict["suspect"] else "good"
        park, waits = verdict["exit"] is not None, kind == "good" and verdict.get("waits") is True
        return order_of(self._request, int(verdict["step"]), kind, save=True, park=park, waits=waits)

    def _harden(self, verdict: Verdict) -> None:
        if verdict["exit"] is not None:
            self._requests.harden(self._request._replace(exit_after=True, exit_code=int(verdict["exit"])))

    def _await_own_part(self, round_: Round) -> Optional[Verdict]:
        """Wait until the training thread has saved or left; return the verdict of a rank that failed meanwhile."""
        verdict = None
        while verdict is None and self._gate.result is None and self._gate.busy():
            self._pause(round_)
            # A rank that failed says so at once: others may sit in a collective of the save for as long as it lasts.
            verdict = round_.verdict(Phase.WRITTEN)
        return verdict

    def _report_part(self, round_: Round, result: Optional[Result], until_ns: int) -> Verdict:
        error = "the training thread left before the save" if result is None else result.error
        if error:
            return round_.settle(Phase.WRITTEN, {"abort": clip("rank %d: %s" % (self._place.rank, error))})
        round_.post(Phase.WRITTEN, {"error": None})
        return self._await_verdict(round_, lambda: until_ns, "not every part was written")

    def _secure(self, round_: Round, order: Order, path: str, until_ns: int) -> Verdict:
        """Make this rank's share durable, vote, and wait for rank 0's commit."""
        self._save_at_step.clear_trial(order.step)  # Of the other kind, where a request changed the kind since.
        place = self._place
        round_.post(Phase.OUTCOME, outcome.vote_of(place, order, path))
        self._voted = place.rank != 0
        if self._voted:
            late = "rank 0 did not commit the checkpoint"
            verdict = self._await_verdict(round_, lambda: until_ns + FINISH_LIMIT_NS, late)
        else:
            verdict = self._commit(round_, order, path, until_ns)
        if place.local_rank == 0 and "record" in verdict:  # This node's directory may be its own.
            _, error = attempt(self._save_at_step.publish, path, order.step, verdict["record"]["kind"])
            if error is not None:
                print_line("checkpoint %s stays where it was written: %s" % (path, error))
        return verdict

    def _commit(self, round_: Round, order: Order, path: str, until_ns: int) -> Verdict:
        """On rank 0: commit once every rank's files are durable, and settle the outcome."""
        while not round_.complete(Phase.OUTCOME) and time.monotonic_ns() <= until_ns:
            given_up = round_.verdict(Phase.OUTCOME)
            if given_up is not None:
                return given_up
            self._pause(round_)
        self._share(round_)
        arrived = self._gate.arrived or {}
        verdict = outcome.commit(round_, order, path, self._place, self._request, arrived, self._save_at_step)
        if "record" in verdict:
            self._committed = verdict
        return round_.settle(Phase.OUTCOME, verdict)

    def _await_verdict(self, round_: Round, until_ns: Callable[[], int], late: str) -> Verdict:
        """Wait for the present phase's verdict. Past its time, abort for everyone, or learn who was faster."""
        phase = round_.phase
        again_ns = time.monotonic_ns() + _DECIDE_AGAIN_NS
        while True:
            verdict = round_.verdict(phase)
            if verdict is not None:
                return verdict
            now_ns = time.monotonic_ns()
            if phase is Phase.POSITION and self._gate.finished:  # No step is left that could be agreed on.
                return self._give_up(round_)
            if now_ns > until_ns():
                return round_.abort(phase, late)
            if now_ns > again_ns:
                again_ns = now_ns + _DECIDE_AGAIN_NS
                if round_.complete(phase):
                    round_.decide(phase)
            self._pause(round_)

    def _give_up(self, round_: Round, why: Optional[str] = None) -> Verdict:
        """This rank cannot go on, None: because its loop has ended. Abort for everyone."""
        left, told = (Left.FINISHED, Left.FINISHED.value) if why is None else (None, why)
        verdict = round_.abort(round_.phase, "rank %d: %s" % (self._place.rank, told), left)
        return verdict if "abort" in verdict else {"abort": told}

    def _share(self, round_: Round) -> None:
        """Tell the other ranks what a request merged here has added."""
        if self._requests.take_changed():
            round_.harden(self._request)

    def _pause(self, round_: Round) -> None:
        self._share(round_)
        self._wake.wait(self.poll_s)
