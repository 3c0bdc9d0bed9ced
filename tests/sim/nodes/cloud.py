"""The provider of a run's machines: it stops them within its bound, and its bill is what the run has cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_MS, NS_PER_S, MonoNs
from governor.core.events.effects import StopOther
from governor.core.events.inputs import BillingAnswer, BillingRead, StopAnswer, StopReplied
from governor.core.events.peers import OtherStopped
from tests.sim.nodes.machines import GRID_NS, Machine
from tests.sim.nodes.stage import Stage

_ANSWER_NS: Final = NS_PER_MS


class Cloud:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def stop(self, incident_id: str, by: Machine) -> None:
        self._take_stop(by, by)
        reply = StopReplied(MonoNs(self._stage.now), incident_id, StopAnswer.ACCEPTED, False, "accepted")
        self._stage.after(_ANSWER_NS, partial(self._reply, by, reply))

    def stop_other(self, by: Machine, asked: StopOther) -> None:
        """As the daemon does it: read first, and stop what is billed and not stopping."""
        machine = next(one for one in self._stage.machines if one.name == asked.node)
        if machine.is_billed and not machine.stops:
            self._stage.note(f"{by.name} stops the machine of {machine.name}")
            machine.swept_by.append(by.name)
            self._take_stop(machine, by)
        seen = OtherStopped(
            MonoNs(self._stage.now), asked.incident_id, asked.node, stopped=True, verified=not machine.is_billed,
            reason="",
        )  # fmt: skip
        if self._stage.governs(by.number):
            self._stage.hear(by, seen)

    def read(self, machine: Machine, incident_id: str) -> None:
        answer = BillingAnswer.RUNNING if machine.is_billed else BillingAnswer.ENDED
        self._reply(machine, BillingRead(MonoNs(self._stage.now), incident_id, answer, answer.value))

    def cost_usd_micros(self) -> int:
        """What all machines have cost the run until now."""
        return sum(self.cost_of(machine) for machine in self._stage.machines)

    def cost_of(self, machine: Machine) -> int:
        ends = (self._stage.now, machine.left_at, machine.ended_at)
        lasted_ns = min(end for end in ends if end is not None) - machine.joined_at
        return machine.price * lasted_ns // NS_PER_HOUR

    def _take_stop(self, machine: Machine, by: Machine) -> None:
        if machine.is_billed and not machine.stops:  # A second stop of what is stopping does nothing.
            machine.stops.append(by.name)
            self._stage.after(round(self._stage.faults.stop_s * NS_PER_S), partial(self._end_billing, machine))

    def _end_billing(self, machine: Machine) -> None:
        machine.is_billed = machine.ranks_alive = False
        machine.ended_at = self._stage.now

    def _reply(self, machine: Machine, event: StopReplied | BillingRead) -> None:
        if self._stage.governs(machine.number):
            self._stage.hear(machine, replace(event, at=MonoNs(self._stage.now)))
        elif not self._stage.is_up(machine.number) and not self._stage.is_dead(machine.number):
            self._stage.after(GRID_NS, partial(self._reply, machine, event))
