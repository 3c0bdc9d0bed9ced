"""Where a wrapped loader is: its epoch, the batches taken from it, and what drew their order."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from trainer_shim.guard import attempt, print_line

from . import loader_state, rng

_LOOKS: List[Callable[[Any], Any]] = []
_OF_OURS = frozenset(("epoch", "batches", "epoch_rng"))


class Made(NamedTuple):
    """An iterator of the loader's own, and what its order is drawn by, as it was before."""

    iterator: Iterator[Any]
    rng: Dict[str, Any]
    own: Optional[Dict[str, Any]]
    loaded: int  # How many positions had been loaded: behind the next one it is not of this order.


def look_at_each(look: Callable[[Any], Any]) -> Callable[[], None]:
    """Call `look` with each wrapped loader, as it is inside, when its first epoch begins. Return what ends that."""
    _LOOKS.append(look)

    def end() -> None:
        if look in _LOOKS:
            _LOOKS.remove(look)

    return end


def is_of_ours(state: Any) -> bool:
    """Whether state() has returned it, and not the loader itself."""
    return isinstance(state, dict) and state.keys() >= _OF_OURS


class Position:
    """The position in one loader. It stands beside the loader's own attributes, and takes no name from them."""

    def __init__(self, loader: Any, index: int) -> None:
        self.loader = loader
        self.index = index  # In the order in which the script wrapped its loaders.
        self.epoch = 0  # Epochs begun before the current one.
        self.batches = 0  # Handed out in the current epoch.
        self.starts = 0  # Of the loader's own iterator, in this process.
        self.running: Optional[Iterator[Any]] = None  # Of a loader that is an iterator itself: the last one of ours.
        self.is_untaken = False  # Since a position was loaded nothing was taken.
        self._held_back: Callable[[], int] = _none
        self._is_over: Optional[bool] = None
        self._is_asked = False  # Since a position was loaded an iterator was made, and nothing was taken from it.
        self._begun = False
        self._epoch_rng: Optional[Dict[str, Any]] = None  # As it was before the epoch's order was drawn.
        self._epoch_own: Optional[Dict[str, Any]] = None  # Likewise, of the loader's own: see loader_state.
        self._resume: Optional[Dict[str, Any]] = None
        self._loaded = 0

    def __getstate__(self) -> Dict[str, Any]:
        """A copy, or a pickle, asks no framework of this process."""
        return {**vars(self), "_held_back": _none, "running": None}

    def ask(self) -> None:
        """An iterator is made."""
        if self._resume is not None and self._is_over is not None:
            if self._is_asked:
                self._pass_over()
            self._is_asked = True

    def count_batch(self) -> None:
        """One more batch is handed out."""
        self.batches += 1

    def note_running(self, iterator: Iterator[Any]) -> None:
        """Remember the iterator of ours that next() goes on with."""
        self.running = iterator

    def exchange(self, loader: Any) -> None:
        """Another loader takes the first one's place."""
        self.loader = loader

    def hold_back(self, how_many: Callable[[], int]) -> None:
        """Ask `how_many` of the batches that were handed out a framework has fetched ahead of training."""
        self._held_back = how_many

    def count_epochs(self, is_over: bool) -> None:
        """A framework counts epochs by itself, and may be through with the one of the position that is loaded next.

        `is_over`: it is. Else a second iterator, with nothing taken from the first one, says so.
        """
        self._is_over = is_over

    def state(self) -> Dict[str, Any]:
        """Return the position: epoch, batches trained on in it, and the random state that drew its order."""
        if self._resume is not None:
            return dict(self._resume)
        held, _ = attempt(self._held_back)
        own, _ = attempt(loader_state.capture, self.loader)
        batches = max(0, self.batches - (held or 0))
        state = {"epoch": self.epoch, "batches": batches, "epoch_rng": self._epoch_rng}
        return {**state, "epoch_own": self._epoch_own, "own": own}

    def load(self, state: Dict[str, Any]) -> None:
        """Continue from `state`: the next batch handed out, by a running iterator too, is the one after it."""
        self.epoch = int(state["epoch"])
        self.batches = int(state["batches"])
        self._resume, self._is_asked = dict(state), False
        self._loaded += 1
        self.is_untaken = True
        if self._is_over:
            self._pass_over()
            return
        # A loop reads the loader's own epoch before it takes a batch.
        known = ((state.get("epoch_own") or {}).get("counts") or {}).get("epoch")
        if type(known) is int and type(getattr(self.loader, "epoch", None)) is int:
            attempt(setattr, self.loader, "epoch", known)

    def give_up(self) -> None:
        """The script has put the loader somewhere itself."""
        self._resume, self.is_untaken = None, False
        self._loaded += 1

    def _pass_over(self) -> None:
        """What comes next begins the epoch behind the loaded position."""
        resume, self._resume, self._begun = self._resume, None, True
        own = (resume or {}).get("own") or {}
        now = rng.capture()
        self._start_workers(own)
        rng.restore(now)
        attempt(loader_state.restore_generators, self.loader, own)

    def make(self) -> Made:
        """Make an iterator. Until a batch is taken from it no epoch begins: Lightning makes some that it drops."""
        drawn_by, (own, _) = rng.capture(), attempt(loader_state.capture, self.loader)
        return Made(iter(self.loader), drawn_by, own, self._loaded)

    def start_epoch(self, made: Optional[Made] = None) -> Iterator[Any]:
        """Return the loader's iterator at the position to start from. `made`: for an epoch from its beginning."""
        begun, self._begun = self._begun, True
        for look in list(_LOOKS) if not self.starts else ():
            attempt(look, self.loader)
        self.is_untaken = False
        resume, self._resume = self._resume, None
        if resume is None:
            self.starts += 1
            self.epoch += begun
            self.batches = 0
            if made is None or made.loaded != self._loaded:
                made = self.make()
            self._epoch_rng, self._epoch_own = made.rng, made.own
            return made.iterator
        # Drawing the order again takes random numbers that the interrupted run had taken long before.
        now = rng.capture()
        self._epoch_rng, self._epoch_own = resume.get("epoch_rng"), resume.get("epoch_own")
        self._begin_resumed(self._epoch_own or {})
        self.starts += 1
        iterator: Iterator[Any] = iter(self.loader)
        for _ in range(int(resume["batches"])):
            if next(iterator, iterator) is iterator:
                break  # The data set became shorter, and the epoch ends here.
        rng.restore(now)
        return iterator

    def _begin_resumed(self, own: Dict[str, Any]) -> None:
        """Put back what the order of the resumed epoch was drawn by."""
        loader = self.loader
        told, _ = attempt(loader_state.restore_counts, loader, own)
        for said, known in told or ():
            print_line(
                "the script set epoch %d, and the data goes on in epoch %d: begin the loop at loader.epoch, "
                "or the order of the next epochs differs" % (said, known)
            )
        self._start_workers(own)
        attempt(loader_state.restore_generators, loader, own)
        if self._epoch_rng is not None:
            rng.restore(self._epoch_rng)

    def _start_workers(self, own: Dict[str, Any]) -> None:
        """Let those that had lived on live before an epoch begins: it draws no seed for them then."""
        loader = self.loader
        if own.get("goes_on") and not (self.starts and loader_state.goes_on(loader)):
            print_line(
                "workers of persistent_workers=True begin anew: what they draw themselves (augmentation) differs"
            )
        if own.get("goes_on") and not loader_state.goes_on(loader):
            iter(loader)  # It starts them, and draws a seed for them, which a later epoch does not.
            if not loader_state.goes_on(loader):
                print_line("%s starts its workers with the first batch: the order differs" % type(loader).__name__)

    @property
    def repositioned(self) -> bool:
        """True while a loaded position waits for its first batch."""
        return self._resume is not None


def _none() -> int:
    return 0
