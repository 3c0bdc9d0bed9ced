"""What the training thread does at a raised gate: wait, save, park. try_disk() and clear_trial() run beside it."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from trainer_shim.governor_socket import GovernorSocket, clip
from trainer_shim.guard import attempt, flush_stdout, guarded, print_line
from trainer_shim.interfaces import OwnMeans, Saver
from trainer_shim.progress import Progress
from trainer_shim.signal_wakeup import defer_end, end_by

from . import checkpoint, patience, rng
from .open_requests import CheckpointRequest
from .publish import publish
from .step_gate import Order, Result, StepGate

GONE_NS = 30_000_000_000  # A parked rank without a governor for so long ends itself.
OVERDUE_NS = 60_000_000_000  # So does one that is parked so long after the deadline.
# What is written behind the training thread counts as failed so long after the deadline: other ranks wait no longer.
PENDING_NS = 600_000_000_000
_UNWRITTEN = "what writes it behind the training thread has not ended %d s after it was due"
_NAP_S = 0.25
_FULL_BYTES = 2**20  # A file system may keep less than that back, and say that it has some left.


class SaveAtStep:
    """One rank's saver, and what it was ordered to do with it."""

    def __init__(
        self,
        rank: int,
        gate: StepGate,
        progress: Progress,
        saver: Optional[Saver],
        governor: GovernorSocket,
        is_alone: bool = False,
    ) -> None:
        self._rank = rank
        self._gate = gate
        self._progress = progress
        self._saver = saver
        self._governor = governor
        self.wake: Callable[[], None] = _nobody  # Wakes the agreement: the training thread got somewhere.
        self.tokens_total: Optional[int] = None  # As of the last step frame.
        self._delegate = False  # A framework saves by its own means: see interfaces.Watch.wants_save.
        self._delegated: Optional[Order] = None
        self._postponed: Optional[Order] = None  # Until the evaluation of its step is over.
        self._generators: Tuple[Optional[int], Dict[str, Any]] = (None, {})  # As they were where that step ended.
        self._made: Optional[str] = None  # The directory of the save under way, if this rank was the first there.
        self._unfinished: Optional[str] = None  # Likewise, of one that has failed.
        self._is_alone = is_alone  # No other rank has a part in a save.
        self._staged: Optional[int] = None  # Delegate mode: the step of the last save.
        self._failed: Optional[int] = None  # Likewise, of one that has failed and may lie where it was staged.
        self._failed_at = 0  # The step at which that, or `_unfinished`, was learned.
        self._captured_ns = 0  # When the last save began: later work is not in it, however long it is written.
        self._draining: Optional[Tuple[Order, Result]] = None  # Saved by an asynchronous writer, not yet durable.
        self._asked_to_end: Optional[List[int]] = None  # SIGTERMs since an order to save and park, or to park.
        self.hold_s = 0.0  # Total time the training thread was held for an agreement.
        self.checkpoint_s = 0.0  # Total time it spent saving for us.

    def note_tokens(self, total: Optional[int]) -> None:
        """So many tokens were trained by the last step. None: it is not known."""
        self.tokens_total = total

    @guarded()
    def keep_generators(self, step: int) -> None:
        """Step `step` ends here, and may be saved at its boundary: the generators' states are those of now."""
        self._generators = (step, rng.capture())

    def delegate(self) -> None:
        """From here on a framework saves by its own means."""
        self._delegate = True

    def directory(self) -> Optional[str]:
        """Where we save. None also in delegate mode: the framework reports the place afterwards."""
        return None if self._saver is None or self._delegate else self._saver.directory

    def can_save(self) -> bool:
        """Whether asking for a checkpoint makes sense."""
        return self._delegate or self.directory() is not None

    def try_disk(self, step: int, kind: str, rank_state: Dict[str, Any]) -> Optional[str]:
        """Stage this rank's own file before the collective save begins; return what went wrong.

        A full disk is cheaper to learn of now: one rank that fails inside the save leaves the others in its barrier.
        """
        directory = self.directory()
        if directory is None:  # Delegate mode: the framework knows the place.
            return None
        path = os.path.join(directory, checkpoint.tag_of(step, kind))
        self.clear_trial(step)  # An attempt that died here may have left one.
        self._remove_unfinished()
        try:
            os.makedirs(directory, exist_ok=True)
            self._made = path if _made(path) else None
            checkpoint.stage_rank_file(path, self._rank, rank_state)
        except OSError as error:
            attempt(os.rmdir, path)  # Not where another rank has staged its own: that one clears it.
            return clip("cannot write to %s: %s" % (path, error.strerror or error))
        return None

    def times(self, request: CheckpointRequest) -> Dict[str, Any]:
        """Return what this rank posts about how long the save may wait."""
        return patience.times_of(self._progress, request.deadline_ns - time.monotonic_ns(), request.is_own)

    def clear_trial(self, step: int) -> None:
        """Remove what try_disk() left of a step that is not saved, or is saved as the other kind."""
        directory = self.directory()
        if directory is not None:
            for kind in ("good", "suspect"):
                checkpoint.discard_staged_file(os.path.join(directory, checkpoint.tag_of(step, kind)), self._rank)

    def dated(self, record: Dict[str, Any]) -> Dict[str, Any]:
        """Say of the saved checkpoint of which moment it is, by this node's clock."""
        return dict(record, mono_ns=self._captured_ns)

    def note_end(self, has_failed: bool) -> None:
        """Know what became of the save, once all ranks do: a rank that lost the store does not."""
        made, self._made = self._made, None
        staged, self._staged = self._staged, None
        if has_failed:
            self._unfinished, self._failed = made or self._unfinished, staged
            self._failed_at = self._progress.step

    @guarded()
    def step_passed(self, step: int) -> None:
        """All that step `step` has computed is known, by every rank: none is still within a save of an earlier one."""
        if step <= self._failed_at:
            return
        if self._unfinished is not None:
            self._remove_unfinished()
        failed, self._failed = self._failed, None
        if failed is not None and isinstance(self._saver, OwnMeans):
            self._saver.discard(failed)

    def _remove_unfinished(self) -> None:
        """Remove the directory of a save that has failed, if this rank made it: a full disk has no room else.

        Not where it is whole all the same: this rank may have learned of an end that rank 0 did not see.
        """
        if self._unfinished is None or self._pending()[0]:  # Something may still write there.
            return
        unfinished, self._unfinished = self._unfinished, None
        if not checkpoint.is_whole(unfinished):
            attempt(shutil.rmtree, unfinished)

    def publish(self, path: str, step: int, kind: str) -> str:
        """Give a committed checkpoint the name under which it stays, and return that. Raises OSError."""
        if not self._delegate or not isinstance(self._saver, OwnMeans):
            return path
        final = self._saver.final_path(path, step, kind)
        if os.path.isdir(path):  # Else the ranks share the directory, and the first one has done it.
            publish(path, final)
        return final

    @guarded()
    def delegate_saved(self, path: Optional[str], error: Optional[str]) -> None:
        """The framework saved to `path`, or failed: report it and park if ordered."""
        order, self._delegated = self._delegated, None
        if order is None:
            return
        if error is None and path is not None:
            # The framework keeps its own generator states; tokens and data position are ours.
            _, failure = attempt(checkpoint.write_rank_file, path, self._rank, self._rank_state())
            error = None if failure is None else _worded(failure)
        self._gate.saved(Result(path, error or (None if path else "the framework did not say where it saved")))
        self.wake()
        if order.park:
            self._park(order)

    @guarded(fallback=True)
    def waits_for_evaluation(self) -> bool:
        """Delegate mode: whether what the framework was told to save may wait for the evaluation that comes next."""
        order = self._delegated
        if order is None or order.waits:
            return True
        self._say_saved_before(order)
        return False

    def ends_with_save(self) -> bool:
        """Delegate mode: whether this rank parks once the framework has saved."""
        return self._delegated is not None and self._delegated.park

    def _say_saved_before(self, order: Order) -> None:
        if self._rank == 0:
            patience.say_saved_before(order.step)

    @guarded()
    def hold(self, step: int, delegate: bool, evaluates: bool = False) -> Optional[str]:
        """Hold, save and park as ordered. The checkpoint's kind where the framework has to save it (delegate mode).

        With `evaluates` the step's evaluation comes next: what fits behind it is saved at the next call.
        """
        if self._delegated is not None:
            self._delegated = None
            self._gate.saved(Result(None, "the framework did not save when asked"))
        if self._draining is not None:
            self._drain(*self._draining)
            return None
        postponed, self._postponed = self._postponed, None
        order = postponed or self._stand(step)
        if order is None:
            return None
        if order.park and self._asked_to_end is None:
            # From here: a SIGTERM while it saves must end this rank when that is durable, and not before.
            self._asked_to_end = defer_end(lambda: self._gate.settled)
        if evaluates and order.save and order.waits and postponed is None:
            self.clear_trial(order.step)  # The generators are others behind it.
            self._postponed = order
            return None
        if evaluates and order.save:
            self._say_saved_before(order)
        self._captured_ns = time.monotonic_ns()
        if order.save and delegate:
            self._delegated, self._staged = order, order.step
            return order.kind
        if order.save:
            self._save(order)
        if order.park:
            self._park(order)
        return None

    def _stand(self, step: int) -> Optional[Order]:
        held_from_ns: Optional[int] = None

        def waiting() -> None:
            nonlocal held_from_ns
            held_from_ns = time.monotonic_ns()
            self._enter("agree")

        try:
            return self._gate.stand(step, self._arrival, waiting)
        finally:
            if held_from_ns is not None:
                self.hold_s += (time.monotonic_ns() - held_from_ns) / 1e9
                self._leave()

    def _arrival(self) -> Dict[str, Any]:
        self.wake()
        state, error = attempt(self._rank_state)
        if error is not None:
            return {"error": _worded(error)}
        seen: Dict[str, Any] = {"rank_state": state, "tokens_total": self.tokens_total, "contents": {}, "harmed": None}
        if self._saver is not None:
            seen["contents"] = attempt(self._saver.contents)[0] or {}
            # None where it cannot be known: "" says that all trained weights are finite.
            seen["harmed"], _ = attempt(self._saver.harmed)
        return seen

    def _rank_state(self) -> Dict[str, Any]:
        position = None if self._saver is None else self._saver.position()
        step, states = self._generators
        is_known = step == self._progress.step
        return {"v": 1, "rng": states if is_known else rng.capture(), "position": position}

    def _save(self, order: Order) -> None:
        began_ns = time.monotonic_ns()
        self._enter("checkpoint")
        result = Result(None, "the save was interrupted")
        try:
            result = self._saved(order)
        finally:
            self._leave()
            self.checkpoint_s += (time.monotonic_ns() - began_ns) / 1e9
            self._drain(order, result)

    @guarded()
    def finish(self) -> None:
        """The training loop has ended. What was being written may be written: scripts wait for it there."""
        if self._draining is not None:
            self._drain(*self._draining)

    def _drain(self, order: Order, result: Result) -> None:
        """Report a save once its files are written. An asynchronous engine needs further steps for that."""
        while result.error is None:
            pending, failure = self._pending()
            if failure is not None:
                result = Result(None, failure)
            if not pending:
                break
            # A parked rank takes no further step: it waits here.
            if not order.park and time.monotonic_ns() <= order.deadline_ns + PENDING_NS:
                self._draining = (order, result)
                return
            if not order.park:
                result = Result(None, _UNWRITTEN % (PENDING_NS // 1_000_000_000))
            elif time.monotonic_ns() > order.deadline_ns + OVERDUE_NS:
                result = Result(None, "the asynchronous checkpoint engine did not finish")
            self._gate.nap(_NAP_S)
        self._draining = None
        if result.error is not None and self._is_alone:  # What the script saves next needs the room.
            self.note_end(has_failed=True)
            self._remove_unfinished()
        self._gate.saved(result)
        self.wake()

    def _saved(self, order: Order) -> Result:
        saver, directory = self._saver, self.directory()
        if saver is None or directory is None:
            return Result(None, "this loop has no way to save")
        path = os.path.join(directory, order.tag)
        if self._rank == 0:
            checkpoint.discard_manifest(path)  # Another attempt may have saved this step: its files are overwritten.
        _, failure = attempt(self._write_rank_file, path)
        facts = {"step": order.step, "tokens_total": self.tokens_total, "kind": order.kind, "incident": order.incident}
        # Collective: this rank takes part even if its own small file failed, or the others would wait for ever.
        _, error = attempt(saver.save, directory, order.tag, {"costgov": facts})
        error = error or failure
        return Result(path, None if error is None else clip(_if_full(directory) + _worded(error)))

    def _write_rank_file(self, path: str) -> None:
        # try_disk() wrote it already, unless a request has changed the kind, and so the tag, since.
        if checkpoint.place_rank_file(path, self._rank):
            return
        os.makedirs(path, exist_ok=True)
        checkpoint.write_rank_file(path, self._rank, self._rank_state())

    def _pending(self) -> Tuple[bool, Optional[str]]:
        """Whether it is still being written, or what has become of the writing."""
        if self._saver is None:
            return False, None
        pending, error = attempt(self._saver.pending)
        return bool(pending), None if error is None else _worded(error)

    def _park(self, order: Order) -> None:
        """Stand still until somebody ends this process. When nobody comes, end it: nothing trains on after a halt."""
        asked_to_end = self._asked_to_end
        self._enter("idle")
        began_ns = time.monotonic_ns()
        while not self._may_leave(order, began_ns):
            if asked_to_end and self._gate.settled:
                end_by(asked_to_end[0])
            self._gate.nap(_NAP_S)
        print_line("halted by %s: exit %d with nobody left to end this rank" % (order.incident, order.exit_code))
        flush_stdout()
        os._exit(order.exit_code)

    def _may_leave(self, order: Order, began_ns: int) -> bool:
        now_ns = time.monotonic_ns()
        lost_ns = self._governor.lost_since_ns
        gone = lost_ns is not None and now_ns - max(lost_ns, began_ns) > GONE_NS
        overdue = now_ns > max(order.deadline_ns, began_ns) + OVERDUE_NS
        return (gone or overdue) and self._gate.settled

    def _enter(self, phase: str) -> None:
        self._progress.push_phase(phase)
        self._governor.post_phase(self._progress)

    def _leave(self) -> None:
        self._progress.pop_phase()
        self._governor.post_phase(self._progress)


def _made(path: str) -> bool:
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


def _nobody() -> None:
    """In place of an agreement that listens."""


def _worded(error: BaseException) -> str:
    by_rank = getattr(error, "failures", None)  # Of torch's CheckpointException, with tracebacks.
    if isinstance(by_rank, dict) and by_rank:
        rank, failed = next(iter(by_rank.items()))
        first = failed[0] if isinstance(failed, tuple) and failed else failed
        return clip("%s of rank %s: %s: %s" % (type(error).__name__, rank, type(first).__name__, first))
    return clip("%s: %s" % (type(error).__name__, error))


def _if_full(directory: str) -> str:
    """torch.save() says of a full disk which byte it expected where. A file system without blocks tells no size."""
    seen, _ = attempt(os.statvfs, directory)
    is_full = seen is not None and seen.f_blocks > 0 and seen.f_bavail * seen.f_frsize < _FULL_BYTES
    return "the disk is full: " if is_full else ""


def order_of(request: CheckpointRequest, step: int, kind: str, *, save: bool, park: bool, waits: bool = False) -> Order:
    """What the training thread does for a request at the step where it stands."""
    tag = checkpoint.tag_of(step, kind) if save else ""
    return Order(save, tag, kind, park, request.exit_code, request.deadline_ns, request.incident, step, waits)
