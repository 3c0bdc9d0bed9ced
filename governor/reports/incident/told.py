"""What an incident says in sentences: what happened, and as plainly what nobody observed. Pure.

What differs in a node's own stop is in node_stop.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from governor.core.base.printable import after_step
from governor.core.halt.incident import COLLECTIVES, NO_BOUNDARY
from governor.core.halt.state import GivenUp
from governor.reports.node_stop import is_of_node, node_not_observed, node_summary
from governor.reports.resume_text import steps_behind, torn_text, unseen_last_good
from governor.reports.terminal import boundary_missed
from governor.text.incident_money import is_unpriced, stop_target
from governor.text.moments import Snapshot, moments, since_text, unnoted_text, unsure_text, when, who_stops
from governor.text.table import plain

_GIVEN_UP: Final = {
    GivenUp.ABANDONED: "somebody came to the node",
    GivenUp.GAVE_WAY: "its place was given to a run of the launched command",
    GivenUp.SUPERSEDED: "the machine went down",
    GivenUp.LEFT_UNSEEN: "its governor ended in another PID namespace, whose processes cannot be seen from here",
    GivenUp.LEFT_UNNOTED: "its governor was killed, which had not noted all of its processes",
}
assert _GIVEN_UP.keys() == set(GivenUp), "each end of a halt has its words"


def summary(snapshot: Snapshot) -> str:
    """What happened, in one sentence."""
    if is_of_node(snapshot):
        return node_summary(snapshot)
    who = (
        f"uid {snapshot['operator_uid']} asked for it"
        if snapshot.get("operator_uid") is not None
        else f'rule "{plain(snapshot["rule"])}" of policy "{plain(snapshot["policy"])}" fired'
    )
    step = after_step(snapshot.get("step"))
    why = plain(snapshot.get("text") or snapshot.get("reason") or "")
    what = f'Run "{plain(snapshot["run"])}" on node {plain(snapshot["node"])} {_halted(snapshot)} {step}'
    parts = [
        f"{what} because {who}: {why}",
        _saved_clause(snapshot),
        _ended_clause(snapshot),
    ]
    return "; ".join(part for part in parts if part) + "."


def _halted(snapshot: Snapshot) -> str:
    if snapshot.get("closed_wall_ns") is None:
        return "is being halted"
    given_up = GivenUp.of(snapshot["halt_stage"])
    return "was halted" if given_up is None else f"was being halted when {_GIVEN_UP[given_up]},"


def _saved_clause(snapshot: Snapshot) -> str:
    checkpoint = snapshot.get("checkpoint")
    if not checkpoint:
        return "no checkpoint was saved by the halt"
    verified = {"governor": "verified by the governor", "trainer": "verified by the trainer only"}.get(
        str(checkpoint.get("verified_by")), "NOT verified"
    )
    step = f"{checkpoint.get('step', '?')}{steps_behind(snapshot)}"
    return f"a {checkpoint.get('kind', '?')} checkpoint of step {step} was saved, {verified}"


def _ended_clause(snapshot: Snapshot) -> str:
    exited, verified = when(snapshot, "exited"), when(snapshot, "verified")
    whose = "its processes" if unnoted_text(snapshot) is None else "those of its processes that were noted"
    clauses = [f"{whose} were gone {since_text(exited)} after the verdict" if exited is not None else ""]
    if verified is not None:
        what = "its job holds no node" if snapshot.get("job") else "the end of billing"
        clauses.append(f"the {who_stops(snapshot)} confirmed {what} after {since_text(verified)}")
    elif stop_target(snapshot) == "processes":
        clauses.append("the machine was left running")
    else:
        clauses.append(f"the end of {'its job' if snapshot.get('job') else 'billing'} is NOT confirmed")
    return ", ".join(clause for clause in clauses if clause)


def not_observed(snapshot: Snapshot) -> list[str]:
    """Everything that the reader might assume although it was not observed. Empty if the halt is fully proven."""
    if is_of_node(snapshot):
        return node_not_observed(snapshot)
    seen = {str(entry["what"]) for entry in snapshot["timeline"]}
    lines = [*_unseen_checkpoint(snapshot, seen), *unseen_last_good(snapshot), *_unseen_end(snapshot, seen)]
    if snapshot.get("undurable"):
        lines.append("Some records were not on disk when they were acted upon (full or frozen disk).")
    if is_unpriced(snapshot):
        lines.append("The price of this machine is unknown, so what was spent is unknown.")
    elif snapshot.get("spend_rate_usd_micros_per_hour") is None and snapshot.get("paid_by") is None:
        lines.append("The price of this machine was unknown at the halt: what it cost without one is not in the spend.")
    lost = [str(rank["rank"]) for rank in snapshot["ranks"] if not rank.get("connected", True)]
    if lost:
        lines.append(f"Not connected at the verdict, so their position is old: rank {', '.join(lost)}.")
    return lines


def next_attempt(snapshot: Snapshot) -> str | None:
    """What keeps the next attempt from a node whose GPU failed. None where there is none."""
    scheduler, colon, node = str(snapshot.get("bad_node") or "").partition(":")
    if not colon:
        return None
    what = f"the GPU of node {plain(node)} failed"
    if any(entry["what"] == "drained" for entry in snapshot["timeline"]):
        return f"{what}: {scheduler} starts nothing there until somebody resumes it"
    keep = f"sbatch --exclude={plain(node)}" if scheduler == "slurm" else f"kubectl cordon {plain(node)}"
    return f"{keep}: {what}, and it may be given out again"


def collectives_told(snapshot: Snapshot) -> list[str]:
    """What ranks showed of their last collectives at the halt: a line for each group, and for each rank without."""
    found = snapshot["evidence"].get(COLLECTIVES)
    if not isinstance(found, Mapping):
        return []
    groups, problems = found.get("groups") or [], found.get("problems") or {}
    lines = [plain(group["text"]) for group in groups]
    more = found.get("groups_total", len(groups)) - len(groups)
    lines += [f"{more} more group(s) of ranks are not listed"] if more > 0 else []
    return [*lines, *(f"rank {rank}: {plain(why)}" for rank, why in problems.items())]


def _unseen_checkpoint(snapshot: Snapshot, seen: set[str]) -> list[str]:
    checkpoint = snapshot.get("checkpoint")
    if not checkpoint:
        if snapshot.get("kind") == "none" or "asked" not in seen:
            return ["No checkpoint: none was asked for."]
        if NO_BOUNDARY in seen:
            return [f"No checkpoint: {boundary_missed(snapshot)}, and only there can it be saved."]
        if "save_failed" in seen:
            return ["No checkpoint: the trainer could not save one (see the timeline)."]
        answered = "received it but saved nothing in time" if "received" in seen else "never acknowledged the request"
        return [f"No checkpoint: the trainer {answered}."]
    lines = []
    if checkpoint.get("verified_by") == "trainer":
        lines.append("The checkpoint's completeness is the trainer's word: the governor has not read its files.")
    elif checkpoint.get("verified_by") != "governor":
        torn = torn_text(checkpoint)
        lines.append(f"The checkpoint is NOT known to be whole{'' if torn is None else f': {plain(torn)}'}.")
    elif not checkpoint.get("hashes_equal"):
        lines.append("The checkpoint's files are there with the right sizes; their contents were not compared.")
    return lines


def _unseen_end(snapshot: Snapshot, seen: set[str]) -> list[str]:
    lines = []
    if "exited" not in seen:
        text = "The end of the run's processes was not observed."
        lines.append(text.replace(".", ", but the machine's was.") if "verified" in seen else text)
    lines.extend(
        f"Whose these are, which live on and were not ended: {unsure_text(entry['detail'])}."
        for entry in snapshot["timeline"]
        if entry["what"] == "unsure"
    )
    unnoted = unnoted_text(snapshot)
    if unnoted is not None:
        lines.append(f"The end of all processes of the launch was not observed: {unnoted}.")
    if stop_target(snapshot) == "processes":
        lines.append("No machine was stopped, by plan: it stays billed until somebody stops it.")
    elif "verified" not in seen:
        last = next((m.text for m in reversed(moments(snapshot)) if m.what in ("billing", "stop_refused")), None)
        what = "that the job holds no node" if snapshot.get("job") else "that billing ended"
        lines.append(f"The {who_stops(snapshot)} never confirmed {what}{f' (last: {last})' if last else ''}.")
    if snapshot.get("closed_wall_ns") is None:
        lines.append(f"The halt is not finished: stage {snapshot['halt_stage']}.")
    return lines
