"""Halts in played timelines: whatever the world answers, they are played to an end, in order, and alike by any tick."""

from __future__ import annotations

import random
from typing import Final

import pytest

from governor.core.base.units import NS_PER_S
from governor.core.halt.state import HaltState
from governor.policies.parse import load_policies
from governor.text import moments
from governor.timeline.entries import KINDS, OPEN, Entry
from governor.timeline.halt_player import CALLED_NS, PLAYED_NS, HaltPlayer
from governor.timeline.series import play
from tests.sweeps import share_of

POLICY: Final = """
[policy]
name = "p"
[halt]
grace = "2m"
term_grace = "20s"
kill_grace = "15s"
stop = "{stop}"
destroy = {destroy}
[[rule]]
name = "nan"
trigger = "nonfinite"
response = "halt"
checkpoint = "{checkpoint}"
[[rule]]
name = "hang"
trigger = "hang"
response = "halt"
"""
WORLDS: Final = (
    "saves in 1s", "saves in 40s", "saves in 12m", "saves never", "saves fail in 3s", "deaf", "ends in 0s",
    "ends in 5s", "ends in 30s", "ends on kill", "ends never", "cloud none", "cloud loses disk", "cloud ends in 1s",
    "cloud ends in 9m", "cloud ends never",
    "cloud ends on force", "cloud ends on destroy", "cloud refuses", "cloud refuses stop force",
    "cloud busy", "cloud silent", "cloud accepts",
)  # fmt: skip
DURING: Final = (
    "quiet 1s", "quiet 7.3s", "quiet 2m", "blind 6s", "blind 2m", "restart", "steps 3 every 2s loss=nan", "saved",
    "stand 40s in_step", "work 9s", "lose 1", "phase eval", "money spend=1 rate=20", "hold 1h", "gpus 0.9 0.9",
    *WORLDS,
)  # fmt: skip
GRACE_NS: Final = 120 * NS_PER_S
TERM_NS: Final = 20 * NS_PER_S


class EveryTick(HaltPlayer):
    """Plays every tick."""

    def _steady_until(self) -> int:
        return self.now


def player_of(rng: random.Random, kind: type[HaltPlayer], *, log: bool) -> HaltPlayer:
    stop, destroy = rng.choice([("auto", "true"), ("instance", "true"), ("instance", "false"), ("processes", "false")])
    text = POLICY.format(
        stop=stop,
        destroy=destroy,
        checkpoint=rng.choice(["good", "suspect", "none"]),
    )
    policies, errors = load_policies([("p.toml", text)])
    assert policies is not None, errors
    return kind(policies.policies[0], 2, 2, log=log)


def lines_of(rng: random.Random, *, log: bool) -> list[str]:
    known = [line for line in DURING if not (log and line.split()[0] in ("stand", "work", "lose"))]
    begin = [*(["named"] if rng.random() < 0.5 else [])] if log else ["hello"]
    trained = f"steps {rng.choice([5, 30, 200])} every 2s loss=2.0"
    worlds = rng.sample(WORLDS, rng.randrange(4))
    return [*begin, trained, *worlds, "steps 1 every 2s loss=nan", *rng.choices(known, k=rng.randrange(6))]


def halt_of(seed: int, kind: type[HaltPlayer]) -> tuple[list[Entry], HaltPlayer, list[str]]:
    rng = random.Random(f"halt {seed}")
    log = seed % 3 == 0
    player = player_of(rng, kind, log=log)
    lines = lines_of(rng, log=log)
    for line in lines:
        play(player, line)
    end = player.now
    player.finish()
    assert player.now - end <= PLAYED_NS + NS_PER_S
    return player.halt_entries(), player, lines


@pytest.mark.parametrize("seed", range(share_of(60)))
def test_a_halt_is_played_to_its_end_in_order_whatever_the_world_answers(seed: int) -> None:
    entries, player, lines = halt_of(seed, HaltPlayer)
    assert entries, lines
    assert [entry.at_ns for entry in entries] == sorted(entry.at_ns for entry in entries)
    assert {entry.what for entry in entries} <= KINDS.keys()
    at = {entry.what: entry.at_ns for entry in reversed(entries)}  # The first of each.
    last = entries[-1]
    assert last.what in ("halted", OPEN)
    if last.what == OPEN:
        assert "page" in at, "only what calls a person goes on"
        assert last.at_ns - at["page"] >= CALLED_NS
        assert last.word in KINDS[OPEN].words
    else:
        assert {"exited", "verified"} & at.keys(), "an end is seen, never inferred"
    if "asked" in at:
        blind_ns = 120 * NS_PER_S
        assert at["term"] - at["asked"] <= GRACE_NS + blind_ns, "the grace is a bound"
    if "kill" in at and "restored" not in at:
        assert at["kill"] - at["term"] >= TERM_NS or "stop_requested" in at, "SIGKILL waits for SIGTERM's grace"
    assert player.run.alive is (last.what == OPEN)


@pytest.mark.parametrize("seed", range(share_of(20)))
def test_ticks_that_are_left_out_change_no_entry(seed: int) -> None:
    assert halt_of(seed, HaltPlayer)[0] == halt_of(seed, EveryTick)[0]


def test_every_entry_that_can_be_expected_is_one_of_an_incidents_timeline() -> None:
    labels = {
        moment.what: moment.label
        for what in KINDS.keys() - {OPEN}
        for moment in moments.moments(
            {
                "opened_mono_ns": 0, "opened_wall_ns": 0, "incident_id": "i", "run": "run", "plan": {},
                "timeline": [{"mono_ns": 0, "wall_ns": 0, "what": what, "detail": {}}],
            }
        )
    }  # fmt: skip
    unknown = [what for what, label in labels.items() if label == what and what not in _TOLD_BY_THEIR_NAME]
    assert not unknown
    assert set(KINDS[OPEN].words) == {state.name for state in HaltState} - {"HALTED"}


_TOLD_BY_THEIR_NAME: Final = {"asked", "received", "agreed", "saving", "saved", "merged", "restored", "halted"}
