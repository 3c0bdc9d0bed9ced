"""A simulated trainer: a launcher, ranks and their children as processes that obey, or do not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.events.checkpoints import SavedCheckpoint
from governor.core.events.inputs import Ack, Event, Hello, TrainerExited
from governor.core.halt.table import Fact
from tests.sim.faults import INCIDENT, RUN, around

if TYPE_CHECKING:
    from tests.sim.world import World


UID = 1000
ACK_FACTS = {
    "received": Fact.RECEIVED,
    "saving": Fact.SAVING,
    "saved": Fact.SAVED,
    "failed": Fact.SAVE_FAILED,
}


@dataclass(slots=True)
class Process:
    pid: int
    role: str
    born_at: MonoNs
    ignores_term: bool
    unkillable: bool
    alive: bool = True
    termed: bool = False
    killed: bool = False
    newcomer: bool = False

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.born_at // NS_PER_MS, "boot-1")


def hello(at: MonoNs, process: Process, connection: int, *, world_size: int) -> Hello:
    """What a rank says first. A newcomer is another attempt of the same run, on a connection of its own."""
    return Hello(
        at=at,
        connection=ConnectionId(connection),
        peer=Peer(process.identity, UID),
        seq=1,
        run=RUN,
        attempt=f"attempt-{process.pid}" if process.newcomer else "attempt-1",
        rank=0 if process.newcomer else connection - 1,
        local_rank=0 if process.newcomer else connection - 1,
        world_size=world_size,
        capabilities=frozenset({"ask"}),
        signal=10,
    )


class Trainer:
    """A launcher, ranks and a data loader's child: they save, exit and die as the faults allow."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.processes: list[Process] = []
        self.respawns_left = world.faults.respawns
        self.last_ack: str | None = None  # Resent when asked again.
        self.exit_reported = False

    def start(self) -> None:
        for role in ("launcher", *("rank" for _ in range(self.world.schedule.ranks)), "loader"):
            self._spawn(role)
        if self.world.faults.unkillable:
            self.world.rng.choice(self.processes).unkillable = True
        if self.world.faults.early_exit:
            self.world.after(around(self.world.rng, self.world.plan.grace_ns), self._crash)

    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def on_letter(self) -> None:
        """The letter arrived, perhaps again: answer, save, exit, each at its own pace."""
        if self.world.faults.deaf or all(process.newcomer for process in self._ranks()):
            return
        if self.last_ack is not None:
            self._ack(self.last_ack, NS_PER_MS)
            return
        rng, plan = self.world.rng, self.world.plan
        self._ack("received", rng.randrange(1, NS_PER_S))
        self.last_ack = "received"
        self.world.after(around(rng, plan.grace_ns // 2), self._begin_saving)

    def _begin_saving(self) -> None:
        if not self._ranks():
            return
        self.last_ack = "saving"
        self._ack("saving", NS_PER_MS)
        self.world.after(around(self.world.rng, self.world.plan.save_grace_ns // 2), self._end_saving)

    def _end_saving(self) -> None:
        if not self._ranks():
            return
        self.last_ack = "failed" if self.world.faults.save_fails else "saved"
        self._ack(self.last_ack, NS_PER_MS)
        self.world.after(self.world.rng.randrange(1, 5 * NS_PER_S), self._exit_after)

    def _exit_after(self) -> None:
        for process in self._ranks():
            self._die(process)

    def _ack(self, what: str, delay_ns: int) -> None:
        def make(at: MonoNs) -> Event:
            # Only the rank that wrote the manifest acknowledges the whole.
            checkpoint = SavedCheckpoint("/ckpt/1", "/ckpt/1/manifest.json") if what == "saved" else None
            return Ack(at, ConnectionId(1), RUN, 0, 1, INCIDENT, what, step=7, checkpoint=checkpoint)

        self.world.tell(make, delay_ns, late=self.world.faults.late_acks)

    def term(self, process: Process) -> None:
        if process.alive and not process.termed:
            process.termed = True
            if not (process.ignores_term or process.unkillable):
                self.world.after(around(self.world.rng, self.world.plan.term_grace_ns), lambda: self._die(process))

    def kill(self, process: Process) -> None:
        if process.alive and not process.killed:
            process.killed = True
            if not process.unkillable:
                self.world.after(around(self.world.rng, self.world.plan.kill_grace_ns // 2), lambda: self._die(process))

    def machine_off(self) -> None:
        for process in self.alive():
            self._die(process)

    def machine_on(self) -> None:
        if self.respawns_left > 0:
            self._respawn()

    def heal(self) -> None:
        self.respawns_left = 0
        for process in self.alive():
            process.ignores_term = False
            if process.unkillable:
                process.unkillable = False
                if process.killed:  # The signal was pending all the time.
                    self.world.after(NS_PER_S, partial(self._die, process))

    def _ranks(self) -> list[Process]:
        return [process for process in self.alive() if process.role == "rank"]

    def _crash(self) -> None:
        for process in self._ranks():
            self._die(process)

    def _spawn(self, role: str) -> Process:
        rng, faults = self.world.rng, self.world.faults
        ignores = rng.random() < faults.ignores_term
        process = Process(100 + len(self.processes), role, self.world.now, ignores, unkillable=False)
        self.processes.append(process)
        return process

    def _respawn(self) -> None:
        if self.respawns_left > 0 and self.world.cloud.machine_up:
            self.respawns_left -= 1
            process = self._spawn("rank")
            process.newcomer = True
            self.exit_reported = False
            self.world.note(f"respawned {process.pid}")
            self.world.performer.on_birth(process)
            if self.world.rng.random() < 0.5:
                self.world.after(self.world.rng.randrange(1, 3 * NS_PER_S), partial(self._say_hello, process))

    def _say_hello(self, process: Process) -> None:
        if process.alive:
            size = self.world.schedule.ranks
            self.world.tell(lambda at: hello(at, process, process.pid, world_size=size), NS_PER_MS, lossy=False)

    def _die(self, process: Process) -> None:
        if not process.alive or (process.unkillable and self.world.cloud.machine_up):
            return
        process.alive = False
        rng = self.world.rng
        if self.respawns_left > 0:
            # Soon, or around the time that a stop takes to show: then the halt is far on.
            delay_ns = rng.randrange(1, 5 * NS_PER_S) if rng.random() < 0.5 else around(rng, self.world.plan.verify_ns)
            self.world.after(delay_ns, self._respawn)
        if not self._ranks() and not self.exit_reported:
            self.exit_reported = True
            self.world.tell(lambda at: TrainerExited(at, RUN, 1), NS_PER_MS, lossy=False)
        self.world.performer.on_death()
