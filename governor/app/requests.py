"""What the control socket may ask of a running governor, and who may ask it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from governor import __version__
from governor.app import budget_requests, look_requests, mark_requests
from governor.app.request_fields import Refused, is_whole, whole, word
from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_S, DurationNs
from governor.core.engine import names
from governor.core.engine.idle_state import NODE
from governor.core.engine.node import owner_of
from governor.core.events.operators import OperatorForget, OperatorHalt, OperatorHold
from governor.core.halt.state import HaltState
from governor.core.views.status import budgets_status, lines_status, node_status, runs_status
from governor.daemon.loop import Daemon
from governor.ports import ControlRequest
from governor.wire.control_client import INCIDENTS_MAX
from governor.wire.peers import is_own
from trainer_shim.wire import TEXT_CHARS_MAX

HOLD_MAX_NS: Final = 7 * 24 * NS_PER_HOUR  # A hold that nobody remembers is a missing watchdog.

CHECKPOINT_WORDS: Final = "checkpoint may only be none: no save is asked for; else the policy decides"

# A halt saves and ends a run first. The node's own stop has no run to ask, so it waits until the node is unused.
NODE_IS_NOT_HALTED: Final = (
    "the node itself is not halted by hand: `costgov halt RUN` saves and ends a run, and stops the machine where its "
    "policy says so; a node that nobody uses is stopped by idle_stop; to stop it now, use the provider's own console"
)

Answer = dict[str, Any]


def answer(daemon: Daemon, request: ControlRequest) -> Answer | None:
    """Answer one request. None: the answer comes later. Never raises for what a client may send."""
    handler = _COMMANDS.get(str(request.body.get("cmd")))
    if handler is None:
        return _no("bad_request", f"unknown command; known: {', '.join(sorted(_COMMANDS))}")
    try:
        return handler(daemon, request)
    except Refused as refused:
        return _no(refused.code, str(refused))


def _yes(data: Any) -> Answer:
    return {"ok": True, "data": data}


def _no(code: str, error: str) -> Answer:
    return {"ok": False, "code": code, "error": error}


def _ping(_daemon: Daemon, _request: ControlRequest) -> Answer:
    return _yes({"version": __version__, "pid": os.getpid()})


def _status(daemon: Daemon, _request: ControlRequest) -> Answer:
    return _yes(status(daemon))


def status(daemon: Daemon) -> Answer:
    """The `status` document: governor, runs, unannounced GPU processes."""
    node, health, facts = daemon.node, daemon.health, daemon.node.facts
    extra, wall = daemon.extra(), daemon.performer.clock.wall()
    price = node.ledger.price_usd_micros_per_hour
    governor = {
        "version": __version__,
        "pid": os.getpid(),
        # The run for which `costgov run` was started; null for the node's service.
        "run": daemon.supervised.run if daemon.supervised is not None else None,
        "node": facts.node,
        "boot_id": facts.boot_id,
        "mode": "observe" if facts.observe else "enforce",
        "policies": [policy.name for policy in node.policies.policies],
        "policy_digest": node.policies.digest,
        "fallen_back": [one.row() for one in node.policies.fallen()],
        "last_reload_ok": health.last_reload_ok,
        "reload_error": health.reload_error,
        "price_usd_per_hour": price / MICROS_PER_USD if price is not None else None,
        "price_source": node.price_source,
        "lines": lines_status(node),
        "budgets": budgets_status(node, daemon.performer.clock.mono()),
        "loop_lag_ms": round(health.loop_lag_ms, 3),
        "frames_total": node.frames_total,
        "frames_dropped_total": node.frames_lost_total,
        "frames_malformed_total": health.frames_malformed_total,
        # Whose connections were not accepted in the last hour: their trainers go on unwatched.
        "refused": [one for one in health.refused.values() if wall - one["last_wall_ns"] < NS_PER_HOUR],
        "journal_errors_total": daemon.performer.journal.errors_total,
        "request_errors_total": daemon.request_faults.total,
        "observer_errors_total": daemon.performer.observer.errors_total,
        **extra.get("governor", {}),
    }
    return {
        "governor": governor,
        "runs": _finite(runs_status(node, daemon.performer.clock.mono())),
        "node": node_status(node, daemon.performer.clock.mono()),
        "unwatched_gpu_processes": extra.get("unwatched_gpu_processes", []),
    }


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by the wire's words: JSON has none."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _may_control(daemon: Daemon, request: ControlRequest, run: str) -> bool:
    """Whether the client is root, our own user or the run's owner, or in the socket's group (its mode is 0660)."""
    managed = daemon.node.runs.get(run)
    owner = managed.run.uid if managed is not None else None
    return request.uid in (0, owner) or is_own(request.uid) or daemon.control_is_private


def _halt(daemon: Daemon, request: ControlRequest) -> Answer:
    run, reason = _own(daemon, request, request.body.get("run")), request.body.get("reason")
    if run == NODE:
        return _no("bad_request", NODE_IS_NOT_HALTED)
    refusal = _refusal(daemon, request, run, reason)
    if refusal is not None:
        return refusal
    assert isinstance(run, str)
    assert isinstance(reason, str)
    managed = daemon.node.runs[run]
    if not managed.run.alive:
        return _no("no_such_run", f"run {run} has ended")
    checkpoint = word(request.body, "checkpoint", 4, CHECKPOINT_WORDS, may_lack=True)
    if checkpoint not in (None, "none"):
        return _no("bad_request", CHECKPOINT_WORDS)
    is_unsaved = checkpoint is not None
    daemon.apply(OperatorHalt(daemon.performer.clock.mono(), run, reason, request.uid, is_unsaved))
    incident = daemon.node.runs[run].incident
    if incident is None:
        return _yes({"run": run, "incident_id": None})
    is_asked = incident.halt.stage in (HaltState.ASKED, HaltState.SAVING)
    return _yes({
        "run": run, "incident_id": incident.incident_id, "checkpoint": incident.plan.checkpoint if is_asked else "none",
        "wait_s": incident.plan.grace_ns / NS_PER_S if is_asked else 0.0,
    })  # fmt: skip


def _hold(daemon: Daemon, request: ControlRequest) -> Answer:
    run, reason = _own(daemon, request, request.body.get("run")), request.body.get("reason")
    duration = request.body.get("duration_ns")
    refusal = _refusal(daemon, request, run, reason)
    if refusal is not None:
        return refusal
    if not is_whole(duration, 0, HOLD_MAX_NS):
        return _no("bad_request", "a hold lasts between 0 and 7 days")
    assert isinstance(duration, int)
    assert isinstance(run, str)
    assert isinstance(reason, str)
    daemon.apply(OperatorHold(daemon.performer.clock.mono(), run, DurationNs(duration), reason, request.uid))
    held = daemon.node.runs[run].history.held(daemon.performer.clock.mono()) if run in daemon.node.runs else None
    beside = {"held_still": held[1]} if held is not None and not duration else {}
    return _yes({"run": run, "left_s": duration / 1e9, **beside})


def _forget(daemon: Daemon, request: ControlRequest) -> Answer:
    node, run = daemon.node, request.body.get("run")
    owner = owner_of(node, run) if isinstance(run, str) else None
    if not isinstance(run, str) or owner is None:
        return _no("no_such_run", f"no run {str(run)[:60]!r} here, or its name belongs to nobody already")
    if not (request.uid in (0, owner) or is_own(request.uid) or daemon.control_is_private):
        return _no("denied", f"uid {request.uid} neither owns run {run} nor may control this governor")
    managed = node.runs.get(run)
    if managed is not None and managed.incident is not None and names.in_halt(managed):
        incident_id = managed.incident.incident_id
        told = f"the halt of run {run} is not over: `costgov incident show {incident_id}` shows how far it is"
        return _no("refused", told)
    if names.in_use(node, run):
        return _no("refused", f'run {run} is alive: end it first, or say `costgov halt {run} --reason "…"`')
    spend = node.ledger.spend(run) / MICROS_PER_USD
    daemon.apply(OperatorForget(daemon.performer.clock.mono(), run, request.uid))
    return _yes({"run": run, "owner_uid": owner, "spend_usd": spend})


def _own(daemon: Daemon, request: ControlRequest, run: Any) -> Any:
    """The client's own run of this name, where the name itself is another user's."""
    if not isinstance(run, str) or owner_of(daemon.node, run) in (None, request.uid):
        return run
    own = names.own_run(daemon.node, run, request.uid) if request.uid != 0 else None
    return own if own is not None and own in daemon.node.runs else run


def _refusal(daemon: Daemon, request: ControlRequest, run: Any, reason: Any) -> Answer | None:
    if not isinstance(run, str) or (run not in daemon.node.runs and run != NODE):
        known = ", ".join(list(daemon.node.runs)[:5]) or "none"
        return _no("no_such_run", f"no run {str(run)[:60]!r} here; known: {known}")
    word({"reason": reason}, "reason", TEXT_CHARS_MAX, budget_requests.REASON_NEEDED)
    if not _may_control(daemon, request, run):
        return _no("denied", f"uid {request.uid} neither owns run {run} nor may control this governor")
    return None


def _incidents(daemon: Daemon, request: ControlRequest) -> Answer | None:
    last = whole(request.body, "last", 1, INCIDENTS_MAX, f"last is a number from 1 to {INCIDENTS_MAX}", 100)
    wanted = request.body.get("of")
    if wanted is not None and not isinstance(wanted, str):
        return _no("bad_request", "of is an incident's id, the beginning of one, or last")

    def tell(line: bytes) -> None:
        daemon.soon(lambda: daemon.reply(request.conn, line))

    brief = request.body.get("brief") is True
    if daemon.incident_queries.ask(daemon.performer.journal, last, wanted, tell, brief=brief):
        return None
    return _no("unavailable", "too many questions about past halts are open; try again in a moment")


def _reload(daemon: Daemon, request: ControlRequest) -> Answer:
    if request.uid != 0 and not is_own(request.uid):
        return _no("denied", "only root and the governor's own user may reload")
    if daemon.reload():
        return _yes({"digest": daemon.node.policies.digest})
    return _no("bad_request", daemon.health.reload_error or "the new policies are invalid; the old ones stand")


def _budget(act: Callable[[Daemon, ControlRequest, budget_requests.MayControl], Answer]) -> Callable[..., Answer]:
    def handle(daemon: Daemon, request: ControlRequest) -> Answer:
        return _yes(act(daemon, request, _may_control))

    return handle


_COMMANDS: Final[Mapping[str, Callable[[Daemon, ControlRequest], Answer | None]]] = {
    "ping": _ping,
    "status": _status,
    "halt": _halt,
    "hold": _hold,
    "budget_set": _budget(budget_requests.set_budget),
    "budget_clear": _budget(budget_requests.clear_budget),
    "evidence": _budget(look_requests.look_at),
    "forget": _forget,
    "incidents": _incidents,
    "incident_mark": mark_requests.mark,
    "rule_rearm": mark_requests.rearm,
    "halt_marks": mark_requests.list_marks,
    "reload": _reload,
}
