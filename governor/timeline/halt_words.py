"""What a series says of the world that a halt acts on. A line holds from where it stands, until another of its kind.

    saves in 40s                     the ranks have saved so long after they were asked (10s if no line says so)
    saves never / saves fail in 5s   a save does not come to its end / the ranks report then that it has failed
    deaf                             the ranks do not answer, and train on
    ends in 5s                       the processes end so long after SIGTERM (1s), and of SIGKILL at once
    ends on kill / ends never        they ignore SIGTERM / SIGKILL too: the machine's end alone ends them
    named                            of a log: its processes are known (a pidfile, unit, cgroup or job)
    cloud ends in 5m                 the machine is billed for so long after an accepted stop (30s)
    cloud ends never                 … and goes on being billed
    cloud ends on force              what is softer than this is accepted and changes nothing; or `on destroy`
    cloud refuses stop force         these are refused for good; `cloud refuses`: all three, with destroy
    cloud busy / cloud silent        each call is put off / is not answered
    cloud accepts                    neither of the three any more (as if no line says so)
    cloud none                       no provider can stop the machine
    cloud loses disk                 what is on its disk does not outlive a stop

Ranks that stand still (`stand`) answer and reach no step boundary: they save nothing before they move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from governor.core.base.units import parse_duration
from governor.timeline.entries import RUNGS
from governor.timeline.halt_player import HaltPlayer

DURATION_MAX: Final = "7d"  # As of a line that lets time pass.


def say(player: HaltPlayer, word: str, words: Sequence[str]) -> None:
    """Take one line. The ValueError states what is accepted."""
    WORDS[word](player, words)


def _saves(player: HaltPlayer, words: Sequence[str]) -> None:
    world = player.world
    match words:
        case ["never"]:
            world.saves_ns, world.save_fails = None, False
        case ["in", duration]:
            world.saves_ns, world.save_fails = _duration(duration), False
        case ["fail", "in", duration]:
            world.saves_ns, world.save_fails = _duration(duration), True
        case _:
            raise ValueError('write "in 40s", "never" or "fail in 5s" behind it')
    world.is_deaf = False


def _deaf(player: HaltPlayer, words: Sequence[str]) -> None:
    if words:
        raise ValueError(f'takes nothing more, and here is "{" ".join(words)}"')
    player.world.is_deaf = True


def _ends(player: HaltPlayer, words: Sequence[str]) -> None:
    world = player.world
    match words:
        case ["in", duration]:
            world.ends_ns, world.ends_on_kill = _duration(duration), True
        case ["on", "kill"]:
            world.ends_ns, world.ends_on_kill = None, True
        case ["never"]:
            world.ends_ns, world.ends_on_kill = None, False
        case _:
            raise ValueError('write "in 5s", "on kill" or "never" behind it')


def _named(player: HaltPlayer, words: Sequence[str]) -> None:
    if words:
        raise ValueError(f'takes nothing more, and here is "{" ".join(words)}"')
    if not player.log:
        raise ValueError("a rank says its process itself; write it in a case with log = true")
    player.name_processes()


def _cloud(player: HaltPlayer, words: Sequence[str]) -> None:
    world = player.world
    match words:
        case ["none"]:
            player.set_cloud(exists=False)
            return
        case ["loses", "disk"]:
            player.set_cloud(disk_survives=False)
            return
        case ["ends", "never"]:
            world.bill_ends_ns = None
        case ["ends", "in", duration]:
            world.bill_ends_ns = _duration(duration)
        case ["ends", "on", rung] if rung in RUNGS:
            world.ends_from_rung = RUNGS.index(rung)
        case ["accepts" | "refuses" | "busy" | "silent" as how, *rungs] if _are_rungs(how, rungs):
            world.is_busy, world.is_silent = how == "busy", how == "silent"
            refused = (rungs or RUNGS) if how == "refuses" else ()
            world.refused = frozenset(map(RUNGS.index, refused))
        case _:
            raise ValueError(
                'write "ends in 5m", "ends never", "ends on force", "refuses [stop] [force] [destroy]", "busy", '
                '"silent", "accepts", "none" or "loses disk" behind it'
            )
    player.set_cloud(exists=True)


def _are_rungs(how: str, rungs: Sequence[str]) -> bool:
    return not rungs or (how == "refuses" and set(rungs) <= set(RUNGS))


def _duration(text: str) -> int:
    duration_ns = parse_duration(text)
    if duration_ns > parse_duration(DURATION_MAX):
        raise ValueError(f'"{text}" is longer than {DURATION_MAX}')
    return duration_ns


WORDS: Final[Mapping[str, Callable[[HaltPlayer, Sequence[str]], None]]] = {
    "saves": _saves,
    "deaf": _deaf,
    "ends": _ends,
    "named": _named,
    "cloud": _cloud,
}
