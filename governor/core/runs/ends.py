"""The cause of an attempt's end, in one line, by what was seen. What was not seen is not guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from governor.core.base.known_failures import known_failure
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.events.ends import CommandEndSeen, Failure, LastLine, OomKills, RunEnd
from governor.core.runs.state import Run

# A line of a terminal or of a chat shows no more, and the report of an end is one line.
QUOTED_CHARS_MAX: Final = 200
SIGKILL: Final = 9
# The command, or a rank of it, may be in a group of its own.
OUR_GROUP: Final = "the control group of costgov run"
# A kill so long before the end is that of the end: the count is read each second. An earlier one may be survived.
NEAR_NS: Final = DurationNs(2 * NS_PER_S)
# A kill so long before ranks end without a word, or after it, is told: a launcher ends the other ranks in turn.
BESIDE_NS: Final = DurationNs(60 * NS_PER_S)
# `torchrun` and `deepspeed` end their ranks 30 s after SIGTERM at the latest, and a rank may save first. A command that
# goes on for longer has survived the signal.
FOLLOWED_NS: Final = DurationNs(60 * NS_PER_S)
# What Python and torchrun make of a signal.
_OF_A_SIGNAL: Final = re.compile(
    r"^(\[rank[0-9]+\]: ?)?KeyboardInterrupt(: |$)|SignalException: Process [0-9]+ got signal: [0-9]+$"
)


def cause_of(failures: Mapping[int, Failure], seen: CommandEndSeen | None = None) -> str | None:
    """Why it ended. `failures`: by rank, in the order of their arrival. None: nothing but the exit code was seen.

    A signal that `costgov run` passed on may have been survived: it is the cause where the end is of that signal, or
    where the end followed it closely and nothing else was seen.
    """
    if seen is None:
        return _found(failures, None)
    if not is_of_passed_on(seen):
        line = _first_known(seen.last_lines)
        return _found(failures, seen) or (None if line is None else _quoted(line))
    sent = f"{seen.passed_on} was sent to costgov run, which passed it on"
    others = {rank: one for rank, one in failures.items() if not _OF_A_SIGNAL.search(f"{one.name}: {one.text}")}
    is_of_it = seen.passed_on in (seen.died_of, seen.died_below)
    if is_of_it and all(one.thread is not None or _is_late(one) for one in others.values()):
        return sent
    lines = tuple(line for line in seen.last_lines if not _OF_A_SIGNAL.search(line.text))
    return _found(others, replace(seen, last_lines=lines)) or sent


def is_of_passed_on(seen: CommandEndSeen) -> bool:
    """Whether the signal that was passed on counts for this end: an earlier one was survived."""
    if seen.passed_on is None:
        return False
    return seen.passed_on in (seen.died_of, seen.died_below) or seen.passed_on_before <= FOLLOWED_NS


def _found(failures: Mapping[int, Failure], seen: CommandEndSeen | None) -> str | None:
    """The cause but for a signal that was passed on.

    A rank's own exception is the nearest to the cause. Then come the launcher's and the kernel's words, then those of
    the output. What often follows another rank's failure comes after what does not.
    """
    raised = sorted(failures.items(), key=lambda one: (one[1].thread is not None, _is_late(one[1])))
    killed = None if seen is None else _killed(seen, bool(raised))
    first = next((one for one in raised if not _is_late(one[1]) and one[1].thread is None), None)
    if first is not None:
        return _with_others(_raised(*first), len(raised) - 1)
    if killed is not None:
        return killed
    line = None if seen is None else _named(seen)
    if line is not None and not (line.is_late and raised):
        return _said(line)
    if raised:
        return _with_others(_raised(*raised[0]), len(raised) - 1)
    if seen is not None and seen.died_of is not None:
        return _killed_by(seen.died_of, seen)
    if seen is not None and seen.died_below is not None:
        return _killed_by(f"{seen.died_below} of a process below it, by the exit code", seen)
    return None


def seen_cause(run: Run) -> str | None:
    """Why the run ended, where nobody waited for its command: by its ranks and its control group.

    None for a run whose ranks have all completed, and where only the ranks' absence was seen.
    """
    if run.ended_well:
        return None
    raised = any(failure.thread is None for failure in run.failures.values())
    mute = sorted((rank for rank in run.ranks.values() if not rank.said_bye), key=lambda rank: rank.lost_at or 0)
    is_own_fault = any(failure.thread is None and not _is_late(failure) for failure in run.failures.values())
    before = (run.ended_at or 0) - (run.oom_kill_at or 0)
    if run.oom_kill_at is not None and abs(before) <= BESIDE_NS and mute and not is_own_fault:
        counted = _counted(OomKills(run.oom_kills, True), "the run's control group")
        if abs(before) > NEAR_NS:
            counted += f" {format_duration(DurationNs(abs(before)))} {'before' if before > 0 else 'after'} the end"
        others = f", and {len(mute) - 1} more after it" if len(mute) > 1 else ""
        return f"rank {mute[0].rank} ended without a word{others}; {counted}"
    return cause_of(run.failures) if raised else None


def ended_text(end: RunEnd) -> str:
    """ "ended with exit code 1: out of GPU memory on rank 1 (…)"."""
    code = "ended" if end.exit_code is None else f"ended with exit code {end.exit_code}"
    return code if end.cause is None else f"{code}: {end.cause}"


def _is_late(failure: Failure) -> bool:
    known = known_failure(f"{failure.name}: {failure.text}")
    return known is not None and known.is_late


def _raised(rank: int, failure: Failure) -> str:
    quoted = f"{failure.name}: {failure.text}" if failure.text else failure.name
    known = known_failure(quoted)
    whose = f"rank {rank}" if failure.thread is None else f"thread {failure.thread} of rank {rank}"
    place = f", at {failure.place}" if failure.place else ""
    if known is None:
        return f"{whose} raised {_cut(quoted)}{place}"
    return f"{known.what} on {whose} ({_cut(quoted)}{place})"


def _with_others(text: str, others: int) -> str:
    return text + (f"; {others} more rank{'s' if others > 1 else ''} failed" if others else "")


def _named(seen: CommandEndSeen) -> LastLine | None:
    """The line that names the cause: the end of a traceback; after an end by a signal, another line that is known.

    Else such a line may be a warning, or a text that is trained on.
    """
    raised = [line for line in seen.last_lines if line.is_raised]
    if raised:
        return min(raised, key=lambda line: line.is_late)
    by_signal = any(line.is_exit_code for line in seen.last_lines) or (seen.died_of or seen.died_below) is not None
    return _first_known(seen.last_lines) if by_signal else None


def _first_known(lines: Sequence[LastLine]) -> LastLine | None:
    """The first, as others follow it."""
    return min((line for line in lines if line.what is not None), key=lambda line: line.is_late, default=None)


def _said(line: LastLine) -> str:
    whose = f" on rank {line.rank}" if line.rank is not None else ""
    return _quoted(line) if line.what is None else f"{line.what}{whose} ({_quoted(line)})"


def _quoted(line: LastLine) -> str:
    return f'its output says "{_cut(line.text)}"'


# --- killed --------------------------------------------------------------------------------------------------


def _killed(seen: CommandEndSeen, has_raised: bool) -> str | None:
    """A death by SIGKILL, of the command or of a rank. None: none is known of.

    A shell's line about some child is less than a traceback. An exit code, or the traceback's own end, is more.
    """
    lines = [line for line in seen.last_lines if line.signum == SIGKILL]
    if has_raised or any(line.is_raised for line in seen.last_lines):
        lines = [line for line in lines if line.is_exit_code or line.is_raised]
    rank = next(iter(lines), None)
    kills = seen.oom_kills
    if "SIGKILL" in (seen.died_of, seen.died_below) or rank is not None:
        whose = "" if seen.died_of == "SIGKILL" else " of a process below it"
        if rank is not None and rank.rank is not None:
            whose = f" of local rank {rank.rank}"
        return f"SIGKILL{whose}{_by_whom(kills, seen.last_lines)}"
    if kills is not None and kills.is_own and _is_near(kills) and _named(seen) is None:
        return f"the kernel's out-of-memory killer: {_counted(kills)}"
    return None


def _killed_by(name: str, seen: CommandEndSeen) -> str:
    return name if seen.oom_kills is None or not seen.oom_kills.count else f"{name}; {_counted(seen.oom_kills)}"


def _by_whom(kills: OomKills | None, lines: Sequence[LastLine]) -> str:
    said = next((line for line in lines if line.is_oom), None)
    if kills is not None and kills.count:
        if not _is_near(kills):
            return f"; {_counted(kills)}"
        return f", by the kernel's out-of-memory killer: {_counted(kills)}" if kills.is_own else f"; {_counted(kills)}"
    if said is not None:
        return f', by the kernel\'s out-of-memory killer: its output says "{_cut(said.text)}"'
    if kills is None:
        return "; whether for want of memory cannot be read here"
    return f"; no out-of-memory kill was counted {'in ' + OUR_GROUP if kills.is_own else 'on the machine'}"


def _is_near(kills: OomKills) -> bool:
    """Whether the last kill is that of this end. An earlier one may have been a worker's, or a neighbour's."""
    return kills.count > 0 and (kills.before_end is None or kills.before_end <= NEAR_NS)


def _counted(kills: OomKills, group: str = OUR_GROUP) -> str:
    times = "an out-of-memory kill" if kills.count == 1 else f"{kills.count} out-of-memory kills"
    before = "" if kills.before_end is None else f" {format_duration(kills.before_end)} before the end"
    if kills.is_own:
        return f"{group} counted {times}{before}"
    return f"the machine counted {times}{before}, of what process is not known"


def _cut(text: str) -> str:
    return text if len(text) <= QUOTED_CHARS_MAX else text[: QUOTED_CHARS_MAX - 1].rstrip() + "…"


def note_failure(run: Run, rank: int, failure: Failure) -> bool:
    """Note an exception of a rank. Its first one counts, but the main thread's before another's. False: not noted."""
    known = run.failures.get(rank)
    if known is not None and (known.thread is None or failure.thread is not None):
        return False
    run.failures.pop(rank, None)
    run.failures[rank] = failure
    return True


def note_oom_kills(run: Run, count: int, at: MonoNs) -> bool:
    """Note what the run's control group has counted. False: nothing new."""
    if count <= run.oom_kills:
        return False
    run.oom_kills, run.oom_kill_at = count, at
    return True


def note_end(run: Run, end: RunEnd | None) -> None:
    run.end = end
