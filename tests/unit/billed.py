"""A machine that is billed by several lines, through several lives of its governor; and what it was really billed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.node import NodeFacts, new_node
from governor.core.engine.node_journal import persist
from governor.core.engine.resume import ABSENCE_MAX_NS, restore_runs
from governor.core.events.checkpoints import CheckpointWeighed, SavedCheckpoint
from governor.core.events.effects import Effect, WeighCheckpoint
from governor.core.events.inputs import Ack
from governor.core.events.machine import PriceRead
from governor.core.money.charges import Charge, Line, LineKind, Unit
from governor.core.money.lines import Lines, Metered
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import PRICE, hello, make_node, peer

DISK = Metered(Line(LineKind.STORAGE, "vol-1 gp3", Unit.GB_MONTH, UsdMicros(80_000), "list", "2026-11"), 500)
SUPPORT = Metered(Line(LineKind.FIXED, "support", Unit.HOUR, UsdMicros(1_230_007), "contract", "2026"))
LAUNCH = Line(LineKind.FIXED, "launch fee", Unit.PIECE, UsdMicros(1_500_001), "contract", "2026")
UPLOAD = Line(LineKind.EGRESS, "to the archive", Unit.GB, UsdMicros(90_000), "list", "2026-11")
LINES = Lines((DISK, SUPPORT), (LAUNCH,), (UPLOAD,))
HOUR = NS_PER_HOUR


@dataclass
class Billed(World):
    """The world, and beside it what its machine was billed for, by somebody who saw all of it."""

    compute: int = 0  # Micro-dollar-nanoseconds up to `seen`.
    compute_ns: int = 0
    disk_ns: int = 0
    support_ns: int = 0
    seen: int = 0  # By the boot clock.
    price: int = PRICE
    price_from: int = 0  # Of this boot; what was before cannot be put right any more.
    uploaded: int = 0
    launches: Counter[str] = field(default_factory=Counter)
    acked: list[Ack] = field(default_factory=list)
    acked_by: tuple[str, int] = ("", 0)  # The last one: by which attempt, and process.
    on_disk: dict[str, int | None] = field(default_factory=dict)  # By path. None: not to be seen from here.

    @property
    def wall(self) -> int:
        return self.boot + self.wall_offset

    def bill(self) -> None:
        passed, self.seen = self.boot - self.seen, self.boot
        self.compute += self.price * passed
        self.compute_ns += passed
        self.disk_ns += passed
        self.support_ns += passed

    def take(self, effects: list[Effect]) -> list[Effect]:
        """The look at a checkpoint has its answer at once."""
        super().take(effects)
        looks = [effect for effect in effects if isinstance(effect, WeighCheckpoint)]
        answers = [CheckpointWeighed(MonoNs(self.mono), o.run, o.name, self.on_disk.get(o.path)) for o in looks]
        return [*effects, *(effect for answer in answers for effect in self.play(answer))]

    def keep(self) -> None:
        """As the daemon does behind a hello, and at its end."""
        self.take([persist(self.node, MonoNs(self.mono))])

    def speak(self, run: str, attempt: str, pid: int) -> None:
        managed = self.node.runs.get(run)
        self.launches[run] += managed is None or managed.run.attempt != attempt or not managed.run.alive
        self.play(
            hello(
                0,
                0,
                at=MonoNs(self.mono),
                run=run,
                attempt=attempt,
                peer=peer(pid),
                world_size=1,
                connection=ConnectionId(10 + int(run[-1])),
            )
        )
        self.keep()

    def reprice(self, price: int, late: int, *, said: bool) -> None:
        """The price has changed so long ago; whoever is asked says since when, or does not."""
        if price == self.price:
            return
        self.bill()
        since = max(self.boot - late, self.price_from) if said else self.boot
        self.compute += (price - self.price) * (self.boot - since)
        self.price, self.price_from = price, since
        told = WallNs(self.wall - late) if said else None
        self.play(
            PriceRead(MonoNs(self.mono), BootNs(self.boot), WallNs(self.wall), UsdMicros(price), "spot", "2026", told)
        )

    def upload(self, size: int) -> None:
        connection = next(iter(self.node.connections), None)
        if connection is None:
            return
        run = self.node.connections[connection][0]
        if not self.node.runs[run].run.alive:
            return
        record = SavedCheckpoint.named(
            {"path": f"/ckpt/{len(self.acked)}", "manifest": "m", "kind": "good", "bytes": size}
        )
        ack = Ack(MonoNs(self.mono), connection, run, 0, 1, "own", "saved", step=1, checkpoint=record)
        self.acked.append(ack)
        self.acked_by = self.node.runs[run].run.attempt, self.node.runs[run].run.ranks[0].peer.process.pid
        if type(size) is int and 0 < size <= 10**14:
            self.on_disk.setdefault(f"/ckpt/{len(self.acked) - 1}", size)
            self.uploaded += min(size, self.allowed(run))
        self.play(ack)

    def allowed(self, run: str) -> int:
        """The bytes of checkpoints that its time until now allows, by the rows: ten times its price."""
        self.keep()
        paid: Counter[str] = Counter()
        for charge in self.charges.values():
            if charge.payer.run == run:
                paid[charge.line.name] += charge.usd_micros
        of_time = paid.total() - paid[LAUNCH.name] - paid[UPLOAD.name]
        return max(0, 10 * of_time - paid[UPLOAD.name]) * 10**9 // UPLOAD.price_usd_micros

    def tell_again(self) -> None:
        """The rank connects anew and tells what nobody has confirmed to it."""
        for ack in self.acked[-1:]:
            self.speak(ack.run, *self.acked_by)
            self.play(ack)

    def restart(self, dearer: int = 0) -> None:
        """Killed, and started again by now; meanwhile the price may have gone up, and the source says when."""
        at = max(self.price_from, self.boot - dearer // 2)
        if dearer:
            self.bill()
            self.compute += dearer * (self.boot - at)
            self.price, self.price_from = self.price + dearer, at
        since = WallNs(self.wall - (self.boot - self.price_from))
        priced = UsdMicros(self.price)
        facts = replace(self.node.facts, price_usd_micros_per_hour=priced, price_source="spot", price_since_wall=since)
        self.begin(facts)

    def begin(self, facts: NodeFacts) -> list[Effect]:
        self.lives += 1
        # Two governors of a node never start at the same instant of the wall clock; two acts of a schedule may.
        facts = replace(facts, node=f"life-{self.lives}")
        self.node = new_node(facts, self.node.policies, BootNs(self.boot), WallNs(self.wall))
        return self.take(restore_runs(self.node, list(self.runs.values()), BootNs(self.boot), MonoNs(self.mono)))

    def reboot(self, off: int, booting: int, *, stopped: bool, tells: bool) -> None:
        """Shut down, off for so long by the wall clock, and a governor that comes so late after the boot."""
        self.boot, self.mono = self.boot + NS_PER_S, self.mono + NS_PER_S
        self.bill()
        self.tick()
        self.keep()
        left = self.wall
        began = left + off + booting
        launched = left + off if stopped else left - HOUR
        self.disk_ns += min(max(0, began - left), ABSENCE_MAX_NS)
        if tells:
            on = min(max(0, began - max(launched, left)), ABSENCE_MAX_NS)
            self.compute += self.price * on
            self.compute_ns += on
            self.support_ns += on
        self.boot = self.mono = self.seen = self.price_from = booting
        self.wall_offset = began - booting
        told = WallNs(launched) if tells else None
        facts = replace(self.node.facts, boot_id=f"boot-{self.lives + 2}", launched_at_wall=told)
        self.begin(replace(facts, price_usd_micros_per_hour=UsdMicros(self.price), price_since_wall=None))

    def of(self, name: str) -> list[Charge]:
        return [charge for charge in self.charges.values() if charge.line.name.split(" (")[0] == name]

    def paid(self, name: str) -> int:
        return sum(charge.usd_micros for charge in self.of(name))


def new_world(**facts: Any) -> Billed:
    world = Billed(make_node(cloud="none", lines=LINES, **facts))
    world.tick()
    return world
