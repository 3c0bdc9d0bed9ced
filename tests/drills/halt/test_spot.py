"""The provider takes the machine back: a real daemon hears of it, says it, and has the trainer save."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from examples.demo_cloud import DemoCloud
from tests.drills.halt.conftest import POLICY, Service, cloud_table
from tests.drills.halt.puppet import Puppet

SPOT = """
[[rule]]
name = "spot-notice"
trigger = "spot_notice"
response = "checkpoint"
checkpoint = "good"
"""


def test_a_notice_has_the_trainer_save_and_train_on(service: Callable[..., Service], cloud: DemoCloud) -> None:
    governor = service(cloud=cloud_table(cloud), policy=POLICY + SPOT)
    governor.start()
    puppet = Puppet(governor.work / "run" / "trainer.sock")
    try:
        puppet.hello()
        puppet.steps(1, 3)
        governor.until(lambda: governor.step() == 3, "the steps are heard")
        soon = datetime.now(UTC) + timedelta(minutes=2)
        cloud.spot_action = {"action": "terminate", "time": soon.strftime("%Y-%m-%dT%H:%M:%SZ")}
        letter = puppet.letter()
        assert (letter["kind"], letter["checkpoint"], letter["exit_after"]) == ("letter", "good", False)
        governor.until_said("the provider takes this spot machine back in 1m")
        assert governor.incidents() == [], "it is no halt: the provider's own comes"
    finally:
        puppet.end()
