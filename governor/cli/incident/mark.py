"""`costgov incident mark`, `rearm` and `marks`: people say whether halts were right, and see who said what."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.common import (
    ExitCode,
    Failed,
    config_option,
    control_option,
    exits,
    json_option,
    print_json,
    refuse,
    remark,
    show_drawn,
    show_line,
    sockets,
)
from governor.cli.incident.known import find, from_journals, known_incidents
from governor.cli.incident.sources import (
    Source,
    append_here,
    fallen_now,
    mark_sources,
    standing_of,
    state_dir_of,
)
from governor.core.base.halt_marks import (
    NOTE_CHARS_MAX,
    Entry,
    HaltMark,
    HaltMarks,
    Rearm,
    RuleKey,
    Said,
    Standing,
    entry_of,
    policy_of,
    row_of,
)
from governor.core.base.policy import FallBack, Policy, PolicySet
from governor.core.base.units import WallNs, utc_text
from governor.text.screen import screen_of
from governor.text.table import plain
from governor.wire import control_client
from governor.wire.control_client import INCIDENTS_MAX, Snapshot

# Refusals after which the state directory's own file is no answer: the governor that has the halt has spoken.
_FINAL: Final = ("denied", "unsure", "refused", "unavailable")
_EXITS: Final = exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN, ExitCode.UNSURE)
FALLS_BACK_NEVER: Final = "its halts are counted only: it never falls back"


def _complete_id(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    answers = control_client.ask_each(sockets(None), {"cmd": "incidents", "last": 50}, timeout_s=1.0)
    ids = [str(one["incident_id"]) for answer in answers if answer.ok for one in answer.data]
    return [one for one in ("last", *reversed(ids)) if one.startswith(incomplete)]


def _note_option(command: Any) -> Any:
    return click.option("--note", default="", metavar="TEXT", help="Why: it stands beside it in `incident marks`.")(
        command
    )


@click.command(short_help="Say whether a halt was right or false.", epilog=_EXITS)
@click.argument("incident_id", metavar="ID|last", shell_complete=_complete_id)
@click.option("--false", "is_false", is_flag=True, help="The halt was wrong: the run was healthy.")
@click.option("--right", "is_right", is_flag=True, help="The halt was right.")
@click.option("--clear", "is_cleared", is_flag=True, help="Take back what was said of it.")
@_note_option
@config_option
@control_option
@json_option
def mark(
    incident_id: str, is_false: bool, is_right: bool, is_cleared: bool, note: str, config: Path | None,
    control: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Say whether a halt was right. The last word counts; who said what and when is kept.

    \b
    costgov incident mark last --false --note "the loss spike was the new data"
    costgov incident mark run7.gpu-17.3 --right
    costgov incident mark last --clear

    A rule with as many false halts as `wrong_max` under [halt] of its policy has (2) falls back: it goes on judging and
    warns, and halts nothing, until a mark is changed or `costgov incident rearm RULE` counts anew. Halts by a ceiling,
    by a gate and by hand are counted only. A halt under way goes on, whatever is said of it.

    Allowed to root, to the governor's own user and to members of the socket's group, for every run; to the user of the
    halted run too, which then counts for the runs of this user alone.
    """
    asked = {Said.FALSE: is_false, Said.RIGHT: is_right, Said.CLEARED: is_cleared}
    given = [said for said, is_given in asked.items() if is_given]
    if len(given) != 1:  # Of two, neither may be the one that is meant.
        raise click.UsageError("say one of --false, --right, --clear")
    (said,) = given
    _check_note(note)
    snapshot = find(incident_id, known_incidents(INCIDENTS_MAX, config, control, incident_id))
    request = {
        "cmd": "incident_mark", "incident_id": snapshot["incident_id"], "opened_wall_ns": snapshot["opened_wall_ns"],
        "said": said.value, "note": note,
    }  # fmt: skip
    answer = control_client.ask_first(sockets(control, str(snapshot["run"])), request)
    if answer.ok:
        done = _acted(answer.data)
    elif answer.code in _FINAL or control is not None:
        refuse(answer)
    else:
        done = _mark_here(snapshot, said, note, config)
    entry = done.entry
    if as_json:
        print_json({"entry": row_of(entry), "counted": [row_of(one) for one in done.counted]})
        return
    assert isinstance(entry, HaltMark)
    words = {Said.CLEARED: "is not marked any more"}.get(entry.said, f"is marked {entry.said.value}")
    show_line(plain(f"{entry.incident_id} {words}"))
    show_line(plain(_standing(done)))


def _check_note(note: str) -> None:
    if len(note) > NOTE_CHARS_MAX:
        raise click.UsageError(f"--note has at most {NOTE_CHARS_MAX} characters")


@dataclass(frozen=True, slots=True)
class _Acted:
    """What was said, which false halts the rule has by now, and what follows from that."""

    entry: Entry
    counted: list[HaltMark]
    wrong_max: int
    fallen: list[FallBack]


def _mark_here(snapshot: Snapshot, said: Said, note: str, config: Path | None) -> _Acted:
    """Of a governor that has ended: whoever may write its state directory marks for every run."""
    from governor.core.money.reports.halt_precision import mark_of

    key = snapshot["incident_id"], snapshot["opened_wall_ns"]
    kept = from_journals(state_dir_of(config), INCIDENTS_MAX, is_answered=True)
    if all((one["incident_id"], one["opened_wall_ns"]) != key for one in kept):
        raise Failed(f"no governor that may be asked has {plain(key[0])}, nor has a journal here", ExitCode.UNKNOWN)
    try:
        entry = mark_of(snapshot, said, note, os.getuid(), WallNs(time.time_ns()), for_all=True)
    except (LookupError, TypeError, ValueError) as error:
        raise Failed(f"incident {plain(key[0])} is not whole: something that a mark needs is missing") from error
    marks, key = append_here(config, entry), entry.rule_key
    standing = standing_of(config, marks)
    return _Acted(entry, marks.counted(key), standing.wrong_max(key), standing.fallen(key))


def _acted(data: Any) -> _Acted:
    try:
        counted = [one for row in data["counted"] if isinstance(one := entry_of(row), HaltMark)]
        fallen = [FallBack.of(row) for row in data["fallen_back"]]
        return _Acted(entry_of(data["entry"]), counted, int(data["wrong_max"]), fallen)
    except (LookupError, TypeError, ValueError) as error:
        raise Failed("it is done, but the governor's answer is not as this version has it") from error


def _standing(done: _Acted) -> str:
    """How far the rule is from falling back."""
    entry, counted = done.entry, done.counted
    rule = f'rule "{entry.rule}" of policy "{entry.policy}"'
    if not done.wrong_max:
        return f"{rule}: {FALLS_BACK_NEVER}"
    if not done.fallen:  # Those before a rearm stay marked and do not count.
        halts = "1 false halt counts" if len(counted) == 1 else f"{len(counted)} false halts count"
        return f"{rule}: {halts}, and at {done.wrong_max} it falls back to observe mode; it enforces"
    return (
        f"{rule}: {len(counted)} false, so it only observes from now on{done.fallen[0].whose}; to reverse it: "
        f"costgov incident rearm {entry.rule}"
    )


@click.command(short_help="Let a rule that fell back enforce again.", epilog=_EXITS)
@click.argument("rule")
@click.option("--policy", metavar="NAME", help="Its policy, where several have false halts of a rule of this name.")
@_note_option
@config_option
@control_option
@json_option
def rearm(rule: str, policy: str | None, note: str, config: Path | None, control: str | None, as_json: bool) -> None:
    """Let RULE enforce again: its halts that were marked false so far stay marked, and count no more.

    \b
    costgov incident rearm nonfinite
    costgov incident rearm nonfinite --policy stage1-1b-dense --note "new limit"

    If it fires at this moment in a run that is watched, that run is halted. Allowed to whoever may mark (see
    `costgov incident mark --help`).
    """
    _check_note(note)
    sources = _readable(config, control)
    known = [(source, key) for source in sources for key in source.marks.rules() if key[1] == rule]
    known = [(source, key) for source, key in known if policy in (None, key[0])]
    names = sorted({key[0] for _, key in known})
    if not known:
        which = f' of policy "{plain(policy)}"' if policy else ""
        raise Failed(f'no halt of rule "{plain(rule)}"{which} counts as false; see `costgov incident rules`',
                     ExitCode.UNKNOWN)  # fmt: skip
    if len(names) > 1:
        raise Failed(f"several policies have false halts of it; say --policy {' or '.join(map(plain, names))}")
    acts = [_rearm_at(source, names[0], rule, note, config) for source, _ in known]
    if as_json:
        print_json([row_of(act) for act in acts])
        return
    count = sum(len(source.marks.counted(key)) for source, key in known)
    show_line(plain(f'rule "{rule}" of policy "{names[0]}" is armed again: its {count} false halts count no more'))


def _rearm_at(source: Source, policy: str, rule: str, note: str, config: Path | None) -> Entry:
    if source.socket is None:
        entry = Rearm(policy, rule, os.getuid(), WallNs(time.time_ns()), for_all=True, note=note)
        append_here(config, entry)
        return entry
    answer = control_client.ask(source.socket, {"cmd": "rule_rearm", "policy": policy, "rule": rule, "note": note})
    if not answer.ok:
        refuse(answer)
    return _acted(answer.data).entry


# --- the audit


@click.command(short_help="List who said what of which halt, and what followed.", epilog=exits())
@config_option
@control_option
@json_option
def marks(config: Path | None, control: str | None, as_json: bool) -> None:
    """List who has marked which halt and when, the rules that fell back by it, and what armed them again.

    It is read from halt_marks.jsonl in the state directory, to which lines are only ever added, and which every
    governor of that directory reads. In each line stands the uid, as the kernel says. What followed is by `wrong_max`
    as each halt had it; the last lines say what is in force now.
    """
    sources = _readable(config, control)
    rows = [row for source in sources for row in history(source.marks)]
    rows.sort(key=lambda row: int(row["wall"]))
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("nobody has marked a halt")
        return
    from governor.text.table import Head, render_rows

    heads = [Head("WHEN (UTC)"), Head("UID", is_number=True), Head("WHAT", may_wrap=True), Head("NOTE", may_wrap=True)]
    cells = [[utc_text(row["wall"]), str(row["uid"]), plain(row["text"]), plain(row.get("note", ""))] for row in rows]
    show_drawn(render_rows(heads, cells, total=False, screen=screen_of(sys.stdout)))
    now = fallen_now(sources, config)
    for one in now:
        remark(plain(one.text))
    for policy, rule in sorted(_fallen_at_last(rows) - {(one.policy, one.rule) for one in now}):
        remark(plain(f'rule "{rule}" of policy "{policy}" has not fallen back under the policy that is in force now'))


def _fallen_at_last(rows: list[dict[str, Any]]) -> set[RuleKey]:
    acts = [row for row in rows if row["act"] in ("fell_back", "enforces_again")]
    last = {(row["policy"], row["rule"], row["owner_uid"]): row["act"] for row in acts}
    return {(policy, rule) for (policy, rule, _), act in last.items() if act == "fell_back"}


def _readable(config: Path | None, control: str | None) -> list[Source]:
    """Where there is none, nobody may say that nothing was marked."""
    sources = mark_sources(config, control)
    if not sources:
        raise Failed("no file of marks could be read")
    return sources


def history(marks: HaltMarks) -> list[dict[str, Any]]:
    """Every entry, and after it what followed as the policy of the halt was then: its rule fell back, or enforces."""
    told: list[dict[str, Any]] = []
    so_far = HaltMarks()
    policies: dict[RuleKey, Policy] = {}
    for entry in marks.entries:
        before = _fallen_then(so_far, policies, entry.rule_key)
        so_far.add(entry)
        if isinstance(entry, HaltMark):
            policies[entry.rule_key] = policy_of(entry)
        fallen = _fallen_then(so_far, policies, entry.rule_key)
        told.append({**row_of(entry), "text": _entry_text(entry)})
        stamp = {"wall": entry.wall, "uid": entry.uid}
        told += [
            {"act": "fell_back", **stamp, **one.row(), "text": one.text}
            for owner, one in fallen.items()
            if owner not in before
        ]
        told += [
            {"act": "enforces_again", **stamp, **one.row(), "text": f'rule "{one.rule}" enforces again{one.whose}'}
            for owner, one in before.items()
            if owner not in fallen
        ]
    return told


def _fallen_then(marks: HaltMarks, policies: Mapping[RuleKey, Policy], rule: RuleKey) -> dict[int | None, FallBack]:
    if rule not in policies:
        return {}
    of_rule = PolicySet((policies[rule],), "", {rule: marks.wrong_halts(rule)})
    return {one.owner: one for one in Standing(of_rule).fallen()}


def _whose(owner: int | None) -> str:
    return "" if owner is None else f" for the runs of uid {owner}"


def _entry_text(entry: Entry) -> str:
    if isinstance(entry, Rearm):
        return f'armed rule "{entry.rule}" of policy "{entry.policy}" again{_whose(_only(entry, entry.uid))}'
    words = "cleared the mark of" if entry.said is Said.CLEARED else f"marked {entry.said.value}"
    return f'{words} {entry.incident_id} (rule "{entry.rule}"){_whose(_only(entry, entry.owner))}'


def _only(entry: Entry, owner: int) -> int | None:
    return None if entry.for_all else owner
