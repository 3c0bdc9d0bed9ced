"""What a test expects to come, as text: verdicts, and the entries of a halt's timeline. The player writes the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from governor.core.base.findings import Response
from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, parse_duration
from governor.core.halt.incident import NO_BOUNDARY, Incident
from governor.core.halt.state import HaltState
from governor.policies.keys import did_you_mean

# What follows a verdict: the rule's response, observation only, or what prevents a halt.
OBSERVES: Final = "observe"
OBSTACLES: Final = {"halt_held": "held", "breaker_open": "breaker"}  # The engine's name -> a test's name.
ACTS: Final = (*(response.value for response in Response), OBSERVES, *OBSTACLES.values())

RUNGS: Final = ("stop", "force", "destroy")  # Of the ladder, in its order.
OPEN: Final = "open"  # A test's own entry: the halt is not over where its playing ends, and the state that it is in.


class Kind(NamedTuple):
    """An entry that a played halt may have: what it says, and the words that may stand behind it."""

    means: str
    words: tuple[str, ...] = ()


_CHECKPOINTS: Final = ("good", "suspect")
# As in an incident's timeline.
KINDS: Final[Mapping[str, Kind]] = {
    "asked": Kind("The ranks are asked for a checkpoint.", _CHECKPOINTS),
    "received": Kind("They have been reached."),
    "agreed": Kind("They agree on the step that they save."),
    "saving": Kind("They begin to save."),
    "saved": Kind("The checkpoint is whole.", _CHECKPOINTS),
    "save_failed": Kind("There will be none; or asking for one is in vain, and the reason."),
    NO_BOUNDARY: Kind("The grace is over, and a rank has not reached the agreed step."),
    "term": Kind("SIGTERM. `unsent`: the run names no processes.", ("unsent",)),
    "kill": Kind("SIGKILL, likewise.", ("unsent",)),
    "exited": Kind("No process of the run is left."),
    "nobody_named": Kind("That none is seen proves nothing: the run names no processes."),
    "stop_requested": Kind("The provider is asked to end the machine, by this rung.", RUNGS),
    "stop_accepted": Kind("It will, it says."),
    "stop_refused": Kind("It will not, or not now."),
    "stop_unknown": Kind("It has not answered."),
    "billing": Kind("Read back: the machine is billed, or nobody knows."),
    "verified": Kind("Read back: the machine is not billed."),
    "merged": Kind("Another rule, whose name follows, joins the halt."),
    "page": Kind("A person is called."),
    "restored": Kind("A restarted governor goes on with the halt."),
    "halted": Kind("The halt is over."),
    OPEN: Kind(
        "The last entry of a halt that is not over a day after the last line, or an hour after a person was called.",
        tuple(state.name for state in HaltState if state is not HaltState.HALTED),
    ),
}
_REST: Final = "..."
_NOT_SHOWN: Final = "verdict"  # A case expects verdicts by themselves.


class Decided(NamedTuple):
    """A verdict: its time, rule, reason and consequence. `acts` "": any consequence."""

    at_ns: int
    rule: str
    reason: str
    acts: str = ""

    def __str__(self) -> str:
        return f"{clock(self.at_ns)} {self.rule} {self.reason} {self.acts}".rstrip()

    @classmethod
    def read(cls, text: str) -> Decided:
        """Read "AT RULE REASON [ACTS]". The ValueError states what is accepted."""
        words = text.split()
        if not 3 <= len(words) <= 4:
            raise ValueError(f'"{text}" is no verdict; write "AT RULE REASON", for example "12s nonfinite loss_nan"')
        if words[3:] and words[3] not in ACTS:
            raise ValueError(f'"{words[3]}" is not what follows a verdict: {", ".join(ACTS)}')
        return cls(parse_duration(words[0]), words[1], words[2], "".join(words[3:]))


class Entry(NamedTuple):
    """An entry of a halt's timeline. `word` "": in an expectation, any. `remark` is for people, and never compared."""

    at_ns: int
    what: str
    word: str = ""
    remark: str = ""

    def __str__(self) -> str:
        remark = f"  # {self.remark}" if self.remark else ""
        return f"{clock(self.at_ns)} {self.what} {self.word}".rstrip() + remark

    @classmethod
    def read(cls, text: str) -> Entry | None:
        """Read "AT WHAT [WORD]". None: "...", any number of entries. The ValueError states what is accepted."""
        words = text.split("#")[0].split()
        if words == [_REST]:
            return None
        if not 2 <= len(words) <= 3:
            raise ValueError(f'"{text}" is no entry of a halt; write "AT WHAT", for example "72s saved", or "..."')
        what, word = words[1], "".join(words[2:])
        if what not in KINDS:
            raise ValueError(f'"{what}" is no entry of a halt{did_you_mean(what, KINDS)}; known: {", ".join(KINDS)}')
        known = KINDS[what].words
        if word and what != "merged" and word not in known:
            said = f"may be followed by {', '.join(known)}" if known else "stands alone"
            raise ValueError(f'"{what} {word}" is no entry of a halt: {what} {said}')
        return cls(parse_duration(words[0]), what, word)

    def is_met_by(self, came: Entry) -> bool:
        return (self.at_ns, self.what) == (came.at_ns, came.what) and self.word in ("", came.word)


def entries_of(incident: Incident) -> list[Entry]:
    """The timeline of an incident. What several ranks say at one moment is one entry."""
    entries: list[Entry] = []
    for row in incident.timeline:
        entry = _entry(incident, row)
        if entry.what == _NOT_SHOWN or (entries and entries[-1] == entry):
            continue
        entries.append(entry)
    return entries


def _entry(incident: Incident, row: Mapping[str, Any]) -> Entry:
    what, detail, at_ns = row["what"], row["detail"], row["mono_ns"]
    remarks = [str(detail[key]) for key in ("state", "reason", "unsent") if detail.get(key) not in (None, "accepted")]
    if (times := row.get("times", 1)) > 1:
        remarks.append(f"{times} times, the last at {clock(row['last_mono_ns'])}")
    match what:
        case "asked":
            word = str(detail["checkpoint"])
        case "saved":
            word = str((incident.checkpoint or {}).get("kind", ""))
        case "term" | "kill":
            word = "unsent" if "unsent" in detail else ""
        case "stop_requested":
            word = RUNGS[detail["rung"]]
        case "merged":
            word = str(detail.get("rule", ""))
        case _:
            word = ""
    return Entry(at_ns, what, word, "; ".join(remarks))


def difference(expected: Sequence[Entry | None], came: Sequence[Entry]) -> list[str]:
    """How what came differs from what was expected, line by line as in a diff. Empty: it is as expected."""
    if _is_met(expected, came):
        return []
    wanted = [entry for entry in expected if entry is not None]
    # After so many of `wanted`, anything may come.
    gaps = {sum(entry is not None for entry in expected[:at]) for at, entry in enumerate(expected) if entry is None}
    completed = [next((one for one in came if entry.is_met_by(one)), entry) for entry in wanted]
    lines: list[str] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, completed, came, autojunk=False).get_opcodes():
        if tag == "equal":
            lines.extend(f"  {entry}" for entry in came[j1:j2])
            continue
        for place in range(i1, i2):
            is_free = " " if place in gaps else "+"
            there = next((at for at in range(j1, j2) if came[at].what == wanted[place].what), None)
            if there is not None:  # Beside each other, at their two times.
                lines.extend(f"{is_free} {entry}" for entry in came[j1:there])
            lines.append(f"- {wanted[place]}")
            if there is not None:
                lines.append(f"+ {came[there]}")
                j1 = there + 1
        lines.extend(f"{' ' if i2 in gaps else '+'} {entry}" for entry in came[j1:j2])
    return lines


def _is_met(expected: Sequence[Entry | None], came: Sequence[Entry]) -> bool:
    """Each part between two "..." is taken where it comes first. The last one ends where all ends."""
    parts: list[list[Entry]] = [[]]
    for entry in expected:
        if entry is None:
            parts.append([])
        else:
            parts[-1].append(entry)
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return len(first) == len(came) and _stands_at(first, came, 0)
    if not _stands_at(first, came, 0):
        return False
    at, end = len(first), len(came) - len(last)
    for part in parts[1:-1]:
        found = next((place for place in range(at, end - len(part) + 1) if _stands_at(part, came, place)), None)
        if found is None:
            return False
        at = found + len(part)
    return at <= end and _stands_at(last, came, end)


def _stands_at(part: Sequence[Entry], came: Sequence[Entry], at: int) -> bool:
    there: Iterable[Entry] = came[at : at + len(part)]
    return at + len(part) <= len(came) and all(entry.is_met_by(one) for entry, one in zip(part, there, strict=True))


def clock(at_ns: int) -> str:
    """A time as written in a test, exactly: "79.25s", and from ten minutes on "16m45s", "2h0.5s"."""
    if at_ns < 10 * NS_PER_MINUTE:
        return f"{_decimal(at_ns)}s"
    hours, rest_ns = divmod(at_ns, NS_PER_HOUR)
    minutes, rest_ns = divmod(rest_ns, NS_PER_MINUTE)
    parts = ((hours, "h"), (minutes, "m"), (_decimal(rest_ns), "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count not in (0, "0"))


def _decimal(duration_ns: int) -> str:
    whole, part = divmod(duration_ns, NS_PER_S)
    return f"{whole}.{part:09}".rstrip("0").rstrip(".")
