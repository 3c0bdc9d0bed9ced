"""The catalogue of alerts: one record for an alarm or a halt, its severity, who wants it, and repeats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from governor.core.base.policy import first_trigger
from governor.core.base.printable import printable, storable
from governor.core.base.units import NS_PER_MINUTE, DurationNs, MonoNs, WallNs, is_spend_known
from governor.core.engine.idle_state import NODE
from governor.core.halt.state import HaltState
from governor.core.money.token_price import TokenPrices

if TYPE_CHECKING:  # Node and its imports take a tenth of a command's start.
    from governor.core.engine.node import Node

# The longest alarm names 16 pids. Chat services cut at 3,000 to 4,000 characters.
TEXT_CHARS_MAX: Final = 2_000
# As in metrics. With 32 labels an alert stays below the size that receivers usually accept.
LABEL_CHARS_MAX: Final = 128
# An alarm that repeats within this time is one alert; its last text is sent at the end. It equals Alertmanager's usual
# group_interval: a receiver at that interval would not see more changes anyway.
REPEAT_NS: Final = DurationNs(5 * NS_PER_MINUTE)
# Names times runs: 32 kinds of alarm for 32 runs. The oldest is dropped, so its next alarm is sent again.
KEYS_MAX: Final = 1_024
HALT: Final = "halt"  # The name of every alert about an incident.
STRANGERS_HALT: Final = "stranger_halt"  # But of a run of another user beside the command of `costgov run`.
TEST: Final = "test"  # The name of the alert of `costgov alert test`.


class Severity(IntEnum):
    """How much an alert matters, in the words that Alertmanager's routes usually match."""

    INFO = 0  # Nothing is wrong: for information.
    WARNING = 1  # Needs a look today.
    CRITICAL = 2  # Money or work is being lost now, or a halt is in progress.

    @property
    def word(self) -> str:
        return self.name.lower()


# For "rule_<name>" (an alarm of a policy's rule), "budget_<scope>" and any other name that is not in the table.
DEFAULT_SEVERITY: Final = Severity.WARNING
SEVERITIES: Final[Mapping[str, Severity]] = MappingProxyType(
    {
        "absence_uncharged": Severity.WARNING,
        HALT: Severity.CRITICAL,
        TEST: Severity.INFO,
        "back_after_halt": Severity.CRITICAL,
        "begun_anew": Severity.WARNING,
        "breaker_open": Severity.CRITICAL,
        "budget_over": Severity.INFO,
        "budgets_unreadable": Severity.CRITICAL,
        "ceiling_ahead": Severity.WARNING,
        "crashed": Severity.CRITICAL,
        "checkpoint_capped": Severity.WARNING,
        "checkpoint_failed": Severity.WARNING,
        "checkpoint_nonfinite": Severity.CRITICAL,
        "checkpoint_torn": Severity.WARNING,
        "displaced": Severity.WARNING,
        "displaced_nonfinite": Severity.CRITICAL,
        "enforces_again": Severity.INFO,
        "fell_back": Severity.WARNING,
        "fleet_again": Severity.INFO,
        "fleet_node_silent": Severity.CRITICAL,
        "fleet_order_observed": Severity.WARNING,
        "fleet_order_unreadable": Severity.WARNING,
        "fleet_silent": Severity.WARNING,
        "fleet_swept": Severity.WARNING,
        "fleet_unseen": Severity.WARNING,
        "figure_refused": Severity.WARNING,
        "halt_held": Severity.WARNING,
        "halt_marks_unreadable": Severity.WARNING,
        "gate_not_asked": Severity.WARNING,
        "gate_passed": Severity.INFO,
        "gate_unsure": Severity.INFO,
        "hello_refused": Severity.WARNING,
        "name_taken": Severity.WARNING,
        "node_not_drained": Severity.WARNING,
        "operator_forget": Severity.INFO,
        "run_displaced": Severity.WARNING,
        "run_not_recalled": Severity.WARNING,
        "incident_unreadable": Severity.CRITICAL,
        "joined": Severity.INFO,
        "journal_gone": Severity.CRITICAL,
        "lines_unread": Severity.WARNING,
        "last_good_gone": Severity.CRITICAL,
        "left_behind": Severity.CRITICAL,
        "left_unseen": Severity.WARNING,
        "log_unjudged": Severity.WARNING,
        "needs_human": Severity.CRITICAL,
        "no_loss": Severity.WARNING,
        "no_policy": Severity.WARNING,
        "no_step": Severity.CRITICAL,
        "node_came_late": Severity.CRITICAL,
        "node_idle": Severity.WARNING,
        "node_kept": Severity.WARNING,
        "node_stays_billed": Severity.WARNING,
        "node_stop_abandoned": Severity.INFO,
        "node_unseen": Severity.WARNING,
        "nobody_attached": Severity.WARNING,
        "nobody_named": Severity.CRITICAL,
        "operator_halt": Severity.INFO,
        "operator_hold": Severity.INFO,
        "peer_heard_again": Severity.INFO,
        "peer_same_name": Severity.WARNING,
        "peer_silent": Severity.CRITICAL,
        "peer_stays_billed": Severity.CRITICAL,
        "peers_again": Severity.INFO,
        "peers_off": Severity.CRITICAL,
        "price_assumed": Severity.INFO,
        "price_contradiction": Severity.WARNING,
        "price_doubted": Severity.WARNING,
        "price_listed": Severity.INFO,
        "price_refused": Severity.WARNING,
        "price_stale": Severity.WARNING,
        "price_unanswered": Severity.WARNING,
        "price_unknown": Severity.WARNING,
        "price_unlisted": Severity.INFO,
        "process_table_unreadable": Severity.CRITICAL,
        "recording_stopped": Severity.WARNING,
        "run_unreadable": Severity.WARNING,
        "shared_again": Severity.INFO,
        "shared_denied": Severity.CRITICAL,
        "shared_left_behind": Severity.WARNING,
        "shared_low": Severity.WARNING,
        "shared_silent": Severity.CRITICAL,
        "shared_unreturned": Severity.WARNING,
        "socket_gone": Severity.CRITICAL,
        "spot_notice": Severity.CRITICAL,
        "still_billed": Severity.CRITICAL,
        STRANGERS_HALT: Severity.WARNING,
        "stranger_not_ended": Severity.WARNING,
        "stream_refused": Severity.WARNING,
        "stream_rivals": Severity.WARNING,
        "stream_unanswered": Severity.WARNING,
        "stream_untrusted": Severity.WARNING,
        "superseded_by_reboot": Severity.WARNING,
        "tokens_read": Severity.INFO,
        "trains_beside": Severity.WARNING,
        "unwatched": Severity.WARNING,
        "watched_again": Severity.INFO,
    }
)


def severity_of(name: str) -> Severity:
    return SEVERITIES.get(name, DEFAULT_SEVERITY)


class State(Enum):
    """An alarm is one event. A halt lasts from its verdict to its end."""

    EVENT = "event"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class OfIncident:
    incident_id: str
    halt_stage: str
    reason: str
    trigger: str = ""  # Of several that fired together the first.


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `alert_id` is the same each time it is sent, also by a restarted governor."""

    alert_id: str
    name: str
    severity: Severity
    state: State
    wall: WallNs  # The time of the event, or of the halt's begin.
    node: str
    text: str
    see: str  # The command that shows more.
    run: str | None = None
    stage: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    spend_usd_micros: int | None = None
    ceiling_usd_micros: int | None = None
    prices: TokenPrices = TokenPrices()
    incident: OfIncident | None = None
    ended_wall: WallNs | None = None
    # How often the alarm came within REPEAT_NS without an alert of its own.
    repeats: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """The identity of what is reported: a halt by its incident, an alarm by name and run."""
        return (self.name, self.run or "", self.incident.incident_id if self.incident is not None else "")


@dataclass(frozen=True, slots=True)
class Route:
    """The alerts that one receiver wants. `only`: names, or prefixes of names with a star; empty: all."""

    only: tuple[str, ...] = ()
    min_severity: Severity = Severity.INFO

    def wants(self, alert: Alert) -> bool:
        named = not self.only or any(
            alert.name.startswith(one[:-1]) if one.endswith("*") else alert.name == one for one in self.only
        )
        return named and alert.severity >= self.min_severity


def of_alarm(node: Node, name: str, run: str | None, text: str, wall: WallNs, number: int) -> Alert:
    """`number` distinguishes alarms of the same nanosecond. A stranger's, beside a command, is at most a warning."""
    managed, severity = node.runs.get(run) if run is not None else None, severity_of(name)
    if managed is not None and managed.is_strangers:
        text = f"run {run} (of uid {managed.run.uid}, beside the command): {text}"
        severity = min(severity, Severity.WARNING)
    identity = (node.facts.node, node.facts.boot_id, name, run or "", str(wall), str(number))
    told = Alert(
        alert_id=_id_of(identity),
        name=name,
        severity=severity,
        state=State.EVENT,
        wall=wall,
        node=node.facts.node,
        text=shown(text),
        see="costgov status",
        run=run,
    )
    return _with_run(told, node)


def of_incident(node: Node, snapshot: Mapping[str, Any]) -> Alert:
    """Make an alert from an incident's snapshot (core.engine.incident_json). Each state of an incident is one alert.

    Beside the command of `costgov run`, a stranger's halt ends nothing of the command's, and nobody is called for it.
    """
    incident_id, stage, run = (str(snapshot[key]) for key in ("incident_id", "halt_stage", "run"))
    name = STRANGERS_HALT if snapshot.get("strangers") else HALT
    closed = snapshot["closed_wall_ns"]
    told = Alert(
        alert_id=_id_of((incident_id, str(snapshot["opened_wall_ns"]), stage)),
        name=name,
        severity=severity_of(name),
        state=State.FIRING if closed is None else State.RESOLVED,
        wall=WallNs(int(snapshot["opened_wall_ns"])),
        node=str(snapshot["node"]),
        text=shown(_said_of_halt(run, stage, snapshot)),
        see=f"costgov incident show {incident_id}",
        run=run,
        stage=snapshot["stage"],
        # A governor that resumes the halt has not charged its downtime yet: the alert never shows less than the
        # verdict's spend.
        spend_usd_micros=max(snapshot["spend_usd_micros"], snapshot["spend_at_verdict_usd_micros"]) or None,
        prices=TokenPrices.of(snapshot, "usd_micros_per_mtok"),
        incident=OfIncident(incident_id, stage, str(snapshot["reason"]), first_trigger(snapshot)),
        ended_wall=WallNs(int(closed)) if closed is not None else None,
    )
    return _with_run(told, node)


def of_test(node: str, wall: WallNs) -> Alert:
    return Alert(
        alert_id=_id_of((node, TEST, str(wall))),
        name=TEST,
        severity=severity_of(TEST),
        state=State.EVENT,
        wall=wall,
        node=node,
        text="a test of this receiver, sent by `costgov alert test`: nothing has happened",
        see="costgov alert test",
    )


def _said_of_halt(run: str, stage: str, snapshot: Mapping[str, Any]) -> str:
    why, who = str(snapshot["text"]), "the node" if run == NODE else f"run {run}"
    is_strangers = bool(snapshot.get("strangers"))
    if is_strangers:
        who += f" (of uid {snapshot['uid']}, beside the command)"
    if is_strangers and stage == HaltState.HALTED.name:
        return f"{who} is halted: {why}"
    if stage == HaltState.HALTED.name:
        billed = "; ".join(map(str, snapshot["stays_billed"]))
        return f"{who} is halted: {why}; stays billed: {billed or 'nothing that is known'}"
    if stage == HaltState.NEEDS_HUMAN.name and not is_strangers:
        return f"the halt of {who} needs a person, and keeps trying: {why}"
    if snapshot["closed_wall_ns"] is not None:
        return f"the halt of {who} is closed ({stage}): {why}"
    return f"{who} is being halted, now {stage}: {why}"


def _with_run(alert: Alert, node: Node) -> Alert:
    from governor.core.engine.run_forecast import token_prices  # It has Node and its imports.

    managed = node.runs.get(alert.run) if alert.run is not None else None
    if managed is None:
        return alert
    run = managed.run
    is_known = is_spend_known(run.spend_rate_usd_micros_per_hour, run.spend_usd_micros)
    spend = run.spend_usd_micros if is_known else None
    return replace(
        alert,
        stage=shown(run.stage, LABEL_CHARS_MAX) if run.stage else alert.stage,
        labels={shown(key, LABEL_CHARS_MAX): shown(value, LABEL_CHARS_MAX) for key, value in run.labels.items()},
        spend_usd_micros=alert.spend_usd_micros if alert.spend_usd_micros is not None else spend,
        ceiling_usd_micros=managed.policy.budget.ceiling_usd_micros,
        prices=alert.prices if alert.incident is not None else token_prices(managed),
    )


def _id_of(parts: tuple[str, ...]) -> str:
    # A full stop is a separator in what a webhook signs, and a name may contain one.
    return "msg_" + hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def shown(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Shorten the text and make it fit for JSON and for people: it may repeat what a trainer or a client has sent."""
    return "\n".join(map(printable, storable(text[:chars_max]).split("\n")))


@dataclass(slots=True)
class _Reported:
    since: MonoNs
    repeats: int = 0
    text: str = ""


@dataclass(slots=True)
class Repeats:
    """Merges repeats of an alarm into one alert. The held back text is sent once, at the end of REPEAT_NS."""

    _reported: dict[tuple[str, str | None], _Reported] = field(default_factory=dict)  # Oldest first.

    def is_new(self, name: str, run: str | None, text: str, at: MonoNs) -> bool:
        """Whether to send the alarm now. Otherwise it is counted, and its text is stored for `due`."""
        told = self._reported.get((name, run))
        if told is not None and at - told.since < REPEAT_NS:
            told.repeats += 1
            told.text = text
            return False
        self._reported.pop((name, run), None)
        self._reported[name, run] = _Reported(at)
        if len(self._reported) > KEYS_MAX:
            del self._reported[next(iter(self._reported))]
        return True

    def due(self, at: MonoNs) -> Iterator[tuple[str, str | None, str, int]]:
        """Name, run, last text and count of each alarm that repeated and is due; each interval then restarts."""
        while self._reported:
            key, told = next(iter(self._reported.items()))
            if at - told.since < REPEAT_NS:
                return
            del self._reported[key]
            if told.repeats:
                self._reported[key] = _Reported(at)
                yield (*key, told.text, told.repeats)
