"""A played halt is the daemon's: `engine.step` alone, with the same world, comes to the same timeline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import pytest

from governor.core.base.identity import Peer, ProcessId
from governor.core.base.policy import Policy, PolicySet
from governor.core.base.units import NS_PER_S, TICK_NS, BootNs, MonoNs, WallNs
from governor.core.engine.node import Node, new_node
from governor.core.engine.step import step
from governor.core.events.effects import Effect
from governor.core.events.inputs import Disconnected, Event, Hello, Step, Tick
from governor.policies.parse import load_policies
from governor.timeline.entries import Entry, entries_of
from governor.timeline.halt_player import HaltPlayer
from governor.timeline.halt_world import HaltWorld
from governor.timeline.player import connection_of
from governor.timeline.series import play

POLICY: Final = """
[policy]
name = "p"
[halt]
grace = "50s"
term_grace = "4s"
kill_grace = "7s"
stop = "instance"
destroy = true
[[rule]]
name = "nan"
trigger = "nonfinite"
response = "halt"
checkpoint = "good"
[[rule]]
name = "nan-too"
trigger = "nonfinite"
response = "halt"
checkpoint = "suspect"
"""
STEP_NS: Final = 2 * NS_PER_S
PLAYED_S: Final = 900
WORLDS: Final = (
    (), ("saves in 40s",), ("saves in 70s", "ends on kill"), ("saves never",), ("saves fail in 3s",), ("deaf",),
    ("ends in 5s",), ("ends never",), ("cloud ends in 9m",), ("cloud ends on force",), ("cloud ends on destroy",),
    ("cloud refuses",), ("cloud refuses stop", "cloud ends in 1s"), ("cloud busy",), ("cloud silent",),
    ("deaf", "ends never", "cloud refuses stop force"),
)  # fmt: skip


class Engine:
    """One node under `engine.step`, on a clock that goes from tick to tick, with a world that answers its effects."""

    def __init__(self, policy: Policy, world: HaltWorld) -> None:
        self.node: Node = new_node(HaltPlayer.facts, PolicySet((policy,), ""), BootNs(0), WallNs(0))
        self.world = world
        self.now = MonoNs(0)

    def put(self, event: Event) -> None:
        self.now = event.at
        for effect in step(self.node, event):
            self._obey(effect)

    def _obey(self, effect: Effect) -> None:
        managed = self.node.runs["run"]
        ranks = {one.rank: one.connection for one in managed.run.connected_ranks() if one.connection is not None}
        self.world.do(effect, self.now, ranks, (managed.run.step or 0) + 1, is_named=True)

    def tick_until(self, end: int) -> None:
        """The ticks of the grid behind now, up to `end`, and what the world answers before each."""
        for at in range((self.now // TICK_NS + 1) * TICK_NS, end + 1, TICK_NS):
            while (due := self.world.next_at()) is not None and due <= at:
                self._take(due)
            self.put(Tick(MonoNs(at), BootNs(at), WallNs(at)))

    def _take(self, due: MonoNs) -> None:
        self.now = max(self.now, due)
        answer = self.world.take()
        if self.world.is_gone:
            for rank in self.node.runs["run"].run.connected_ranks():
                self.put(Disconnected(self.now, connection_of(rank.rank)))
        if answer is not None:
            self.put(replace(answer, at=self.now))


def of_engine(policy: Policy, world: HaltWorld) -> list[Entry]:
    engine = Engine(policy, world)
    for rank in (0, 1):
        peer = Peer(ProcessId(1000 + rank, 1, "boot"), 1000)
        told = Hello(
            MonoNs(0), connection_of(rank), peer, 1, "run", "0", rank, rank, 2, capabilities=frozenset({"ask"})
        )
        engine.put(told)
    for number in range(1, 42):
        at = MonoNs(number * STEP_NS)
        engine.tick_until(at - 1)
        for rank in (0, 1):
            loss = math.nan if number == 41 else 2.0
            engine.put(Step(at, connection_of(rank), "run", rank, number, loss=loss, step_s=2.0, progress_seq=number))
    engine.tick_until(PLAYED_S * NS_PER_S)
    incident = engine.node.runs["run"].incident
    assert incident is not None
    return entries_of(incident)


@pytest.mark.parametrize("answers", WORLDS, ids=["; ".join(answers) or "default" for answers in WORLDS])
def test_the_engine_alone_comes_to_the_same_timeline(answers: tuple[str, ...]) -> None:
    policies, errors = load_policies([("p.toml", POLICY)])
    assert policies is not None, errors
    (policy,) = policies.policies
    player = HaltPlayer(policy, 2, 2)
    for line in ("hello", "steps 40 every 2s loss=2.0", *answers, "steps 1 every 2s loss=nan"):
        play(player, line)
    player.let_pass(PLAYED_S * NS_PER_S - player.now)
    said = HaltPlayer(policy, 2, 2)
    for line in answers:
        play(said, line)
    came = [entry for entry in player.halt_entries() if entry.what != "open"]
    assert came == of_engine(policy, said.world)
    assert {"asked", "merged", "term"} <= {entry.what for entry in came}
