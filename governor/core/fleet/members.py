"""What one governor knows of the other nodes of a run: who they are, when each was heard, and what each has charged.

All of it merges without order (docs/adr/0027): a counter only grows, and the newest word of a node is its whole word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.events.peers import BEAT_NS, NODES_MAX, NodeTold, ToldHalt, ToldRun
from governor.core.runs.other_nodes import OtherNode

# Long after a node's last word somebody else may use its machine.
KNOWN_NS: Final = DurationNs(900 * NS_PER_S)
# A host whose governor starts later than the launch, or whose look-up was dropped, is asked for again.
MEET_AGAIN_NS: Final = DurationNs(60 * NS_PER_S)
MEET_NEXT_NS: Final = DurationNs(2 * NS_PER_S)
MEETS_MAX: Final = 128
# Five of the beats that a node has told. A governor that is restarted by systemd is away for less.
SILENT_BEATS: Final = 5
PARTS_WRITTEN_NS: Final = DurationNs(BEAT_NS)
# Of a node that beats each second, as all do in a halt.
SILENT_NS: Final = DurationNs(SILENT_BEATS * BEAT_NS)


@dataclass(slots=True)
class Telling:
    """What we tell the governors of our runs' other nodes: when it is due, and whether it must not wait."""

    told_at: MonoNs | None = None
    beat_ns: DurationNs = DurationNs(BEAT_NS)  # As was told then: our next message follows within it.
    is_due: bool = False
    meet_run_at: dict[str, MonoNs] = field(default_factory=dict)  # When the host of a run's rank 0 is asked for again.
    meet_user_at: dict[int, MonoNs] = field(default_factory=dict)  # When that of another run of a user may be.
    has_namesake: bool = False  # Another machine's governor calls itself as we do. It is reported once.

    def ask(self) -> None:
        """Something has changed that must not wait for the next beat."""
        self.is_due = True

    def note(self, at: MonoNs, beat_ns: DurationNs) -> None:
        """All is told."""
        self.told_at, self.beat_ns, self.is_due = at, beat_ns, False

    def may_be_due(self, at: MonoNs) -> bool:
        """False: it is due at no beat that there is."""
        return self.is_due_after(DurationNs(BEAT_NS), at)

    def is_due_after(self, beat_ns: DurationNs, at: MonoNs) -> bool:
        """Whether it is due: at this beat, or at the one that was told."""
        return self.is_due or self.told_at is None or at - self.told_at >= min(beat_ns, self.beat_ns)

    def may_meet(self, run: str, uid: int, at: MonoNs) -> bool:
        """Whether the host of this run's rank 0 is asked for now. One user's launches take no time from another's."""
        if at < self.meet_run_at.get(run, at) or at < self.meet_user_at.get(uid, at):
            return False
        for until in (self.meet_run_at, self.meet_user_at):
            if len(until) >= MEETS_MAX:  # More than there are runs at one time. The oldest may be asked for again.
                del until[next(iter(until))]  # type: ignore[arg-type]
        self.meet_run_at[run], self.meet_user_at[uid] = MonoNs(at + MEET_AGAIN_NS), MonoNs(at + MEET_NEXT_NS)
        return True

    def note_namesake(self) -> bool:
        """Whether it is news that somebody has our name."""
        is_news, self.has_namesake = not self.has_namesake, True
        return is_news


@dataclass(slots=True)
class Member:
    """Another node of the launch that is watched, as its governor last told of it."""

    machine: NodeTold  # Who it is. Its runs are not kept.
    told: ToldRun
    spoke_at: MonoNs
    is_silent: bool = False  # As the last tick has seen it.
    is_long_silent: bool = False  # Somebody else may use its machine by now.
    is_of_before: bool = False  # The governor before this one has its word.

    def silent_at(self, halted_at: MonoNs | None = None) -> MonoNs:
        """From when on it counts as silent if nothing more is heard. `halted_at`: see Members.fall_silent."""
        by_beats = self.spoke_at + self.speaks_in_ns
        if halted_at is None or self.is_done:
            return MonoNs(by_beats)
        return MonoNs(min(by_beats, max(self.spoke_at, halted_at) + SILENT_NS))

    @property
    def speaks_in_ns(self) -> int:
        """Who says nothing for so long is silent."""
        return SILENT_BEATS * self.machine.beat_ns

    @property
    def is_done(self) -> bool:
        """Whether no process of the run is left there, as its governor has seen it."""
        return not self.told.is_alive or (self.told.halt is not None and self.told.halt.gone)

    @property
    def is_late(self) -> bool:
        """Whether it may have charged since its last word what counts. Of one that speaks each second it does not."""
        return self.is_silent or self.is_of_before or self.machine.beat_ns > BEAT_NS

    def may_have_charged(self, at: MonoNs) -> int:
        """In micro-dollars: what it has told, and its last rate since then if it has not ended."""
        rate = (self.told.rate_usd_micros_per_hour or 0) if self.told.is_alive else 0
        return (self.told.spend_usd_micros or 0) + max(0, at - self.spoke_at) * rate // NS_PER_HOUR


@dataclass(slots=True)
class Members:
    """The other nodes of one run."""

    job: str = ""  # The launch that `by_node` is of.
    by_node: dict[str, Member] = field(default_factory=dict)
    # What each other node has charged to the run, over all launches, as far as anybody has told.
    charged: dict[str, int] = field(default_factory=dict)
    # And what one may have charged until its machine was read back, or until the launch was over in which it fell
    # silent. Its next own word replaces that.
    assumed: dict[str, int] = field(default_factory=dict)
    ended_at: MonoNs | None = None  # When the launch was over here.
    words: dict[str, MonoNs] = field(default_factory=dict)  # When each of them spoke last, of this launch or another.
    since: MonoNs | None = None  # The first tick of this governor. Who speaks, it hears within seconds.
    ask_again: dict[str, MonoNs] = field(default_factory=dict)  # When the machine of a silent node is asked for again.
    # An incident's row with the parts of a thousand nodes takes 30 ms, and each of them tells at once when it moves.
    has_unwritten: bool = False
    written_at: MonoNs | None = None

    def note_parts(self) -> None:
        """A node's part of the halt has changed, and the incident's row is to say so."""
        self.has_unwritten = True

    def is_row_due(self, at: MonoNs) -> bool:
        """Whether to write the row now: once in PARTS_WRITTEN_NS for whatever was told since."""
        is_due = self.has_unwritten and (self.written_at is None or at - self.written_at >= PARTS_WRITTEN_NS)
        if is_due:
            self.has_unwritten, self.written_at = False, at
        return is_due

    def begin(self, job: str, at: MonoNs) -> None:
        """Another launch begins: the nodes of the one before speak for it no more. Their money stays."""
        if job == self.job:
            return
        over_at = at if self.ended_at is None else min(at, self.ended_at)
        for name, one in self.by_node.items():
            self.assume(name, one.may_have_charged(over_at))
        self.job, self.ended_at = job, None
        self.by_node.clear()

    def note_over(self, ended_at: MonoNs | None) -> None:
        """Since when the launch is over here. None: it goes on."""
        self.ended_at = ended_at

    def assume(self, node: str, usd_micros: int) -> None:
        """Count so much for it, if it is more than anybody has told."""
        if usd_micros > self.charged.get(node, 0) and (node in self.assumed or len(self.assumed) < NODES_MAX):
            self.assumed[node] = usd_micros

    def hear(self, at: MonoNs, machine: NodeTold, told: ToldRun) -> None:
        """Take a node's word of this launch."""
        known = self.by_node.get(machine.node)
        if known is not None and known.machine.instance_id is not None:  # No machine changes within a launch.
            machine = replace(machine, instance_id=known.machine.instance_id)
        if known is None and len(self.by_node) >= NODES_MAX:
            return
        self.assumed.pop(machine.node, None)
        self.by_node[machine.node] = Member(replace(machine, runs=()), told, at)

    def note_word(self, node: str, at: MonoNs) -> None:
        """A node has spoken, of whatever run."""
        if node in self.by_node or node in self.words:
            self.words[node] = at

    def note_read_back(self, node: str, at: MonoNs) -> None:
        """Its machine was read back: it costs nothing more."""
        if (known := self.by_node.get(node)) is not None:
            self.assume(node, known.may_have_charged(at))
            known.told = replace(known.told, is_alive=False)

    def count(self, told: Iterable[tuple[str, int]], own: str, speaker: str = "") -> None:
        """Take what nodes have charged. A smaller amount is an older one. Who speaks for itself has a place."""
        for node, usd_micros in told:
            if node == speaker and node not in self.charged and len(self.charged) >= NODES_MAX:
                strangers = [name for name in self.charged if name not in self.by_node]
                if not strangers:
                    continue
                del self.charged[min(strangers, key=self.charged.__getitem__)]
            if node == speaker:
                self.assumed.pop(node, None)
            if node != own and (node in self.charged or len(self.charged) < NODES_MAX):
                self.charged[node] = max(usd_micros, self.charged.get(node, 0))

    def fall_silent(self, at: MonoNs, halted_at: MonoNs | None = None) -> list[Member]:
        """Note who has not been heard for too long. Return those of whom this is new.

        `halted_at`: since then the run is halted, and whoever has processes of it left tells so each second.
        """
        self.since = at if self.since is None else self.since
        for one in self.by_node.values():
            one.is_long_silent = at - one.spoke_at >= KNOWN_NS
        # Who spoke to the governor before this one may not have had its turn to speak to us.
        waited = (one for one in self.by_node.values() if not one.is_of_before or at - self.since >= one.speaks_in_ns)
        fallen = [one for one in waited if not one.is_silent and at >= one.silent_at(halted_at)]
        for one in fallen:
            one.is_silent = True
        return fallen

    def missing_since(self, node: str, at: MonoNs) -> MonoNs | None:
        """When its governor spoke last, or when ours began. None: it speaks, or may still."""
        known = self.by_node.get(node)
        since = known.spoke_at if known is not None else self.since
        if since is not None and node in self.words:
            since = MonoNs(max(since, self.words[node]))
        speaks = known is not None and not known.is_silent
        return since if since is not None and not speaks and at - since >= SILENT_NS else None

    def note_asked(self, node: str, again_at: MonoNs) -> None:
        """Its machine was asked for. Ask again then."""
        self.ask_again[node] = again_at

    def turn_of(self, own: str) -> int:
        """How many of the nodes that speak come before ours by their names."""
        return sum(name < own for name, one in self.by_node.items() if not one.is_silent)

    def speaks(self, node: str) -> bool:
        member = self.by_node.get(node)
        return member is not None and not member.is_silent

    @property
    def keep_us_waiting(self) -> bool:
        """Whether a node that is heard has not seen the end of its processes."""
        return any(not one.is_silent and not one.is_done for one in self.by_node.values())

    def others(self) -> tuple[OtherNode, ...]:
        """Where the ranks of the nodes stand that have not ended their part."""
        return tuple(
            OtherNode(
                one.machine.node,
                one.told.ranks,
                MonoNs(one.spoke_at - one.told.still_ns) if one.told.still_ns is not None else None,
                one.told.is_excused,
                one.is_silent,
                one.spoke_at,
            )
            for one in self.by_node.values()
            if not one.is_done
        )

    def charged_usd_micros(self, at: MonoNs) -> UsdMicros:
        """What the other nodes have charged, and what one that had not ended may have charged since it spoke.

        Of a node that speaks each second that is too little to count.
        """
        late = ((name, one) for name, one in self.by_node.items() if one.is_late and one.told.is_alive)
        may = self.assumed | {name: one.may_have_charged(at) for name, one in late}
        beyond = (max(0, usd_micros - self.charged.get(node, 0)) for node, usd_micros in may.items())
        return UsdMicros(sum(self.charged.values()) + sum(beyond))

    @property
    def rate_usd_micros_per_hour(self) -> UsdMicros:
        live = (one for one in self.by_node.values() if one.told.is_alive)
        return UsdMicros(sum(one.told.rate_usd_micros_per_hour or 0 for one in live))

    @property
    def first_rate_usd_micros_per_hour(self) -> UsdMicros:
        """Of the node of rank 0, if that is one of these."""
        its = (one.told.rate_usd_micros_per_hour for one in self.by_node.values() if one.told.has_first)
        return UsdMicros(next(its, None) or 0)

    def left(self) -> tuple[tuple[str, int], ...]:
        """The counters of nodes that do not speak for themselves. The largest come first: a message has its limit."""
        gone = [(node, usd_micros) for node, usd_micros in self.charged.items() if not self.speaks(node)]
        return tuple(sorted(gone, key=lambda one: (-one[1], one[0])))


# --- a halt over several nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodePart:
    """Another node's part of a halt, for the incident."""

    node: str
    instance_id: str | None
    cloud: str
    stage: str  # As its governor has told; "" if it has told nothing of this halt.
    gone: bool = False
    stopped: bool | None = None
    verified: bool | None = None
    is_silent: bool = False  # Nothing was heard of it when the halt began, or since.
    may_stop: bool = False  # By its last word, its machine is nobody else's, and a halt there would stop it.

    def row(self) -> dict[str, Any]:
        """Plain JSON, as the incident's list `nodes` has it."""
        return {
            "node": self.node,
            "cloud": self.cloud,
            "instance": self.instance_id,
            "stage": self.stage or None,
            "gone": self.gone,
            "stopped": self.stopped,
            "verified": self.verified,
            "silent": self.is_silent,
            "may_stop": self.may_stop,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> NodePart:
        """KeyError when it is none of ours."""
        return cls(
            row["node"], row["instance"], row["cloud"], row["stage"] or "", row["gone"], row["stopped"],
            row["verified"], row["silent"], bool(row.get("may_stop")),
        )  # fmt: skip


def part_of(member: Member) -> NodePart:
    """Its part as it stands. A node that has told of no halt has none yet."""
    halt, machine = member.told.halt, member.machine
    who = machine.node, machine.instance_id, machine.cloud
    may_stop = member.told.may_stop and not member.is_long_silent
    if halt is None:
        return NodePart(*who, "", gone=not member.told.is_alive, is_silent=member.is_silent, may_stop=may_stop)
    return NodePart(*who, halt.stage, halt.gone, halt.stopped, halt.verified, member.is_silent, may_stop)


def merged(before: NodePart | None, now: NodePart) -> NodePart:
    """What was seen stays seen: a governor that begins again may not know what it saw before."""
    if before is None:
        return now
    return NodePart(
        now.node,
        now.instance_id or before.instance_id,
        now.cloud,
        now.stage or before.stage,
        now.gone or before.gone,
        before.stopped if now.stopped is None else now.stopped or bool(before.stopped),
        before.verified if now.verified is None else now.verified or bool(before.verified),
        now.is_silent,
        now.may_stop,
    )


def first_id(*incident_ids: str) -> str:
    """By which of its ids a halt is called that several nodes have decided at once: on every node the same one."""
    return min(incident_ids)


def halts(members: Members) -> list[tuple[str, ToldHalt]]:
    """By node, in the order of their names: the halts that the other nodes tell of. One that was given up is none."""
    # A halt that goes on tells the name of its HaltState, in capitals. The words of one that was given up are small.
    told = [(node, one.told.halt) for node, one in members.by_node.items() if one.told.halt is not None]
    return sorted(((node, halt) for node, halt in told if halt.stage.isupper()), key=lambda one: one[0])
