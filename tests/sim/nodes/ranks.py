"""The ranks of a run and their store, as the shim behaves.

One rank that is asked is enough, all save the same step, and no rank can agree without the store, which lives on the
node of rank 0. A rank that does what may take long keeps all others waiting inside their step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.events.checkpoints import SavedCheckpoint
from governor.core.events.fetch import Fetch
from governor.core.events.inputs import Ack, Beat, Bye, Hello, ProcessesSeen, Step, TrainerExited
from tests.sim.nodes.machines import (
    BEAT_NS,
    GRID_NS,
    JOB,
    NEXT_JOB,
    RANKS,
    RUN,
    SAVE_NS,
    STEP_NS,
    UID,
    Machine,
)
from tests.sim.nodes.stage import Stage

PHASES: Final = ("eval", "checkpoint", "compile")


@dataclass(frozen=True, slots=True)
class Pause:
    """What the first rank of a node does for so long, while all other ranks wait for it.

    "eval", "checkpoint", "compile": a phase. "data": it waits for a batch. "moves": its step is long, and goes on.
    "step": it stands still. "quiet": it is stopped, and no rank of its node sends a beat.
    """

    kind: str
    node: int
    since: float
    until: float


class Ranks:
    def __init__(self, stage: Stage, pause: Pause | None) -> None:
        self._stage = stage
        self._pause = pause
        self._paused: Pause | None = None  # The same, while it lasts.
        self.places = {number: number for number in range(stage.count)}  # By node: which ranks it has.
        self.asked_at: int | None = None
        self.saved: set[int] = set()
        self.termed: dict[int, tuple[int, frozenset[int]]] = {}  # By node: when, and whose ranks lived then.
        self.moved_at = 0  # When a rank has moved last.
        self._turned_at = self._phase_at = MonoNs(0)  # When the pause has begun or ended, and so the phase.

    # --- they train ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._stage.after(STEP_NS, self._train)
        if self._pause is not None:
            self._stage.after(round(self._pause.since * NS_PER_S), self._begin_pause)
        if self._stage.watched.hang:
            for machine in self._stage.machines:
                self._stage.after(self._stage.rng.randrange(1, BEAT_NS), partial(self._beat, machine))

    def can_train(self) -> bool:
        """Whether the collectives can run: every rank of every node."""
        stage = self._stage
        there = all(
            one.ranks_alive and stage.is_up(one.number) and not stage.is_cut(one.number) for one in stage.members()
        )
        return there and len(stage.members()) == stage.count and self._paused is None

    def _begin_pause(self) -> None:
        """As soon as its rank is not stuck in a collective."""
        assert self._pause is not None
        if not self.can_train():
            self._stage.after(STEP_NS, self._begin_pause)
            return
        self._paused = self._pause
        self._pass_hook(self._pause)
        self._stage.after(round((self._pause.until - self._pause.since) * NS_PER_S), self._end_pause)

    def _end_pause(self) -> None:
        if self._paused is not None:
            self._pass_hook(self._paused)
        self._paused = None

    def _pass_hook(self, pause: Pause) -> None:
        """Its training thread goes from one thing to another."""
        machine = self._stage.machines[pause.node]
        self._turned_at = MonoNs(self._stage.now)
        if pause.kind in PHASES:
            self._phase_at = self._turned_at
        if machine.ranks_alive and self._stage.is_up(machine.number):
            machine.moves += 1
            self.moved_at = self._stage.now

    def _train(self) -> None:
        self._stage.after(STEP_NS, self._train)
        if self.asked_at is None and self.can_train():
            self.moved_at = self._stage.now
            for machine in self._stage.members():
                self.tell_step(machine)

    def tell_step(self, machine: Machine, loss: float = 2.0) -> None:
        machine.step += 1
        if self._stage.governs(machine.number):
            for rank, connection in self._of(machine):
                self._stage.hear(machine, Step(
                    MonoNs(self._stage.now), connection, RUN, rank, machine.step, attempt_step=machine.step,
                    loss=loss, loss_expected=True, progress_seq=_progress(machine),
                ))  # fmt: skip

    def _of(self, machine: Machine) -> list[tuple[int, ConnectionId]]:
        place = self.places[machine.number]
        return [(place * RANKS + local, ConnectionId(local + 1)) for local in range(RANKS)]

    def _beat(self, machine: Machine) -> None:
        stage, pause = self._stage, self._paused
        stage.after(BEAT_NS, partial(self._beat, machine))
        its = pause.kind if pause is not None and pause.node == machine.number else ""
        if not machine.ranks_alive or not stage.is_up(machine.number) or its == "quiet":
            return
        if its == "moves":
            machine.moves += 1
            self.moved_at = stage.now
        if not stage.governs(machine.number):
            return
        for local, (rank, connection) in enumerate(self._of(machine)):
            does = its if local == 0 and its in PHASES else "train"
            fetch = Fetch(self._turned_at if local == 0 and its == "data" else None, NS_PER_S)
            stage.hear(machine, Beat(
                MonoNs(stage.now), connection, RUN, rank, _progress(machine), does, self._phase_at, machine.step,
                in_step=does == "train", fetch=fetch,
            ))  # fmt: skip

    # --- they come and go ----------------------------------------------------------------------------------------

    def say_hello(self, machine: Machine, attempt: str = "a1", job: str = JOB) -> None:
        for local, (rank, connection) in enumerate(self._of(machine)):
            who = Peer(ProcessId(100 + local, 1000 + local, f"boot-{machine.number}"), UID)
            self._stage.hear(machine, Hello(
                MonoNs(self._stage.now), connection, who, 1, RUN, attempt, rank, local, self._stage.count * RANKS,
                capabilities=frozenset({"ask"}), signal=10, job=job,
            ))  # fmt: skip

    def leave(self, machine: Machine) -> None:
        """The run ends here, and its next launch is elsewhere."""
        machine.ranks_alive = False
        for rank, connection in self._of(machine):
            self._stage.hear(machine, Bye(MonoNs(self._stage.now), connection, RUN, rank, 1))
        self._stage.hear(machine, TrainerExited(MonoNs(self._stage.now), RUN, 0))

    def launch_again(self, machine: Machine) -> None:
        machine.step = 0
        self.say_hello(machine, "a2", NEXT_JOB)

    # --- they are halted -----------------------------------------------------------------------------------------

    def ask(self, machine: Machine) -> None:
        """One asked rank is enough: the others learn it from the store, and save together."""
        if not machine.ranks_alive or not self._stage.is_up(machine.number):
            return
        self._ack(machine, "received")
        if self.asked_at is None:
            self.asked_at = self._stage.now
            self._stage.after(SAVE_NS, self._save)

    def _save(self) -> None:
        if not self.can_train() or any(one.number in self._stage.faults.deaf for one in self._stage.members()):
            return  # Without a rank, or without the store, no step is agreed.
        self._stage.note("every rank saves")
        for machine in self._stage.members():
            self.saved.add(machine.number)
            self._ack(machine, "saved")

    def _ack(self, machine: Machine, what: str) -> None:
        incident = machine.incident
        if incident is None or not self._stage.governs(machine.number):
            return
        checkpoint = SavedCheckpoint("/ckpt/7", "/ckpt/7/manifest.json") if what == "saved" else None
        rank, connection = self._of(machine)[0]
        self._stage.hear(machine, Ack(
            MonoNs(self._stage.now), connection, RUN, rank, 1, incident.incident_id, what, step=7,
            checkpoint=checkpoint, exit_after=True,
        ))  # fmt: skip

    def signal(self, machine: Machine, *, hard: bool) -> None:
        if machine.termed_at is None:
            machine.termed_at = self._stage.now
            lived = frozenset(one.number for one in self._stage.members() if one.ranks_alive and one is not machine)
            self.termed[machine.number] = (self._stage.now, lived)
        if hard or machine.number not in self._stage.faults.deaf:
            self._stage.after(self._stage.rng.randrange(NS_PER_MS, NS_PER_S), partial(self._die, machine))

    def _die(self, machine: Machine) -> None:
        stage = self._stage
        if not stage.is_up(machine.number):
            if not stage.is_dead(machine.number):  # What is frozen goes on where it stood.
                stage.after(GRID_NS, partial(self._die, machine))
            return
        machine.ranks_alive = False
        if stage.governs(machine.number) and machine.incident is not None:
            stage.hear(machine, ProcessesSeen(MonoNs(stage.now), machine.incident.incident_id, ()))


def _progress(machine: Machine) -> int:
    return machine.step * 100 + machine.moves
