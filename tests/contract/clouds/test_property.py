"""Whatever the provider does, in whatever order: the adapter never says ended while the meter runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.demo_cloud import Fault
from governor.core.events.inputs import BillingAnswer, StopAnswer
from tests.contract.clouds.rigs import FakeRig, Rig, aws_rig
from tests.sweeps import share_of

KINDS = (
    "http_429",
    "http_500",
    "http_503",
    "broken_after_effect",
    "denied",
    "dryrun_denied",
    "keeps_running",
    "garbage",
    "unsupported",
)
ACTIONS = ("*", "DescribeInstances", "StopInstances", "DescribeSpotInstanceRequests", "CancelSpotInstanceRequests")
FAULTS = st.builds(Fault, kind=st.sampled_from(KINDS), count=st.integers(1, 4), action=st.sampled_from(ACTIONS))
MOVES = st.lists(
    st.tuples(st.sampled_from(["stop", "billing", "preflight", "rotate", "forget_token"]), st.integers(0, 2)),
    max_size=8,
)
SLOW_ENOUGH = settings(
    max_examples=share_of(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(rig: Rig, moves: list[tuple[str, int]], other: Callable[[str], None]) -> None:
    for move, rung in moves:
        ended_before = not rig.meter_runs()
        match move:
            case "stop":
                reply = rig.cloud.stop("run-7-1", rung)
                assert reply.answer is not StopAnswer.REFUSED or ended_before or rig.meter_runs(), "refused, yet done"
            case "billing":
                if rig.cloud.billing().answer is BillingAnswer.ENDED:
                    assert not rig.meter_runs(), "said ended while the meter runs"
            case "preflight":
                rig.cloud.preflight()
                assert rig.meter_runs() is not ended_before, "preflight changed the machine"
            case _:
                other(move)
        assert rig.others_run(), "touched somebody else's machine"
        assert rig.times_ended() <= 1


@SLOW_ENOUGH
@given(
    faults=st.lists(FAULTS, max_size=4),
    spot=st.sampled_from([None, "one-time", "persistent"]),
    terminate=st.booleans(),
    moves=MOVES,
)
def test_aws_tells_the_truth_under_any_faults_and_stops_once_they_heal(
    moto_port: int, faults: list[Fault], spot: str | None, terminate: bool, moves: list[tuple[str, int]]
) -> None:
    with aws_rig(moto_port, terminate=terminate) as rig:
        rig.demo.spot_request = {"id": "sir-0demo", "type": spot} if spot else None
        rig.demo.faults = faults

        def other(move: str) -> None:
            if move == "rotate":
                rig.demo.rotate_credentials()
            else:
                rig.demo.metadata_token = "forgotten"

        check(rig, moves, other)
        rig.demo.faults = []
        replies = [rig.cloud.stop("run-7-1", 1) for _ in range(2)]  # The first may find credentials rotated away.
        assert replies[-1].answer is StopAnswer.ACCEPTED, replies
        assert rig.cloud.billing().answer is BillingAnswer.ENDED
        assert not rig.meter_runs()
        assert rig.others_run()


@SLOW_ENOUGH
@given(faults=st.lists(st.sampled_from(["busy", "forbidden", "lost_reply", "lie"]), max_size=4), moves=MOVES)
def test_the_fake_keeps_to_the_same(faults: list[str], moves: list[tuple[str, int]]) -> None:
    rig = FakeRig()
    rig.cloud.faults = faults
    check(rig, moves, lambda _: None)
    rig.cloud.faults = []
    assert rig.cloud.stop("run-7-1", 1).answer is StopAnswer.ACCEPTED
    assert rig.cloud.billing().answer is BillingAnswer.ENDED


def test_the_check_catches_a_cloud_that_lies_about_the_end() -> None:
    """The property would be worth nothing if a lying adapter passed it."""
    rig = FakeRig()
    rig.cloud.lies_about_the_end = True
    with pytest.raises(AssertionError, match="said ended while the meter runs"):
        check(rig, [("billing", 0)], lambda _: None)
