"""One run as the engine manages it: its state, its policy, what it has cost, what was reported of it, and its halt."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from governor.core.base.identity import ProcessId
from governor.core.base.policy import Policy
from governor.core.base.units import BootNs, MonoNs, UsdMicros, WallNs
from governor.core.halt.incident import Incident
from governor.core.money.charges import Charge
from governor.core.money.forecast import RECENT_WINDOWS, CeilingReport, Forecast
from governor.core.money.ledger import TokenWindow
from governor.core.money.token_windows import TokenMeter, Window
from governor.core.rules.evaluate import Rules
from governor.core.runs.life import Life
from governor.core.runs.state import Run, Trained


@dataclass(slots=True)
class RunHistory:
    """What outlives an attempt, and stays known of a run that is forgotten, beside what the ledger says of its spend.

    Nobody else takes its budget, no incident id is given twice, its hold and its breaker stand, and its windows go on
    where they ended.
    """

    incidents_total: int = 0
    halts_wall: list[WallNs] = field(default_factory=list)  # Of the last day, for the breaker.
    hold_until: MonoNs | None = None
    hold_reason: str = ""
    paid_from: BootNs = BootNs(0)  # When it began to hold the node: its first window begins there.
    paid_before: UsdMicros = UsdMicros(0)  # What it had spent by then is in no window of ours.
    meter: TokenMeter | None = None  # From the first step whose tokens are known.

    def hold(self, until: MonoNs | None, reason: str) -> None:
        """No rule halts the run before."""
        self.hold_until, self.hold_reason = until, reason


@dataclass(slots=True)
class RunMoney:
    """What its tokens cost lately, and what its checkpoints cost to keep."""

    window: TokenWindow = field(default_factory=TokenWindow)
    # Of the last step whose tokens count: its attempt's begin, its number in the attempt, and the absolute one.
    metered: tuple[MonoNs, int, int] = MonoNs(-1), 0, 0
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))
    forecast: Forecast | None = None  # As of the last window's end.
    checkpoint_bytes_max: int = 0  # Of those that left the region: what the halt's own may cost is reserved by it.
    checkpoints_charged: tuple[str, ...] = ()  # The last ones, named: one that is reported again is charged once.


@dataclass(slots=True)
class Reported:
    """Alarms that were given and stand: each is given once."""

    nobody_attached: bool = False
    no_loss: tuple[str, MonoNs] | None = None  # The attempt that was said to show no loss.
    unwatched: bool = False
    superseded_at: MonoNs | None = None
    price: bool = False
    ceilings: dict[str, CeilingReport] = field(default_factory=dict)  # By the scope of the ceiling.


@dataclass(slots=True)
class Launch:
    """Who the run is, beside its announced ranks."""

    launchers: tuple[ProcessId, ...] = ()
    command: tuple[str, ...] = ()  # Of the outermost launcher.
    named: tuple[ProcessId, ...] = ()  # Of a JSONL-only run: the processes that its owner named.
    remembered: tuple[ProcessId, ...] = ()  # From the journal: who was the run before we came back.


@dataclass(slots=True)
class ManagedRun:
    """One run with the policy that judges it and the halt that may be under way."""

    run: Run
    policy: Policy
    rules: Rules
    history: RunHistory = field(default_factory=RunHistory)
    money: RunMoney = field(default_factory=RunMoney)
    reported: Reported = field(default_factory=Reported)
    launch: Launch = field(default_factory=Launch)
    incident: Incident | None = None  # The open or last one of the present attempt.
    gpus_asked_at: MonoNs | None = None  # By the driver, and it was known which are the run's: before its log's word.
    stream_position: Mapping[str, Any] | None = None  # How far its JSONL stream was read, in the reader's terms.
    is_held_back: bool = False  # A hold or the breaker stands in the way of a halt.
    was_announced: bool = False  # A rank of it has said hello to this governor.
    is_beside: bool = False  # A stream's run that is not the launched command: it pays, and speaks for itself alone.
    stands_in_since: MonoNs = MonoNs(0)

    def set_rules(self, rules: Rules) -> None:
        self.rules = rules

    def drop_latch(self) -> None:
        """A halt of before says nothing of this launch: it may be halted again."""
        self.incident = None

    @property
    def is_unattached(self) -> bool:
        """It stands in for a launched command of which nobody speaks."""
        return self.run.life is Life.STANDS_IN

    def processes(self) -> tuple[ProcessId, ...]:
        """Who the run is: its announced ranks, or those named for it, or as many as the journal knew."""
        ranks = tuple(rank.peer.process for rank in self.run.ranks.values())
        return ranks or self.launch.named or self.launch.remembered


@dataclass(frozen=True, slots=True)
class ForgottenRun:
    """A run that is managed no longer. Half a KB, and as many as the ledger has forgotten runs."""

    uid: int
    history: RunHistory
    trained: Trained


@dataclass(frozen=True, slots=True)
class CommandLeft:
    """From the journal: the command beside which the governor before us ended, and what was nobody's of its time."""

    run: str | None
    processes: tuple[ProcessId, ...]
    account: str | None
    unallocated_since: BootNs
    nobodys: tuple[Charge, ...]
    unallocated_older_usd_micros: UsdMicros


@dataclass(frozen=True, slots=True)
class SupersededRank:
    """A rank that is connected and whom nobody listens to: another attempt has taken its run's name."""

    run: str
    attempt: str
    pid: int
    since: MonoNs
    is_said_broken: bool = False  # That its loss is no number.
