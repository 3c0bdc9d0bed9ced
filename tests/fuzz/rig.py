"""A whole daemon over fakes of the world, and a judge of everything that it shows."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from governor.adapters.alerts import alertmanager, webhook
from governor.adapters.control_socket import ControlServer
from governor.adapters.exporters.prometheus import SnapshotCollector
from governor.app import requests
from governor.cli.status_table import render_status
from governor.core.alerts.catalogue import Alert, of_alarm, of_incident
from governor.core.base.identity import Peer
from governor.core.base.policy import PolicySet
from governor.core.base.units import MonoNs, UsdMicros
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.events.checkpoints import CheckpointLook, CheckpointSeen
from governor.core.views.metrics import GovernorHealth, LagMeter, take_snapshot
from governor.daemon.loop import Daemon
from governor.daemon.perform import Performer
from governor.daemon.process_killer import ProcessKiller
from governor.policies.parse import load_policies
from governor.reports.incident import incident_json, incident_markdown
from governor.reports.terminal import timeline_lines
from governor.text.screen import FILE
from tests.contract.fakes import BOOT_ID, FakeClock, FakeInbox, FakeJournal, FakeProcesses, FakeServiceManager
from tests.contract.fakes_cloud import FakeCloud
from tests.paths import ROOT

UIDS = (1000, 1001, 1002)
HEADINGS = re.compile(
    r"# Incident .*|## (Resume|Timeline|What was not observed|Evidence|Ranks at the verdict)"
    r"|## Failure mode: [a-z-]+|### Rank .*"
)
# Work of the performer on threads, which is over at once here.
HARMS = (None, "model.safetensors: lm_head", None)
CALLS = frozenset(
    ("StopCompute", "ReadBilling", "ReadCheckpoint", "FindLastGood", "WeighCheckpoint", "archive", "launchers")
)


def default_policies() -> PolicySet:
    text = (ROOT / "policies" / "default.toml").read_text() + "\n[budget]\nceiling_usd = 5000.0\n"
    policies, problems = load_policies([("default.toml", text)])
    assert policies is not None, problems
    return policies


class Looks:
    """`ports.Checkpoints`: the answers, one after the other, whatever is asked."""

    def __init__(self) -> None:
        self._answers = 0

    def prepare(self) -> None: ...

    def read(self, path: str, manifest: str, *, uid: int, gid: int | None) -> CheckpointLook:
        path.encode()
        self._answers += 1
        return CheckpointLook((True, False, None)[self._answers % 3], 3, 3, "as it is")

    def weigh(self, path: str, *, uid: int, gid: int | None) -> tuple[int | None, str]:
        look = self.read(path, "", uid=uid, gid=gid)
        return (None, look.reason) if look.whole is None else (10**12 * look.whole, "")

    def find(self, paths: Sequence[str], *, uid: int, gid: int | None) -> list[CheckpointSeen]:
        found = [(path, self.read(path, "", uid=uid, gid=gid)) for path in paths]
        return [CheckpointSeen(path, look.whole, look.reason, HARMS[len(path) % 3]) for path, look in found]


class Judge:
    """`ports.Observer`: all that people and programs read must be what it says it is."""

    errors_total = 0

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._collector = SnapshotCollector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        self._lag = LagMeter(250_000_000)
        self._alarms = 0
        self.node: Node | None = None

    def tick(self, node: Node, at: MonoNs) -> None:
        self._lag.observe(at)

    def page(self, node: Node, at: MonoNs) -> None:
        self._collector.snapshot = take_snapshot(node, at, GovernorHealth(), self._lag.reading(), "")
        seen = set()
        for family in text_string_to_metric_families(generate_latest(self._registry).decode()):
            for sample in family.samples:
                key = sample.name, *sorted(sample.labels.items())
                assert key not in seen, f"a scraper refuses the page: {key} stands there twice"
                seen.add(key)

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        assert self.node is not None
        strict(incident_json(snapshot).encode())
        readable(incident_markdown(snapshot).encode("utf-8", "backslashreplace").decode(), "the report")
        outside_fences(incident_markdown(snapshot))
        for line in timeline_lines(snapshot):
            assert line.isprintable(), f"the timeline steers the terminal: {line!r}"
        self._sent(of_incident(self.node, snapshot))

    def alarm(self, name: str, run: str | None, text: str) -> None:
        assert self.node is not None
        self._alarms += 1
        self._sent(of_alarm(self.node, name, run, text, self._clock.wall(), self._alarms))

    def _sent(self, alert: Alert) -> None:
        readable(alert.text, "an alert")
        strict(json.dumps(webhook.document(alert), allow_nan=False).encode())
        strict(json.dumps([alertmanager.posted(alert, self._clock.wall())], allow_nan=False).encode())


def strict(data: bytes) -> Any:
    """The document, as a reader that knows the standard alone reads it."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(data.decode(), parse_constant=refuse)


def readable(text: str, what: str) -> None:
    wrong = sorted({character for character in text if not character.isprintable() and character != "\n"})
    assert not wrong, f"{what} has characters that steer a terminal: {wrong}"


def outside_fences(markdown: str) -> None:
    """Whoever names a run or a path writes no heading and no raw HTML of their own."""
    fence = ""
    for line in markdown.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = re.match("`+", line)[0]  # type: ignore[index]
        else:
            assert not line.startswith("#") or HEADINGS.fullmatch(line), f"a heading of somebody else's: {line[:80]!r}"
            assert not re.match(r"\s*<\w", line), f"raw HTML: {line[:80]!r}"
    assert not fence, "a fence is open at the end of the report"


class Rig:
    """The daemon, and what a test does in the world's place."""

    def __init__(self, work: Path, policies: PolicySet, *, control: bool = False) -> None:
        self.clock = FakeClock()
        self.processes = FakeProcesses()
        self.inbox = FakeInbox()
        facts = NodeFacts(
            "node-a", BOOT_ID, UsdMicros(98_320_000), "test", cloud="fake", instance_id="i-0fake", can_stop=True,
            said_running=True,
        )  # fmt: skip
        self.node = new_node(facts, policies, self.clock.boot(), self.clock.wall())
        self.judge: Any = Judge(self.clock)
        self.judge.node = self.node
        performer = Performer(
            self.node, self.clock, self.inbox, self.processes, FakeJournal(), Looks(), self.judge,
            ProcessKiller(self.processes, os.getpid()), lambda event: self.daemon.post(event),  # noqa: PLW0108 - the daemon is built later.
            FakeCloud(),
        )  # fmt: skip
        self.server = ControlServer(str(work / "control.sock")) if control else None
        self.daemon = Daemon(
            self.node, performer, FakeServiceManager(), lambda: (policies, []), control=self.server,
            answer=requests.answer,
        )  # fmt: skip
        for end in self.daemon._wake:
            end.setblocking(False)
        self._next_tick_ns = 0
        self._pids = 5_000

    def peer(self, random: Random) -> Peer:
        self._pids += 1
        uid = random.choice(UIDS)
        return Peer(self.processes.add(self._pids, uid=uid), uid, uid)

    def go_on(self) -> None:
        """What the loop does when something is ready."""
        self.daemon.reception.drain()
        self.settle()
        performer = self.daemon.performer
        for seen in performer.scan(self.clock.mono()):
            self.daemon.apply(seen)
        performer.calls.begin_due(self.clock.mono())
        if self.clock.mono() >= self._next_tick_ns:
            self.daemon._tick()
            self.settle()
            self._next_tick_ns = self.clock.mono() + 250_000_000

    def settle(self) -> None:
        """Take the answers of all calls that are under way."""
        for thread in threading.enumerate():
            if thread.name in CALLS:
                thread.join()
        self.daemon._drain_wake()
        self.daemon._drain_queue()

    def look(self) -> None:
        """What everybody sees now."""
        at = self.clock.mono()
        self.judge.page(self.node, at)
        document = strict(json.dumps(requests.status(self.daemon), allow_nan=False, default=str).encode())
        text = re.sub(r"\x1b\[[\d;]*m", "", render_status(document, FILE))
        readable(text, "the status")

    def end(self) -> None:
        for pid in list(self.processes.by_pid):
            self.processes.end(pid)
        self.inbox.close_all()
        if self.server is not None:
            self.server.close()
        self.daemon._epoll.close()
        for end in self.daemon._wake:
            end.close()
