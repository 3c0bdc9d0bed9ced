"""An incident's timeline in words, one moment a line, for the terminal and for the written report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.units import NS_PER_MINUTE, NS_PER_MS, NS_PER_S, format_duration, format_usd
from governor.core.engine.idle.messages import given_up
from governor.core.engine.idle_state import NODE
from governor.core.halt.incident import COLLECTIVES, NO_BOUNDARY, OTHER_USER
from governor.core.halt.state import GivenUp
from governor.core.runs.last_good import PENDING
from governor.text import nodes
from governor.text.table import plain

Snapshot = Mapping[str, Any]
Detail = Mapping[str, Any]

RUNGS: Final = {0: "stop", 1: "forced stop", 2: "terminate"}
# Ranks answer one by one. Only the last answer of each kind matters.
_PER_RANK: Final = frozenset({"received", "agreed", "saving", "saved", "rank_saved"})
# The first that holds is told.
_REMARKS: Final = {
    "gone": "GONE: it {}",
    "torn": "NOT WHOLE: {}",
    "nonfinite": "NOT FINITE: {}",
    "unseen": "not seen by the governor: {}",
    "nonfinite_in_all": "not finite in all: {}",
    "unsampled": "its weights were not looked into: {}",
}
# Verdicts that no rule has reached.
_BY_HAND: Final = {"operator": "an operator asked for a halt too", "join": "another governor halts too"}
_UNFIT: Final = ("gone", "torn", "nonfinite")
_PASSED_TOLD: Final = 3
_BYTES: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True, slots=True)
class Moment:
    """`since_ns` counts from the chosen origin. `by_wall`: across a reboot, where only wall clocks compare."""

    since_ns: int
    what: str
    label: str
    text: str
    by_wall: bool = False


def moments(snapshot: Snapshot, origin_mono_ns: int | None = None) -> list[Moment]:
    """Return the timeline since the verdict, or since `origin_mono_ns` (the moment of the fault, if known)."""
    opened: int = snapshot["opened_mono_ns"]
    origin = opened if origin_mono_ns is None else origin_mono_ns
    entries: list[Mapping[str, Any]] = list(snapshot["timeline"])
    last_of = {entry["what"]: index for index, entry in enumerate(entries) if entry["what"] in _PER_RANK}
    told: list[Moment] = []
    for index, entry in enumerate(entries):
        what = str(entry["what"])
        if what in last_of and last_of[what] != index:
            continue
        label, describe = _WORDS.get(what, (plain(what), _plainly))
        text = describe(_gathered(what, entries) if what in last_of else entry["detail"], snapshot)
        times = int(entry.get("times", 1))
        since, by_wall = _since(entry, snapshot, origin)
        told.append(Moment(since, what, label, plain(text + (f" (×{times})" if times > 1 else "")), by_wall))
    return told


def _since(entry: Mapping[str, Any], snapshot: Snapshot, origin: int) -> tuple[int, bool]:
    mono: int = entry["mono_ns"]
    if mono >= snapshot["opened_mono_ns"]:
        return mono - origin, False
    # An entry of another boot has another monotonic clock, so wall times are compared.
    return entry["wall_ns"] - snapshot["opened_wall_ns"] + snapshot["opened_mono_ns"] - origin, True


def _gathered(what: str, entries: list[Mapping[str, Any]]) -> Detail:
    details = [entry["detail"] for entry in entries if entry["what"] == what]
    ranks = sorted({detail["rank"] for detail in details if "rank" in detail})
    return {**{key: value for detail in details for key, value in detail.items()}, "ranks": ranks}


# --- the words of each kind of entry ------------------------------------------------------------------------


def _verdict(detail: Detail, _snapshot: Snapshot) -> str:
    why = detail.get("text") or detail.get("reason") or "no reason recorded"
    return f'{why} (rule "{detail.get("rule", "?")}")'


def _asked(detail: Detail, snapshot: Snapshot) -> str:
    kind = detail.get("checkpoint", "?")
    grace_ns = snapshot["plan"].get("grace_ns")
    within = f" within {format_duration(grace_ns)}" if isinstance(grace_ns, int) else ""
    return f"for a {kind} checkpoint{within}" if kind != "none" else "to stop training, without a checkpoint"


def _ranks(detail: Detail, _snapshot: Snapshot) -> str:
    return ranks_text(detail.get("ranks", []))


def _agreed(detail: Detail, snapshot: Snapshot) -> str:
    step = detail.get("step", snapshot.get("agreed_step"))
    return f"every rank saves step {step}" if step is not None else ranks_text(detail.get("ranks", []))


def _saved(detail: Detail, snapshot: Snapshot) -> str:
    checkpoint = snapshot.get("checkpoint")
    if not checkpoint:
        return f"{ranks_text(detail.get('ranks', []))}; the whole checkpoint is not acknowledged"
    files, size = checkpoint.get("files"), checkpoint.get("bytes")
    parts = [f"step {checkpoint['step']}"] if checkpoint.get("step") is not None else []
    parts += [f"{files} files"] if files is not None else []
    parts += [size_text(size)] if size is not None else []
    return f"{', '.join(parts)}, {'hashed' if checkpoint.get('hashed') else 'not hashed'}, durable"


def _rank_saved(detail: Detail, _snapshot: Snapshot) -> str:
    return f"the save, by {ranks_text(detail.get('ranks', []))}"


def _checkpoint_read(detail: Detail, _snapshot: Snapshot) -> str:
    if detail.get("whole") is True:
        hashed = detail.get("hashed")
        hashes = f"{hashed} hashes recomputed and equal" if hashed else "saved without hashes"
        found = f"all {detail.get('files')} files are there in full size; {hashes}"
        # First what nobody may miss: a line of a file is cut at its end.
        harm = f"NOT FINITE: {detail['nonfinite']}; " if detail.get("nonfinite") else ""
        return harm + found + ("" if harm else _weights(detail))
    reason = detail.get("reason") or "no reason given"
    return f"NOT WHOLE: {reason}" if detail.get("whole") is False else f"not readable by the governor: {reason}"


def last_good_text(last_good: Mapping[str, Any]) -> str:
    """Its place, what a look has found there, and which newer ones were passed over."""
    passed = [one for one in last_good.get("passed_over", ()) if isinstance(one, Mapping)]
    parts = [f"{last_good.get('path', '?')}{_remark(last_good)}"]
    parts += [
        f"passed over: step {one.get('step', '?')}, {one.get('path', '?')}{_remark(one)}"
        for one in passed[:_PASSED_TOLD]
    ]
    parts += [f"{len(passed) - _PASSED_TOLD} more passed over"] if len(passed) > _PASSED_TOLD else []
    return "; ".join(parts)


def none_is_left(last_good: Mapping[str, Any]) -> bool:
    """Whether no checkpoint is known to go on from: one that is fit would be in its place."""
    return any(last_good.get(mark) for mark in _UNFIT)


def _remark(checkpoint: Mapping[str, Any]) -> str:
    mark = next((mark for mark in _REMARKS if checkpoint.get(mark)), None)
    if mark == "unseen" and checkpoint["unseen"] == PENDING:
        return " (it is still being looked at)"
    told = [] if mark is None else [_REMARKS[mark].format(checkpoint[mark])]
    told += [str(checkpoint["lacks"])] if checkpoint.get("lacks") and mark not in _UNFIT else []
    return f" ({'; '.join(told)})" if told else ""


def _weights(detail: Detail) -> str:
    if detail.get("few_nonfinite"):
        return f"; a few tensors are not finite: {detail['few_nonfinite']}"
    if "counted" not in detail:  # An older governor did not count.
        return ""
    return f"; {detail['counted']}" if detail["counted"] else "; its weights were not counted"


def _targets(detail: Detail, snapshot: Snapshot) -> str:
    if "unsent" in detail:
        return f"NOT SENT: {detail['unsent']}"
    return processes_text(snapshot) or "the run's processes"


def _killed(detail: Detail, snapshot: Snapshot) -> str:
    """Whom SIGKILL has reached: not those that SIGTERM had ended. An older report does not know."""
    targets = snapshot.get("targets", [])
    reached = [target for target in targets if target.get("killed", True)]
    of_all = snapshot.get("targets_unlisted", 0) if len(reached) == len(targets) else 0
    unlisted = snapshot.get("killed_unlisted", of_all)
    return _targets(detail, {"targets": reached, "targets_unlisted": unlisted})


def _unsure(detail: Detail, _snapshot: Snapshot) -> str:
    return f"alive, perhaps of the run, not ended: {unsure_text(detail)}"


def unsure_text(detail: Detail) -> str:
    return ", ".join(f"pid {row.get('pid')} ({plain(row.get('command'))})" for row in detail.get("processes", []))


def _respawned(detail: Detail, _snapshot: Snapshot) -> str:
    return f"new processes of the run: pid {', '.join(str(pid) for pid in detail.get('pids', []))}"


def _exited(_detail: Detail, snapshot: Snapshot) -> str:
    which = "that was noted " if unnoted_text(snapshot) is not None else ""
    return f"observed: no process of the run {which}is left"


def unnoted_text(snapshot: Snapshot) -> str | None:
    """What of the halted launch is not known to have ended, for its first governor was killed. None: all is known."""
    if not snapshot.get("in_doubt"):
        return None
    launch = snapshot.get("launch") or {}
    if launch.get("below_never_looked"):
        return "its governor was killed before it had looked what the launch had below it"
    many = launch.get("below_missed", "some")
    return f"{many} more process(es) of the launch were not noted before its governor was killed"


def _stop_requested(detail: Detail, snapshot: Snapshot) -> str:
    rung = RUNGS.get(detail.get("rung", 0), "?")
    if job := snapshot.get("job"):
        scheduler = str(snapshot.get("scheduler") or "the scheduler")
        return f"{rung} of job {str(job).removeprefix(f'{scheduler}:')} asked of {scheduler}"
    return (
        f"{rung} of {snapshot.get('instance_id') or 'the machine'} asked of {snapshot.get('cloud') or 'the provider'}"
    )


def who_stops(snapshot: Snapshot) -> str:
    """Whose word is waited for: the scheduler's, where a halt ends a job."""
    return "scheduler" if snapshot.get("job") else "provider"


def _accepted(detail: Detail, snapshot: Snapshot) -> str:
    reason = detail.get("reason")
    why = f" ({reason})" if reason not in (None, "accepted") else ""
    return f"by the {who_stops(snapshot)}: not yet proof of anything{why}"


def _reason(detail: Detail, _snapshot: Snapshot) -> str:
    return str(detail.get("reason") or "no reason given")


def _raised(detail: Detail, _snapshot: Snapshot) -> str:
    return str(detail.get("text") or "an exception of a rank")


def _state(detail: Detail, snapshot: Snapshot) -> str:
    return f'read back: {who_stops(snapshot)} says "{detail.get("state", "?")}"'


def _merged(detail: Detail, snapshot: Snapshot) -> str:
    rank, into = f"rank {detail.get('rank', '?')}", detail.get("into") or detail.get("merged_into")
    if into is not None and into == snapshot["incident_id"]:
        return f"{rank} saves once for this halt and for {detail.get('asked_by') or 'a checkpoint asked for before'}"
    if into is not None:
        return f"{rank} is busy with incident {into}"
    rule, why = detail.get("rule", "?"), detail.get("reason", "?")
    by_hand = _BY_HAND.get(rule)
    return f"{by_hand}: {detail.get('text') or why}" if by_hand else f'rule "{rule}" fired too: {why}'


def _restored(detail: Detail, _snapshot: Snapshot) -> str:
    return f"a restarted governor goes on at {detail.get('stage', '?')}"


def _superseded(detail: Detail, snapshot: Snapshot) -> str:
    then = "its idle time begins anew" if snapshot["run"] == NODE else "not stopped for the old run"
    return f"the machine went down at {detail.get('was', '?')} and was started again: {then}"


def _came_late(detail: Detail, _snapshot: Snapshot) -> str:
    return f"{detail.get('who', 'somebody')} came when the stop was accepted, or may have been"


def _ceiling_exceeded(detail: Detail, _snapshot: Snapshot) -> str:
    over, ceiling = int(detail.get("over_usd_micros", 0)), int(detail.get("ceiling_usd_micros", 0))
    why = "; ".join(str(cause) for cause in detail.get("because", []))
    scope = str(detail.get("scope", "run:"))
    whose = "" if scope.startswith("run:") else f" of {scope}"
    return f"{format_usd(over)} above {format_usd(ceiling)}{whose}: {why or 'no cause recorded'}"


def _egress(detail: Detail, _snapshot: Snapshot) -> str:
    paid, held = int(detail.get("usd_micros", 0)), int(detail.get("reserved_usd_micros", 0))
    return f"the checkpoint's upload cost {format_usd(paid)}, and {format_usd(held)} was reserved for it"


def _plainly(detail: Detail, _snapshot: Snapshot) -> str:
    return ", ".join(f"{key} {value}" for key, value in detail.items())


_WORDS: Final[Mapping[str, tuple[str, Callable[[Detail, Snapshot], str]]]] = {
    "verdict": ("verdict", _verdict),
    "asked": ("asked", _asked),
    "received": ("received", _ranks),
    "agreed": ("agreed", _agreed),
    "saving": ("saving", _ranks),
    "saved": ("saved", _saved),
    "rank_saved": ("confirmed", _rank_saved),
    "save_failed": ("not saved", _reason),
    NO_BOUNDARY: ("not saved", _reason),
    "raised": ("raised", _raised),
    COLLECTIVES: ("collective", lambda detail, _snapshot: str(detail.get("text") or "nothing is known of them")),
    "checkpoint_read": ("checked", _checkpoint_read),
    "term": ("SIGTERM", _targets),
    "kill": ("SIGKILL", _killed),
    "nobody_named": ("unseen", lambda _d, _s: "the run names no processes: that none is seen proves nothing"),
    "ranks_exited": ("ranks gone", lambda _d, _s: "observed: no rank is left; what they left behind is ended next"),
    "exited": ("gone", _exited),
    "unsure": ("not ended", _unsure),
    "respawned": ("respawned", _respawned),
    "stop_requested": ("stop", _stop_requested),
    "stop_accepted": ("accepted", _accepted),
    "stop_refused": ("refused", _reason),
    "stop_unknown": ("no answer", _reason),
    "drained": ("drained", _reason),
    "not_drained": ("NOT DRAINED", _reason),
    "billing": ("billed", _state),
    "verified": ("VERIFIED", _state),
    "merged": ("merged", _merged),
    "node_silent": ("silent", nodes.silent_node),
    "node_back": ("heard", nodes.node_back),
    "node_stopped": ("machine", nodes.node_stopped),
    "called": ("one halt", nodes.called),
    "page": ("PAGE", _reason),
    "ceiling_exceeded": ("OVER", _ceiling_exceeded),
    "egress": ("egress", _egress),
    "halted": ("halted", lambda _d, of: "the node is stopped" if of["run"] == NODE else "the halt is complete"),
    "restored": ("restored", _restored),
    "nobody_here": (
        "nobody",
        lambda _d, _s: "observed for all of that time: no live run, no command, no GPU process, no hold",
    ),
    "came_late": ("late", _came_late),
    GivenUp.ABANDONED: ("given up", lambda detail, _snapshot: f"{given_up(detail)}: the node goes on"),
    GivenUp.GAVE_WAY: (
        "given up",
        lambda _detail, _snapshot: "not ended: a run of the launched command has taken its place",
    ),
    GivenUp.SUPERSEDED: ("superseded", _superseded),
    GivenUp.LEFT_UNSEEN: ("not seen", _reason),
    GivenUp.LEFT_UNNOTED: ("not seen", lambda _d, of: f"the end of all: {unnoted_text(of) or 'not all was noted'}"),
    "undurable": ("undurable", lambda _detail, _snapshot: "not on disk within the bound; acted all the same"),
}


# --- parts of both reports ---------------------------------------------------------------------------------


def ranks_text(ranks: list[int]) -> str:
    """ "rank 0", "ranks 0, 1", "8 ranks"."""
    if not ranks:
        return "the trainer"
    if len(ranks) > 4:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank) for rank in ranks)}"


def processes_text(snapshot: Snapshot) -> str:
    """ "launcher and 2 ranks", from the recorded kill set. Whom the halt leaves alone is named as that."""
    told: dict[Any, list[str]] = {}  # By why it is left alone; None: it is not.
    for target in snapshot.get("targets", []):
        told.setdefault(target.get("left"), []).append(str(target.get("role", "process")))
    ended = _counted(told.pop(None, []), int(snapshot.get("targets_unlisted", 0)))
    why = {left: "it is another user's" if left == OTHER_USER else "another run stands below" for left in told}
    left_alone = [f"{_counted(roles, 0)} left alone, for {why[left]}" for left, roles in told.items()]
    return "; ".join([*([ended] if ended else []), *left_alone])


def _counted(roles: list[str], unlisted: int) -> str:
    counted = [(role, roles.count(role)) for role in dict.fromkeys(roles)]
    counted += [("process", unlisted)] if unlisted else []
    named = {"child": "children", "process": "processes", "launcher": "launchers", "rank": "ranks"}
    words = [role if count == 1 else f"{count} {named.get(role, role)}" for role, count in counted]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def size_text(size_bytes: int) -> str:
    for unit, name in _BYTES:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def since_text(since_ns: int) -> str:
    """Four significant places at most: "4.2 ms", "840 ms", "7.41 s", "12m 5s"."""
    magnitude = abs(since_ns)
    sign = "-" if since_ns < 0 else ""
    if magnitude < 10 * NS_PER_MS:
        return f"{sign}{magnitude / NS_PER_MS:.1f} ms"
    if magnitude < NS_PER_S:
        return f"{sign}{magnitude / NS_PER_MS:.0f} ms"
    if magnitude < NS_PER_MINUTE:
        return f"{sign}{magnitude / NS_PER_S:.2f} s"
    return sign + format_duration(magnitude)


def when(snapshot: Snapshot, what: str) -> int | None:
    """Nanoseconds from the verdict to the first entry of a kind."""
    return next((moment.since_ns for moment in moments(snapshot) if moment.what == what), None)
