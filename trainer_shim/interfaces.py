"""What engines (hooks, savers) and the watcher (socket, signal, agreement) ask of each other."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Protocol, runtime_checkable


class Saver(Protocol):
    """How one kind of engine saves and restores; the watcher calls it on the training thread.

    engines/base.py has what most kinds share. What is not known a kind says it does not know: nothing here may be left
    out, since what judges a checkpoint would be left out with it.
    """

    directory: Optional[str]  # Where checkpoints go; None = this engine cannot save by itself.
    loaded_from: Optional[str]  # Where the script, or resume(), has loaded from.
    cannot_load: Optional[str]  # What resume() says where that is another reason than a missing directory.

    def homes(self) -> List[str]:
        """Return the directories in which this training's own checkpoints are. Empty: it is not known yet."""

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        """Write this rank's part of checkpoint `tag`. Collective: every rank calls it at the same step.

        Must not move DeepSpeed's `latest` file. Raises whatever the engine raises.
        """

    def pending(self) -> bool:
        """True while an asynchronous (decoupled) checkpoint engine has not made the last save durable."""

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        """Load checkpoint `tag` on every rank and return the client_state given to save()."""

    def position(self) -> Dict[str, Any]:
        """Return this rank's data position and token count as JSON values. Call on the training thread."""

    def restore_position(self, position: Dict[str, Any]) -> None:
        """Continue from what position() returned. Call after load(), and after generator states were restored."""

    def contents(self) -> Dict[str, Any]:
        """Return facts for the manifest: `parameters`, and `bytes_min`, what its files hold at least. {}: not known."""

    def look_at_start(self) -> None:
        """Before the first step: see what is not finite from the start."""

    def harmed(self) -> Optional[str]:
        """Return the first trained parameter that is not finite, "" where all are finite, None where nobody knows."""

    def join_ranks(self) -> None:
        """Let the ranks meet where resume() comes before the framework has done that."""


@runtime_checkable
class OwnCheckpoints(Protocol):
    """What a Saver also has where the script saves by the framework's own means, and that can be continued from."""

    def own_checkpoints(self, directory: str) -> List[Dict[str, Any]]:
        """Return manifests (step, path, kind) of whole checkpoints there, and where it else saves, without ours."""


@runtime_checkable
class NamedCheckpoints(Protocol):
    """What a Saver also has where it can load a checkpoint that the framework has saved and the script names."""

    def named_checkpoint(self, path: str) -> Optional[Dict[str, Any]]:
        """Return the manifest (step, path) of the framework's own checkpoint at `path`; None: it is none.

        A step of None is known only after load(). Raises, with a reason for people, where it is one that cannot be
        gone on from.
        """


@runtime_checkable
class OwnPlaces(Protocol):
    """A saver of which resume() without a path looks elsewhere, too, than in its own directory."""

    def resume_places(self) -> List[str]:
        """Return those directories as they are now."""


@runtime_checkable
class OwnMeans(OwnCheckpoints, Protocol):
    """What a Saver also has where a framework saves and loads by its own means (delegate mode).

    Its load() lets the framework's next training continue from there, with the framework's generators and data.
    """

    def final_path(self, path: str, step: int, kind: str) -> str:
        """Return where the staged checkpoint `path` belongs once it is whole and durable."""

    def discard(self, step: int) -> None:
        """The save of `step` has failed, and all ranks have left it: remove what is staged of it. Raises OSError."""

    def resume_directory(self) -> str:
        """Return where the framework keeps its checkpoints."""


class Resumed(NamedTuple):
    """What training continues from. `tokens_total` None: the checkpoint does not know it. `age_s` by wall time."""

    step: int
    tokens_total: Optional[int]
    path: str
    position: Optional[Dict[str, Any]]
    age_s: float

    def __repr__(self) -> str:
        """Without the position, which holds the state of each rank's generators: hundreds of numbers."""
        return "Resumed(step=%d, tokens_total=%r, path=%r, age_s=%.0f)" % (
            self.step,
            self.tokens_total,
            self.path,
            self.age_s,
        )


class Watch(Protocol):
    """What attach() and an instrumented engine call, on the training thread.

    A hook returns at once and never raises. Exceptions: at_boundary() and wants_save() may hold the thread, start()
    and resume() raise, close() may wait.
    """

    def start(self) -> None:
        """Begin to watch. Raises what prevents it: attach() reports that."""

    def hello_field(self, name: str, value: Any) -> None:
        """Add or change a hello field before or after start; a change after start resends hello."""

    def hello_fields(self, fields: Mapping[str, Any]) -> None:
        """As hello_field() for each, in one hello: none goes out with a part of them."""

    def step_frame(self, fields: Dict[str, Any]) -> None:
        """Send a `step` frame; `fields` are the wire's, without the head and `dropped`."""

    def phase_changed(self) -> None:
        """Send a `phase` frame from Progress as it stands now."""

    def step_over(self, step: int) -> None:
        """Call where step `step` (absolute) ended, if at_boundary() for it comes later. The last call counts.

        A resumed loop goes on from here: the random numbers that it draws until at_boundary() are the next step's, and
        are drawn again.
        """

    def at_boundary(self, step: int) -> None:
        """Call on the training thread after optimizer update `step` (absolute) completed, on every rank.

        Fast path: two compares. When a checkpoint was asked for it may hold this thread until the ranks agree,
        save at the agreed step, and (exit_after) park it until the process is ended.
        """

    def before_evaluation(self, step: int) -> None:
        """Call where the evaluation of step `step` comes next, and at_boundary() for it behind that: on every rank.

        As at_boundary, but what fits well into the time that is left waits for it. A resumed run has not to make up for
        an evaluation then.
        """

    def waits_for_evaluation(self) -> bool:
        """Delegate mode: as before_evaluation, for what wants_save() has told and is not saved yet. False: save now."""

    def ends_with_save(self) -> bool:
        """Delegate mode: whether what wants_save() has told is a halt's. Then delegate_saved() does not return."""

    def wants_save(self, step: int) -> Optional[str]:
        """Delegate mode (HF Trainer): as at_boundary, but at the agreed step return its kind instead of saving.

        Before its next step the caller saves by its own means on every rank, and then calls `delegate_saved`.
        """

    def delegate_saved(self, path: Optional[str], error: Optional[str]) -> None:
        """Delegate mode: the framework saved to the staged directory `path`, or its own, or failed with `error`.

        It goes to OwnMeans.final_path() when every rank's part is durable.
        """

    def checkpoint(self) -> None:
        """Ask for a whole, durable checkpoint at the next step that all ranks agree on. See Shim.checkpoint."""

    def resume(self, directory: Optional[str] = None) -> Optional[Resumed]:
        """Continue from the newest whole checkpoint in `directory` (default: where this engine saves).

        `directory` may be a checkpoint itself. Collective, before the first step. None when there is nothing to
        continue from. Raises what the engine's load raises, and FileNotFoundError where the script names a path that
        holds nothing.
        """

    def finish(self, reason: str, completed: bool) -> None:
        """Say bye, and set the outermost phase to `finish` until a step comes. Idempotent."""

    def close(self) -> None:
        """End: threads, socket, signal. Idempotent."""


class NoWatch:
    """The watch of a run that nobody watches, and a base for watches that need a few of the methods only."""

    def start(self) -> None:
        """Nothing starts."""

    def hello_field(self, name: str, value: Any) -> None:
        """Nobody to tell."""

    def hello_fields(self, fields: Mapping[str, Any]) -> None:
        """One after the other, to whoever overrides that."""
        for name, value in fields.items():
            self.hello_field(name, value)

    def step_frame(self, fields: Dict[str, Any]) -> None:
        """Nobody to tell."""

    def phase_changed(self) -> None:
        """Nobody to tell."""

    def step_over(self, step: int) -> None:
        """Nobody asks."""

    def at_boundary(self, step: int) -> None:
        """Nobody asks."""

    def before_evaluation(self, step: int) -> None:
        """Nobody asks."""

    def waits_for_evaluation(self) -> bool:
        """Nothing ends it meanwhile."""
        return True

    def ends_with_save(self) -> bool:
        """Nobody halts it."""
        return False

    def wants_save(self, step: int) -> Optional[str]:
        """Nobody asks."""
        return None

    def delegate_saved(self, path: Optional[str], error: Optional[str]) -> None:
        """Nobody to tell."""

    def checkpoint(self) -> None:
        """Nobody saves."""

    def resume(self, directory: Optional[str] = None) -> Optional[Resumed]:
        """Nothing is found."""
        return None

    def finish(self, reason: str, completed: bool) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Nothing to end."""
