"""One run as the engine manages it: its state, its policy, what it has cost, what was reported of it, and its halt."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Amount
from governor.core.base.identity import ProcessId
from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_DAY, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.fleet.members import Members
from governor.core.halt.incident import Incident
from governor.core.halt.left_launch import LeftLaunch
from governor.core.money.ceiling_forecast import CeilingReport
from governor.core.money.charges import Charge
from governor.core.money.forecast import RECENT_WINDOWS, Speed, speed_of
from governor.core.money.paid_tokens import Bought, PaidTokens
from governor.core.money.spend_marks import Marks
from governor.core.money.token_price import whole_micros
from governor.core.money.token_windows import Window
from governor.core.money.waste import SpendSplit
from governor.core.rules.evaluate import Rules
from governor.core.runs.life import Life
from governor.core.runs.state import RANKS_MAX, Run, Trained


@dataclass(slots=True)
class OneOffs:
    """How much of a run's spend is no time, in micro-dollars. It bounds what a trainer's words cost."""

    usd_micros: int = 0  # Its launches and checkpoints.
    checkpoints_usd_micros: int = 0
    unseen_usd_micros: int = 0  # Of these, checkpoints that nobody has looked at.


@dataclass(slots=True)
class RunHistory(Bought):
    """What outlives an attempt and stays known of a past run. The ledger has the run's spend.

    It protects the run's budget from other users, keeps incident ids unique and the hold and breaker in force, and
    lets the windows go on where they ended.
    """

    incidents_total: int = 0
    halts_wall: list[WallNs] = field(default_factory=list)  # Of the last day, for the breaker.
    hold_until: MonoNs | None = None  # A person's on this node.
    hold_reason: str = ""
    fleet_hold: tuple[MonoNs, str] | None = None  # Of the orders to the fleet that cover it, the one that ends last.
    # When the run began to hold the node. Its first window begins there, with what was spent since `paid_before`.
    paid_from: BootNs = BootNs(0)
    split: SpendSplit = field(default_factory=SpendSplit)  # What the run's spend has bought.
    time: TimeAccount = field(default_factory=TimeAccount)  # What its time went to, and that money.
    untold: Amount = field(default_factory=Amount)  # Of a command for which nobody speaks yet, while the run stands in.
    command: str | None = None  # The launched command whose time it has taken over last.
    one_offs: OneOffs = field(default_factory=OneOffs)
    is_given_back: bool = False  # What it was charged once is another's, with the windows of then.
    members: Members = field(default_factory=Members)  # The run's other nodes.
    turn: int = 0  # Which take-over of that command's time this was: the highest of its runs is the last.

    def begins_to_pay(self, at: BootNs) -> None:
        """It holds the node from here on."""
        self.paid_from = at

    def show_untold(self, untold: Amount) -> None:
        """While it stands in for a command, what that has taken is shown with it."""
        self.untold = untold

    def note_halt(self, wall: WallNs) -> None:
        """Count a halt, and remember it for a day."""
        self.incidents_total += 1
        self.halts_wall = [*(then for then in self.halts_wall if wall - then < NS_PER_DAY), wall]

    def take_over(self, command: str | None, turn: int) -> None:
        """Note that it pays for this launched command. The command's next launch goes on with the last one's budget."""
        self.command, self.turn = command, turn

    def give_back(self, paid_from: BootNs, spent: UsdMicros) -> None:
        """What it was charged is another run's now. It is counted anew, from what is left."""
        self.paid_from, self.paid_before, self.meter, self.split = paid_from, spent, None, SpendSplit()
        self.time = TimeAccount()
        self.unpriced_ns, self.steady_before, self.is_given_back = 0, None, True
        if spent:
            self.split.begin_untold(spent)

    def pass_unpriced(self, passed_ns: int) -> None:
        """Time of its own has passed without a price; below zero: a price that was read late reaches back."""
        self.unpriced_ns = max(0, self.unpriced_ns + passed_ns)

    def hold(self, until: MonoNs | None, reason: str) -> None:
        """Let no rule halt the run before `until`."""
        self.hold_until, self.hold_reason = until, reason

    def hold_by_fleet(self, hold: tuple[MonoNs, str] | None) -> None:
        """What the fleet's orders say now. A person's own hold stands beside it."""
        self.fleet_hold = hold

    def held(self, at: MonoNs) -> tuple[MonoNs, str] | None:
        """Until when no rule halts the run, and why. None: no hold is in force."""
        own = (self.hold_until, self.hold_reason) if self.hold_until is not None else None
        return max((one for one in (own, self.fleet_hold) if one is not None and at < one[0]), default=None)


@dataclass(frozen=True, slots=True)
class Unweighed:
    """A checkpoint as a trainer says it. Its traffic is charged when somebody has looked how large it is."""

    path: str | None
    bytes: int
    gid: int | None  # Of the rank that has said so.
    incident_id: str

    def row(self) -> list[Any]:
        """Plain JSON. `of` reads it back, and raises TypeError or ValueError when it is none."""
        return [self.path, self.bytes, self.gid, self.incident_id]

    @classmethod
    def of(cls, row: Any) -> Unweighed:
        path, size, gid, incident_id = row
        path = str(path) if path is not None else None
        return cls(path, int(size), int(gid) if gid is not None else None, str(incident_id))


@dataclass(slots=True)
class RunMoney:
    """What a run's tokens cost lately, and what its checkpoints cost to store."""

    # The last counted step: its attempt's begin, its number in the attempt, and its absolute number.
    metered: tuple[MonoNs, int, int] = MonoNs(-1), 0, 0
    # Of a log: the step and the total of its first line, while no other line tells how many tokens that had itself.
    first_line: tuple[int, int] | None = None
    marks: Marks = field(default_factory=Marks)  # What it had spent lately, moment by moment.
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))
    _began_tokens: int | None = None  # The total when metering began, as of the last window.
    _speed: Speed | None = None
    _speed_is_due: bool = False
    reserved_at: MonoNs | None = None  # The tick whose spend and reserve the run has.
    # The largest checkpoint that left the region. The reserve for a halt's checkpoint depends on it.
    checkpoint_bytes_max: int = 0
    # Names of the last reported checkpoints. One that is reported again is not charged again.
    checkpoints_reported: tuple[str, ...] = ()
    # Those of them that nobody has looked at yet, the oldest first. The first one is being looked at.
    unweighed: dict[str, Unweighed] = field(default_factory=dict)
    # The run that pays for the command in this one's place. One does, however many logs the command writes.
    paid_by: str | None = None

    def give_back(self) -> None:
        """Forget what its tokens cost: another run has paid for them."""
        self.marks.forget()
        self.windows.clear()
        self.first_line, self._began_tokens, self._speed, self._speed_is_due = None, None, None, False

    def note_first_line(self, first_line: tuple[int, int] | None) -> None:
        self.first_line = first_line

    def note_metered(self, attempt_at: MonoNs, attempt_step: int, step: int) -> None:
        self.metered = attempt_at, attempt_step, step

    def add_window(self, window: Window, began_tokens: int) -> None:
        self.windows.append(window)
        self._began_tokens, self._speed_is_due = began_tokens, True

    @property
    def speed(self) -> Speed | None:
        """Of its windows. Worked out when somebody asks: small windows close with each step, and nobody may ask."""
        if self._speed_is_due:
            self._speed, self._speed_is_due = speed_of(self.windows, self._began_tokens), False
        return self._speed


@dataclass(slots=True)
class Reported:
    """Alarms that were given and still stand. Each is given once."""

    nobody_attached: bool = False
    no_loss: tuple[str, MonoNs] | None = None  # The attempt that was reported to show no loss.
    beside: tuple[str, MonoNs] | None = None  # The attempt beside which something else trains unwatched.
    begun: tuple[str, MonoNs] | None = None  # The attempt of which it is known where it began.
    no_step: tuple[str, MonoNs, int | None] | None = None  # The attempt and its step that no other follows.
    figure: tuple[str, MonoNs] | None = None  # The attempt of which a figure was not believed.
    failed_checkpoint: tuple[str, str, str] | None = None  # The attempt, who asked, and why, without its numbers.
    unwatched: bool = False
    capped: tuple[str, MonoNs] | None = None  # The attempt of which a checkpoint was not charged as it was said.
    superseded_at: MonoNs | None = None
    price: bool = False
    joined: str = ""  # Another node's halt that was reported and not joined, in observe mode.
    ceilings: dict[str, CeilingReport] = field(default_factory=dict)  # By the scope of the ceiling.

    def note_joined(self, incident_id: str) -> bool:
        """Whether it is news that another node halts the run."""
        is_news, self.joined = self.joined != incident_id, incident_id
        return is_news


MARKS_MAX: Final = 4 * RANKS_MAX  # Each rank of an attempt has one, and a restart brings new ones.
UNSURE_MAX: Final = 16  # They are only named. More would fill the report.


@dataclass(slots=True)
class Launch:
    """Which processes the run has, beside its announced ranks."""

    launchers: tuple[ProcessId, ...] = ()
    command: tuple[str, ...] = ()  # Of the outermost launcher.
    named: tuple[ProcessId, ...] = ()  # Of a JSONL-only run: the processes that its owner named.
    named_uids: tuple[int, ...] = ()  # Theirs, beside the run's own.
    remembered: tuple[ProcessId, ...] = ()  # From the journal: the run's processes before our restart.
    marks: tuple[int, ...] = ()  # What its processes have inherited, the newest last.
    cgroups: tuple[str, ...] = ()  # Control groups that began with it, the newest last.
    unsure: tuple[ProcessId, ...] = ()  # Orphans that began while the run was starting: perhaps its own.
    programs: tuple[str, ...] = ()  # What its ranks run (core/halt/programs.py), the newest last.
    places: tuple[str, ...] = ()  # Control groups of its ranks: in which pods they are.

    def forget_places(self, *, is_over: bool) -> None:
        """An attempt begins. The name of a control group may be another's by now; it is learned again at a hello.

        `is_over`: the attempt before it had ended, so what it left is nobody's. Else its processes may still live.
        """
        self.cgroups, self.programs, self.places = (), (), ()
        if is_over:
            self.marks, self.unsure = (), ()

    def learn(
        self, marks: Iterable[int], cgroups: Iterable[str] = (), unsure: Iterable[ProcessId] = (),
        programs: Iterable[str] = (), places: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Add what tells processes of the run. An earlier attempt's may still live."""
        self.marks = tuple(dict.fromkeys((*self.marks, *marks)))[-MARKS_MAX:]
        self.cgroups = tuple(dict.fromkeys((*self.cgroups, *cgroups)))[-MARKS_MAX:]
        self.unsure = tuple(dict.fromkeys((*self.unsure, *unsure)))[-UNSURE_MAX:]
        self.programs = tuple(dict.fromkeys((*self.programs, *programs)))[-MARKS_MAX:]
        self.places = tuple(dict.fromkeys((*self.places, *filter(None, places))))[-MARKS_MAX:]


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
    # When a driver's sample last had the run's GPUs. Until that is stale, the log's samples are not used.
    gpus_asked_at: MonoNs | None = None
    stream_position: Mapping[str, Any] | None = None  # How far its JSONL stream was read, in the reader's terms.
    is_held_back: bool = False  # A hold or the breaker prevents a halt.
    was_announced: bool = False  # A rank of it has sent a hello to this governor.
    # Beside the launched command: another uid's that nothing ties to it, or a stream's. It speaks only for itself.
    is_separate: bool = False
    # Its log is the launched command's, and nobody else was named as its writer: see launched_command.
    follows_command: bool = False
    has_fresh_log: bool = False  # Of its log nothing is read that was written before this governor began.
    is_left: bool = False  # Its log's writer was gone before it was seen, and no line has come since.
    stands_in_since: MonoNs = MonoNs(0)

    def __post_init__(self) -> None:
        self.run.set_paid_tokens(PaidTokens(self.history, self.money.windows))

    def judge_by(self, policy: Policy) -> None:
        """Judge the run by this policy from now on. Rules whose meaning is unchanged keep their counts."""
        if policy != self.policy:
            self.policy, self.rules = policy, self.rules.with_policy(policy)

    def take_up(self, past: PastRun) -> None:
        """Go on with what was known of it."""
        self.history = past.history
        self.run.set_paid_tokens(PaidTokens(self.history, self.money.windows))
        self.run.take_up(past.trained)

    def past(self) -> PastRun:
        """What stays known of it."""
        self.history.keep_steady(whole_micros(self.run.paid_tokens.steady()))
        return PastRun(self.run.uid, self.history, self.run.trained())

    def give_back(self, paid_from: BootNs, spent: UsdMicros) -> None:
        """Count its money and its tokens anew: what it was charged is another run's now."""
        self.history.give_back(paid_from, spent)
        self.money.give_back()

    def enter_halt(self, incident: Incident) -> None:
        """Halt the run by this incident. It stays as a latch until `drop_latch`."""
        self.incident = incident

    def drop_latch(self) -> None:
        """Allow another halt: an earlier launch's halt says nothing about this launch."""
        self.incident = None

    @property
    def trained_tokens(self) -> int | None:
        """All that the run has trained, each token once."""
        return self.history.progress_of(self.run.tokens_total)

    @property
    def shows_no_loss(self) -> bool:
        """Whether it was reported of this attempt that rules cannot judge it for want of a loss, and still stands."""
        return self.run.alive and self.reported.no_loss == (self.run.attempt, self.run.attempt_at)

    @property
    def lossless_steps(self) -> int | None:
        """For how many steps it has shown no loss, where that was reported and still stands."""
        if not self.shows_no_loss:
            return None
        return self.run.loss_rhythm.gone_for(self.run.attempt_step) or self.run.attempt_step

    @property
    def is_unattached(self) -> bool:
        """Whether it stands in for a launched command for which no run speaks."""
        return self.run.life is Life.STANDS_IN

    @property
    def awaits_line(self) -> bool:
        """Whether it may become the launched command's run, once its log has a line. It pays nothing until then."""
        return self.follows_command and self.is_separate

    @property
    def is_strangers(self) -> bool:
        """Whether another user announced it on the socket of `costgov run`. It is judged, and pays nothing."""
        return self.is_separate and not self.run.jsonl_only

    def processes(self) -> tuple[ProcessId, ...]:
        """The run's processes: its announced ranks, else those named for it, else those that the journal knew."""
        ranks = tuple(rank.peer.process for rank in self.run.ranks.values())
        return ranks or self.launch.named or self.launch.remembered


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that is no longer managed. It takes half a KB. There are as many as the ledger has past runs."""

    uid: int
    history: RunHistory
    trained: Trained


@dataclass(frozen=True, slots=True)
class PreviousCommand:
    """From the journal: the previous governor's command when it ended, and the unallocated charges of its time."""

    run: str | None
    processes: tuple[ProcessId, ...]
    account: str | None
    unallocated_since: BootNs
    unallocated: tuple[Charge, ...]
    unallocated_older_usd_micros: UsdMicros
    is_unattached: bool  # A run stood in for it.
    lent: Mapping[str, tuple[Charge, ...]] | None = None  # None: its own user had reported, or an older journal.
    launch: LeftLaunch | None = None  # None: nobody of it is seen from here, or an older journal.
    unpriced_ns: int = 0  # Of the time that waits, what has no price.


@dataclass(frozen=True, slots=True)
class SupersededRank:
    """A connected rank that is not listened to: another attempt has taken its run's name."""

    run: str
    attempt: str
    pid: int
    since: MonoNs
    is_loss_reported: bool = False  # It was reported that its loss is no number.


def announced_by_others(
    runs: Mapping[str, ManagedRun], name: str, *, but_of: Collection[int] = ()
) -> tuple[ProcessId, ...]:  # fmt: skip
    """The ranks of the other runs that live, except these users': no halt of this run ends them."""
    alive = (managed for managed in runs.values() if managed.run.run != name and managed.run.alive)
    others = (managed for managed in alive if managed.run.uid not in but_of)
    return tuple(rank.peer.process for managed in others for rank in managed.run.ranks.values())
