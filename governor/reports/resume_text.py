"""What stands between the resume command of a halt and a run that goes on: a checkpoint to name, a ceiling to raise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from governor.core.base.units import MICROS_PER_USD, NS_PER_S, UsdMicros, format_duration, format_usd, usd
from governor.core.money.budgets import SHARED
from governor.core.rules.triggers.budget import TOKENS_REACHED
from governor.core.rules.triggers.gate import ABOVE
from governor.text.moments import Snapshot, none_is_left
from governor.text.table import plain

_WORD: Final = re.compile(r"(?:\$'(?:\\.|[^'\\])*'|'[^']*'|\"[^\"]*\"|\\.|[^\s'\"\\])+")
FLAGS: Final = ("--observe", "--json")  # Options of `costgov run` without a value.


BEGINS_ANEW: Final = (
    "call shim.resume() after attach(…, checkpoint_dir=…); the script has not called it where a directory was known, "
    "and begins at step 0 unless it loads this itself"
)
_NONE_KNOWN: Final = "none known"
# Variables of expressions that begin no new count with an attempt.
_LASTING: Final = frozenset({"age_s", "spend_usd", "step", "tokens", "usd_per_mtok_all_in", "usd_per_mtok_useful"})


def resume_command(snapshot: Snapshot) -> str | None:
    """The command of the run, unless all that it can go on from is torn or not finite: it might take that."""
    last_good = snapshot.get("last_good")
    is_fit = last_good and not none_is_left(last_good)
    return snapshot.get("resume") if is_fit or refused(snapshot) is None else None


def resume_rows(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Label and text of each line that says how the run goes on, after a halt or another bad end. To be copied."""
    command = command_to_copy(snapshot)
    if command is None:
        return []
    told = (("resume from", resume_from(snapshot)), ("resume with", resume_with(snapshot)))
    return [("resume", plain(command)), *((label, text) for label, text in told if text is not None)]


def command_to_copy(snapshot: Snapshot) -> str | None:
    """resume_command() for people: where that would be halted again, with a higher ceiling, which resume_with() names.

    What programs read as `resume` keeps the old ceiling: none of them shall raise it by itself.
    """
    raised = raised_command(snapshot)
    return raised if raised is not None else resume_command(snapshot)


def raised_command(snapshot: Snapshot) -> str | None:
    """After a halt by the command's own --ceiling, or by a gate that compares with it: with one that does."""
    command, higher = resume_command(snapshot), _higher_ceiling(snapshot)
    option = _ceiling_option(command) if command is not None and higher is not None else None
    if command is None or higher is None or option is None:
        return None
    return f"{command[: option.start]}{option.before}{_amount(higher)}{command[option.end :]}"


def none_known(snapshot: Snapshot) -> str | None:
    """What stands in the place of the last good checkpoint where nobody has named one. None: one is known.

    A script that has called resume() was told that there is nothing. Any other may load what nobody here has seen.
    """
    if snapshot.get("last_good") or (snapshot.get("checkpoint") or {}).get("kind") == "good":
        return None
    if command_to_copy(snapshot) is None:
        return _NONE_KNOWN
    finds = "shim.resume() finds one" if snapshot.get("resumes") == "called" else "the script loads one itself"
    return f"{_NONE_KNOWN}: this begins at step 0 unless {finds}"


def resume_from(snapshot: Snapshot) -> str | None:
    """For a trainer that begins anew unless it is told: the checkpoint, and how to tell it. None for any other.

    Whatever the trainer, it may have to be told where it takes the newest, and the newest is torn or not finite.
    """
    last_good = snapshot.get("last_good") or {}
    path = plain(last_good.get("path") or "")
    if not path or none_is_left(last_good):
        return None
    harmed = refused(snapshot)
    told = [f"not {harmed.text}"] if harmed is not None else []
    resumes = snapshot.get("resumes")
    elsewhere = sought_elsewhere(snapshot)
    if elsewhere is not None:
        told.insert(0, elsewhere)
    elif snapshot.get("framework") == "hf" and resumes != "called":
        told.insert(0, f'shim.resume() in the script, or trainer.train(resume_from_checkpoint="{path}")')
    elif resumes == "never":
        told.insert(0, BEGINS_ANEW)
    return f"{path}: {'; '.join(told)}" if told else None


def sought_elsewhere(snapshot: Snapshot) -> str | None:
    """How the script is told of a last good checkpoint that is not where it looks by itself. None where it looks."""
    last_good = snapshot.get("last_good") or {}
    path, sought = (plain(last_good.get(name) or "") for name in ("path", "sought_in"))
    if not path or not sought:
        return None
    if snapshot.get("resumes") == "called":
        return f'shim.resume("{path}") in the script: as it is called it looks in {sought}, where this is not'
    return f"the script loads from {sought}, where this is not: load this one" if is_loaded(snapshot) else None


def is_loaded(snapshot: Snapshot) -> bool:
    """Whether the script loads by its own means. What it takes at its next start nobody here has seen."""
    return snapshot.get("resumes") == "loaded"


def unseen_last_good(snapshot: Snapshot) -> list[str]:
    """What nobody has seen of the checkpoint that the report names."""
    last_good = snapshot.get("last_good") or {}
    if last_good.get("unseen"):
        return [f"The last good checkpoint was not looked at: {plain(last_good['unseen'])}."]
    if last_good.get("unsampled"):
        return [f"The weights of the last good checkpoint were not looked into: {plain(last_good['unsampled'])}."]
    return []


class Refused(NamedTuple):
    """A checkpoint from which nobody shall resume. Path and reason are a stranger's, and can be shown."""

    path: str
    lacks: Literal["finite", "whole"]
    why: str

    @property
    def text(self) -> str:
        return f"{self.path} (NOT {self.lacks.upper()}: {self.why})"


def refused(snapshot: Snapshot) -> Refused | None:
    """The newest checkpoint that was named as good and is not finite, or not whole, and why."""
    last_good = snapshot.get("last_good") or {}
    saved = snapshot.get("checkpoint") or {}
    # Only what is saved as good moves `latest`. One whose weights are not finite was saved as good too.
    halts_own = (saved,) if saved.get("kind") == "good" or saved.get("nonfinite") else ()
    for one in (last_good, *last_good.get("passed_over", ()), *halts_own):
        path, torn = plain(one.get("path") or "?"), torn_text(one)
        if one.get("nonfinite"):
            return Refused(path, "finite", plain(one["nonfinite"]))
        if torn is not None:
            return Refused(path, "whole", plain(torn))
    return None


def steps_behind(snapshot: Snapshot) -> str:
    """By how much the halt's checkpoint is older than its verdict: a save that was under way became the halt's."""
    saved, at = (snapshot.get("checkpoint") or {}).get("step"), snapshot.get("step")
    if type(saved) is not int or type(at) is not int or saved >= at:
        return ""
    return f" ({at - saved:,} before the verdict's)"


def torn_text(checkpoint: Mapping[str, Any]) -> str | None:
    """What of a checkpoint is missing or cut short."""
    return checkpoint.get("torn") or checkpoint.get("fault")  # "fault": in older rows.


def resume_with(snapshot: Snapshot) -> str | None:
    """Where the same command would be halted again at once (by a ceiling, a gate, a goal, ...): what it needs."""
    reached = _reached(snapshot)
    if reached is None:
        return _past_gate(snapshot) or _lasting_need(snapshot)
    known = f"{format_usd(reached.spent)} is spent, and {format_usd(reached.reserve)} stays reserved for a halt"
    higher = _higher_ceiling(snapshot)
    if higher is not None:
        return (
            f"a higher --ceiling than {format_usd(reached.ceiling)}: {known}. The command has {_amount(higher)}, "
            "that and the old ceiling again, rounded up: write there what it may cost in all"
        )
    if reached.scope.startswith(SHARED):
        return _shared_room(reached, known)
    which = "--ceiling" if "--ceiling" in str(snapshot.get("resume")) else f"ceiling of {plain(reached.scope)}"
    return f"a higher {which} than {format_usd(reached.ceiling)}: {known}"


def _shared_room(reached: _Reached, known: str) -> str:
    """What was granted of a shared budget is not its ceiling. Whoever sets that to it halts everybody in the scope."""
    scope = plain(reached.scope.removeprefix(SHARED))
    of = f" of its ceiling {format_usd(reached.whole)}" if reached.whole is not None else ""
    return (
        f"room in the shared budget {scope}: this run was granted {format_usd(reached.ceiling)}{of}; {known}. See "
        f"`costgov fleet list`; where all is taken, `costgov fleet budget {shlex.quote(scope)} USD` sets its ceiling"
    )


def _past_gate(snapshot: Snapshot) -> str | None:
    """What lets the run pass its gate."""
    evidence, gate = snapshot.get("evidence") or {}, _gate(snapshot)
    if gate is None:
        return None
    fits, higher = evidence.get("would_fit"), _higher_ceiling(snapshot)
    fewer = f", or a goal of {fits:,} {plain(str(evidence.get('goal_unit')))}" if isinstance(fits, int) else ""
    told = f"a ceiling from {format_usd(gate.enough)} on{fewer}: else its gate halts it again"
    if higher is None:
        return told
    return (
        f"{told}. The command has {_amount(higher)} in place of {_amount(gate.ceiling)}: that and what was reserved "
        "for this halt, rounded up"
    )


def _lasting_need(snapshot: Snapshot) -> str | None:
    """What the next attempt would be halted for as well. None: an attempt leaves that behind."""
    trigger, reason, evidence = snapshot.get("trigger"), snapshot.get("reason"), snapshot.get("evidence") or {}
    match trigger, reason:
        case "budget", _ if reason == TOKENS_REACHED:
            return _goal(evidence)
        case "gate", _ if reason == ABOVE and evidence.get("ceiling_usd_micros") is None:
            return "a plan ([expected]) that allows for where it lands, or no gate: else its gate halts it again"
        case "runtime", "run_overdue":
            return _age(evidence)
        case "restart_loop", _:
            return (
                "another --name, or a wait until its attempts are older than `within` of the rule: it would be one "
                "more without progress, and be halted as it begins"
            )
        case "expression", _ if evidence and _LASTING.issuperset(evidence.keys() - {"resume_with"}):
            figures = ", ".join(f"{name} {plain(str(evidence[name]))}" for name in evidence if name != "resume_with")
            return f"a rule that allows for {figures}: an attempt begins with these, and would be halted again"
    return None


def _goal(evidence: Mapping[str, Any]) -> str | None:
    trained = [count for count in (evidence.get("tokens_total"), evidence.get("tokens")) if isinstance(count, int)]
    if not trained:
        return None
    return f"a goal above {max(trained):,} tokens ([budget] tokens): it has trained these, and would be halted again"


def _age(evidence: Mapping[str, Any]) -> str:
    age_s = evidence.get("age_s")
    known = f" than {format_duration(round(age_s * NS_PER_S))}" if isinstance(age_s, (int, float)) else ""
    return f"a longer `run` of the rule{known}, or another --name: its age goes on from there, and would halt it again"


class _Gate(NamedTuple):
    """The gate that has halted the run, in micro-dollars."""

    ceiling: int
    reserve: int
    enough: UsdMicros


def _gate(snapshot: Snapshot) -> _Gate | None:
    evidence = snapshot.get("evidence") or {}
    known = [evidence.get(f"{name}_usd_micros") for name in ("ceiling", "reserve", "enough")]
    ceiling, reserve, enough = (one if isinstance(one, int) else None for one in known)
    return None if ceiling is None or reserve is None or enough is None else _Gate(ceiling, reserve, UsdMicros(enough))


class _Reached(NamedTuple):
    """The ceiling that has halted the run, in micro-dollars. Of a shared budget: what was granted, and the `whole`."""

    scope: str
    ceiling: int
    reserve: int
    spent: int
    whole: int | None = None


def _reached(snapshot: Snapshot) -> _Reached | None:
    evidence = snapshot.get("evidence") or {}
    ceiling, reserve = evidence.get("ceiling_usd_micros"), evidence.get("reserve_usd_micros")
    spent, scope = evidence.get("spend_usd_micros"), str(evidence.get("scope", "run"))
    if not (isinstance(ceiling, int) and isinstance(reserve, int) and isinstance(spent, int)):
        return None
    if scope == f"run:{snapshot['run']}":
        spent = max(spent, int(snapshot.get("spend_usd_micros") or 0))
    whole = evidence.get("whole_usd_micros")
    return _Reached(scope, ceiling, reserve, spent, whole if isinstance(whole, int) else None)


def _higher_ceiling(snapshot: Snapshot) -> int | None:
    """Micro-dollars: what is spent and reserved, and the old ceiling again; after a gate, what lets it pass.

    None where another ceiling has halted it. A name that was used before may have spent more than its newest ceiling.
    What a gate has asked for was forecast at the verdict, and the halt has cost something since.
    """
    reached, gate = _reached(snapshot), _gate(snapshot)
    option = _ceiling_option(str(snapshot.get("resume") or ""))
    if option is None:
        return None
    if reached is not None and option.micros == reached.ceiling and reached.scope.startswith("run"):
        least = max(reached.spent + reached.reserve, reached.ceiling) + reached.ceiling
    elif reached is None and gate is not None and option.micros == gate.ceiling:
        least = gate.enough + gate.reserve
    else:
        return None
    step = next((step for step in (MICROS_PER_USD, MICROS_PER_USD // 100) if least >= 10 * step), 1)
    return -(-least // step) * step


class _Option(NamedTuple):
    """The place of the word that has the ceiling in a command, what stands before the amount in it, and the amount."""

    start: int
    end: int
    before: str
    micros: int


def _ceiling_option(command: str) -> _Option | None:
    """The --ceiling of `costgov run` itself, however it is spelled: the script may have one of its own."""
    words = [(found.start(), found.end(), _unquoted(found[0])) for found in _WORD.finditer(command)]
    if [text for _, _, text in words[:3:2]] == ["cd", "&&"]:
        del words[:3]
    if [text.rpartition("/")[2] for _, _, text in words[:2]] != ["costgov", "run"]:
        return None
    rest, option = iter(words[2:]), None
    for start, end, text in rest:
        name, equals, value = text.partition("=")
        if text == "--" or not name.startswith("-"):
            break
        if not equals and name not in FLAGS:
            start, end, value = next(rest, (start, end, ""))
        if name == "--ceiling":
            micros = _micros(value)
            option = _Option(start, end, f"{name}=" if equals else "", micros) if micros is not None else None
    return option


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word


def _micros(amount: str) -> int | None:
    """As --ceiling reads it."""
    try:
        return usd(amount)
    except ValueError:
        return None


def _amount(micros: int) -> str:
    """As --ceiling takes it, exactly: 50, 0.50, 0.123456."""
    whole, part = divmod(micros, MICROS_PER_USD)
    digits = f"{part:06}".rstrip("0")
    return f"{whole}.{digits:0<2}" if digits else str(whole)
