"""Whether what was asked for waits for the evaluation of its step, so that a resumed run need not make up for it.

A halt that waits too long is killed, and nothing is saved. All ranks decide alike: by what all of them have posted.
"""

from __future__ import annotations

from typing import Any, Dict, List

from trainer_shim.guard import print_line
from trainer_shim.progress import Progress

# No evaluation is as long as the last one, and a save takes what the disk gives: half of what is left stays free.
_ROOM_MIN = 2.0
DUE = "evaluation_due"  # In a checkpoint: it was saved before the evaluation of its step.
NOT_MADE_UP = "resume(): it was saved before the evaluation of that step, which this run does not make up for"


def times_of(progress: Progress, left_ns: int, is_own: bool) -> Dict[str, Any]:
    """Return what this rank posts: how long these took at most, and what is left. Absent: not seen yet, no limit."""
    times = {"%s_s" % phase: ns / 1e9 for phase, ns in progress.longest_ns.items()}
    if not is_own:  # Nothing ends the process for what the script asked for.
        times["left_s"] = left_ns / 1e9
    return times


def fits(posts: List[Dict[str, Any]]) -> bool:
    """Whether an evaluation, and the save behind it, fit well within what each rank has left."""
    told = [post.get("times") or {} for post in posts]
    lefts = [one["left_s"] for one in told if "left_s" in one]
    if not lefts:
        return True
    evals = [one["eval_s"] for one in told if "eval_s" in one]
    if not evals:
        return False  # Nobody knows how long it takes.
    longest = max(evals) + max(one.get("checkpoint_s", 0.0) for one in told)
    return bool(longest * _ROOM_MIN <= min(lefts))


def say_saved_before(step: int) -> None:
    """Tell whoever looks at the terminal why the figures of this evaluation come later, or never."""
    print_line("step %d is saved before its evaluation: behind that the grace might be over" % step)
