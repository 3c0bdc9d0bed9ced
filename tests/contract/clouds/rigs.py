"""One way to drive every provider: real adapter or fake, a truth that it cannot see, and faults on order."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from examples.demo_cloud import DemoCloud, Fault
from governor.adapters import clouds
from governor.adapters.plugins import Surroundings
from governor.core.base.units import NS_PER_S, WallNs
from governor.remote_ports import Cloud, Notice
from tests.contract.fakes_cloud import FakeCloud

AWS_FAULTS = {
    "busy": "http_503",
    "forbidden": "denied",
    "lost_reply": "timeout_after_effect",
    "lie": "keeps_running",
}
LOST_REPLY_S = 0.5  # How long an adapter under test waits for a reply that never comes.


class Rig(Protocol):
    cloud: Cloud
    secrets: tuple[str, ...]

    def meter_runs(self) -> bool:
        """The truth: is the machine running?"""

    def others_run(self) -> bool:
        """The truth about a second machine that belongs to somebody else."""

    def times_ended(self) -> int:
        """How often the running machine was really ended."""

    def next_stop(self, fault: str) -> None:
        """Spoil the next stop: busy | forbidden | lost_reply | lie (rung 0 only)."""

    def slow_to_end(self) -> None:
        """After a stop, the next look still sees the machine on its way down."""

    def announce(self, action: str, when: datetime) -> None:
        """The provider takes the machine back then, and says so where it says such things."""

    def give_no_answer(self) -> None:
        """Whoever is asked for a notice does not answer."""

    def hide_state(self) -> None:
        """From now on the provider does not say whether the machine is billed."""


class FakeRig:
    secrets = ()

    def __init__(self) -> None:
        self.cloud = self._fake = FakeCloud()
        self._other = FakeCloud(instance_id="i-other")

    def meter_runs(self) -> bool:
        return self._fake.meter_runs

    def others_run(self) -> bool:
        return self._other.meter_runs

    def times_ended(self) -> int:
        return self._fake.times_ended

    def next_stop(self, fault: str) -> None:
        self._fake.faults = [fault]

    def slow_to_end(self) -> None:
        self._fake.stopping_reads = 1

    def announce(self, action: str, when: datetime) -> None:
        self._fake.announced = Notice(action, WallNs(round(when.timestamp() * NS_PER_S)))

    def give_no_answer(self) -> None:
        self._fake.announced = None

    def hide_state(self) -> None:
        self._fake.blind = True


class AwsRig:
    """The real adapter, moto's EC2, and the demo's metadata service and fault proxy."""

    def __init__(self, demo: DemoCloud, **config: Any) -> None:
        self.demo = demo
        self.other_id = _machine_of_another(demo.moto_port)
        self.cloud = aws(demo, **config)

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(self.demo.credentials[name] for name in ("AccessKeyId", "SecretAccessKey", "Token"))

    def meter_runs(self) -> bool:
        return self.demo.state() == "running"

    def others_run(self) -> bool:
        return self.demo.state(self.other_id) == "running"

    def times_ended(self) -> int:
        return self.demo.times_ended

    def next_stop(self, fault: str) -> None:
        self.demo.faults = [Fault(AWS_FAULTS[fault])]
        if fault == "lost_reply":  # It never comes: nobody else is so impatient, for a machine may be slow.
            self.cloud = aws(self.demo, timeout_s=LOST_REPLY_S)

    def slow_to_end(self) -> None:
        self.demo.stopping_reads = 1

    def announce(self, action: str, when: datetime) -> None:
        self.demo.spot_action = {"action": action, "time": when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}

    def give_no_answer(self) -> None:
        self.demo.metadata_down = True

    def hide_state(self) -> None:
        self.demo.faults = [Fault("http_500", count=1_000, action="DescribeInstances")]

    def effects(self) -> list[str]:
        """Every call that could have changed something, in order."""
        reads = ("Describe",)
        return [
            call["action"] for call in self.demo.calls if not call["action"].startswith(reads) and not call["dry_run"]
        ]


def aws(demo: DemoCloud, surroundings: Surroundings | None = None, **config: Any) -> Cloud:
    config = {"timeout_s": 30.0, **config}
    here = {"endpoint": demo.endpoint, "metadata_endpoint": demo.metadata_endpoint}
    # Tests may run on an EC2 machine with disks of its own: the adapter must not see them.
    surroundings = surroundings or Surroundings(sys=Path("/nonexistent"))
    return clouds.load("aws", {**here, **config}, surroundings)


class CommandRig:
    """The real adapter and a small provider program that keeps its truth in a file."""

    secrets = ("command-line-secret",)

    def __init__(self, directory: Path) -> None:
        self._truth = directory / "truth.json"
        self._write(state="running", times_ended=0, fault="", stopping_reads=0, hidden=False)
        self._program = directory / "provider"
        self._program.write_text(
            f"#!{sys.executable} -S\n" + Path(__file__).with_name("provider_program.py").read_text()
        )
        self._program.chmod(0o700)
        self.cloud = clouds.load(
            "command",
            {
                "argv": [str(self._program), str(self._truth), "stop", "{instance}", "{incident}", "{rung}"],
                "verify_command": [str(self._program), str(self._truth), "verify", self.secrets[0]],
                "instance_id": "node-1",
                "timeout_s": 30.0,
            },
        )

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._truth.read_text()))

    def _write(self, **changes: Any) -> None:
        old = self._read() if self._truth.exists() else {}
        self._truth.write_text(json.dumps({**old, **changes}))

    def meter_runs(self) -> bool:
        return bool(self._read()["state"] == "running")

    def others_run(self) -> bool:
        return set(self._read().get("asked_for", [])) <= {"node-1"}

    def times_ended(self) -> int:
        return int(self._read()["times_ended"])

    def next_stop(self, fault: str) -> None:
        if fault == "forbidden":
            self._program.chmod(0o600)
        self._write(fault=fault)

    def slow_to_end(self) -> None:
        self._write(stopping_reads=1)

    def announce(self, action: str, when: datetime) -> None:
        """A command knows nothing of it."""

    def give_no_answer(self) -> None:
        pass

    def hide_state(self) -> None:
        self._write(hidden=True)


@cache
def _machine_of_another(moto_port: int) -> str:
    """One for all tests of a moto: whoever ends it has failed, and so has everybody after."""
    with DemoCloud(moto_port=moto_port) as demo:
        return demo.instance_id


@contextmanager
def aws_rig(moto_port: int, **config: Any) -> Iterator[AwsRig]:
    with DemoCloud(stopping_s=0.0, moto_port=moto_port) as demo:
        yield AwsRig(demo, **config)


@dataclass(frozen=True)
class Bench:
    """What a rig may stand on. moto starts when it is first asked for."""

    directory: Path
    moto_port: Callable[[], int]


# Every provider that can end billing, by its name. A new one is added here and passes the suite unedited.
RIGS: dict[str, Callable[[Bench], AbstractContextManager[Rig]]] = {
    "aws": lambda bench: aws_rig(bench.moto_port()),
    "command": lambda bench: nullcontext(CommandRig(bench.directory)),
}
