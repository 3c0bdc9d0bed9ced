"""What the start makes of [peers] where another program has the port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.adapters.peers.udp import bound
from governor.adapters.peers.waiting import AGAIN_NS
from governor.app.peers import PeersPart
from governor.core.base.units import MonoNs
from governor.core.engine import step as engine
from governor.core.events.effects import Alarm
from governor.settings.peers import HostPort
from governor.settings.peers import Peers as Settings
from tests.contract.fakes import FakeClock
from tests.unit.core.engine.test_step import make_node

NOW = MonoNs(0)


class Start:
    def __init__(self, directory: Path, *, is_run: bool = False) -> None:
        secret = directory / "peers.secret"
        secret.write_text("0123456789abcdef" * 4)
        secret.chmod(0o600)
        self.secret = secret
        self.clock = FakeClock()
        self.taken = bound(HostPort("127.0.0.1", 0))
        self.listen = f"127.0.0.1:{self.taken.getsockname()[1]}"
        self.settings = Settings(secret_file=secret, listen=self.listen)
        self.part = PeersPart(self.settings, "node-a", self.clock, is_run=is_run)

    def close(self) -> None:
        self.part.close()
        self.taken.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made = Start(tmp_path)
    yield made
    made.close()


def test_a_port_that_is_had_later_is_told_once_and_shown(start: Start) -> None:
    assert [alarm.name for alarm in start.part.alarms()] == ["peers_off"]
    assert start.part.problem is not None
    assert start.part.document() == start.part.problem
    assert start.part.peers is not None, "launches name hosts that are asked when the port is had"
    start.taken.close()
    assert not start.part.poll(NOW)
    start.clock.advance(AGAIN_NS)
    told = [effect for event in start.part.poll(NOW) for effect in engine.step(make_node(), event)]
    assert [(alarm.name, alarm.run) for alarm in told if isinstance(alarm, Alarm)] == [("peers_again", None)]
    assert start.part.problem is None
    document = start.part.document()
    assert isinstance(document, dict)
    assert document["listen"] == start.listen
    start.clock.advance(AGAIN_NS)
    assert not start.part.poll(NOW)


def test_a_secret_that_cannot_be_read_is_not_waited_for(start: Start) -> None:
    start.taken.close()
    start.secret.chmod(0o644)
    part = PeersPart(start.settings, "node-a", start.clock, is_run=False)
    assert part.peers is None
    assert [alarm.name for alarm in part.alarms()] == ["peers_off"]
    start.secret.chmod(0o600)
    start.clock.advance(AGAIN_NS)
    assert not part.poll(NOW)


def test_costgov_run_leaves_the_port_to_the_service(tmp_path: Path) -> None:
    made = Start(tmp_path, is_run=True)
    made.taken.close()
    made.clock.advance(AGAIN_NS)
    assert not made.part.poll(NOW)
    assert made.part.peers is None
    assert not made.part.alarms()
    made.close()
