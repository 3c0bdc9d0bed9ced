"""What the halt may rely on, whoever the provider is. The rig knows the truth; the adapter has to find it."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime

import pytest

from governor.adapters import clouds
from governor.core.base.units import NS_PER_S, WallNs
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, Notice, Preflight, StopReply
from tests.contract.clouds.rigs import RIGS, Rig
from tests.tidy import gates

STABLE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def test_every_cloud_is_in_this_suite() -> None:
    """All but the absence of one: it can end no billing, and test_config.py holds it to that."""
    providers = set(clouds.names()) - {"none"}
    gates.nothing_missing(gates.without_a_rig("cloud", providers, RIGS, "tests/contract/clouds/rigs.py RIGS"))


def test_a_running_machine_is_billed(rig: Rig) -> None:
    assert rig.cloud.billing().answer is BillingAnswer.RUNNING


def test_a_stop_ends_billing(rig: Rig) -> None:
    assert rig.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert not rig.meter_runs()
    assert rig.cloud.billing().answer is BillingAnswer.ENDED


def test_stopping_twice_under_one_incident_is_one_stop(rig: Rig) -> None:
    rig.cloud.stop("run-7-1", 0)
    again = rig.cloud.stop("run-7-1", 0)
    assert again.answer is StopAnswer.ACCEPTED
    assert rig.times_ended() == 1
    assert rig.cloud.billing().answer is BillingAnswer.ENDED


def test_a_machine_on_its_way_down_is_still_billed(rig: Rig) -> None:
    rig.slow_to_end()
    rig.cloud.stop("run-7-1", 0)
    assert rig.cloud.billing().answer is BillingAnswer.RUNNING
    assert rig.cloud.billing().answer is BillingAnswer.ENDED


def test_a_lost_reply_is_unknown_and_the_read_back_tells(rig: Rig) -> None:
    rig.next_stop("lost_reply")
    reply = rig.cloud.stop("run-7-1", 0)
    assert reply.answer is StopAnswer.UNKNOWN
    assert reply.retryable
    assert rig.cloud.billing().answer is BillingAnswer.ENDED


def test_a_lost_reply_and_a_second_stop_are_still_one_stop(rig: Rig) -> None:
    rig.next_stop("lost_reply")
    rig.cloud.stop("run-7-1", 0)
    rig.cloud.stop("run-7-1", 0)
    assert rig.times_ended() == 1


def test_a_busy_provider_is_worth_another_try(rig: Rig) -> None:
    rig.next_stop("busy")
    reply = rig.cloud.stop("run-7-1", 0)
    assert (reply.answer, reply.retryable) == (StopAnswer.REFUSED, True)
    assert rig.meter_runs()
    assert rig.cloud.billing().answer is BillingAnswer.RUNNING
    assert rig.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED


def test_a_provider_that_forbids_is_not_worth_the_same_try(rig: Rig) -> None:
    rig.next_stop("forbidden")
    reply = rig.cloud.stop("run-7-1", 0)
    assert (reply.answer, reply.retryable) == (StopAnswer.REFUSED, False)
    assert rig.meter_runs()


def test_accepted_is_not_ended(rig: Rig) -> None:
    """The provider says yes and bills on: the read back must say so, and the next rung must work."""
    rig.next_stop("lie")
    assert rig.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert rig.meter_runs()
    assert rig.cloud.billing().answer is BillingAnswer.RUNNING
    assert rig.cloud.stop("run-7-1", 1).answer is StopAnswer.ACCEPTED
    assert rig.cloud.billing().answer is BillingAnswer.ENDED


def test_a_provider_that_does_not_say_is_unknown(rig: Rig) -> None:
    rig.hide_state()
    assert rig.cloud.billing().answer is BillingAnswer.UNKNOWN


def test_billing_is_asked_now_and_never_remembered(rig: Rig) -> None:
    rig.cloud.stop("run-7-1", 0)
    assert rig.cloud.billing().answer is BillingAnswer.ENDED
    rig.hide_state()
    assert rig.cloud.billing().answer is BillingAnswer.UNKNOWN


def test_a_blind_stop_still_stops(rig: Rig) -> None:
    rig.hide_state()
    rig.cloud.stop("run-7-1", 0)
    assert not rig.meter_runs()


@pytest.mark.parametrize("rung", [0, 1, 2])
def test_no_rung_touches_another_machine(rig: Rig, rung: int) -> None:
    rig.cloud.preflight()
    rig.cloud.stop("run-7-1", rung)
    assert not rig.meter_runs()
    assert rig.others_run()


def test_preflight_changes_nothing_and_names_the_deed(rig: Rig) -> None:
    found = rig.cloud.preflight()
    assert found.ok, found.problems
    assert found.problems == ()
    assert found.will
    assert found.said_running, "else no end that it states later is believed"
    assert rig.cloud.billing_source
    assert rig.meter_runs()
    assert rig.times_ended() == 0


def test_bounds_are_declared(rig: Rig) -> None:
    assert rig.cloud.stop_bound_s > 0
    assert rig.cloud.granularity_s > 0


def test_no_secret_in_any_reason_repr_or_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    replies: list[StopReply | BillingReply | Preflight] = [rig.cloud.preflight(), rig.cloud.billing()]
    for fault in ("busy", "lost_reply", "lie", "forbidden"):
        rig.next_stop(fault)
        replies += [rig.cloud.stop("run-7-1", 0), rig.cloud.billing()]
    said = "\n".join([*map(repr, replies), repr(rig.cloud), caplog.text])
    for secret in rig.secrets:
        assert secret not in said


def test_reasons_are_stable_names(rig: Rig) -> None:
    for fault in ("busy", "lost_reply", "forbidden"):
        rig.next_stop(fault)
        assert STABLE_NAME.fullmatch(rig.cloud.stop("run-7-1", 0).reason)
    rig.hide_state()
    assert STABLE_NAME.fullmatch(rig.cloud.billing().provider_state)


WHEN = datetime(2026, 11, 22, 8, 22, tzinfo=UTC)


def test_a_provider_that_gives_notice_says_when_and_says_that_there_is_none(rig: Rig) -> None:
    if not rig.cloud.gives_notice:
        rig.announce("terminate", WHEN)
        assert rig.cloud.notice() is None, "who cannot be asked has not denied it"
        return
    assert rig.cloud.notice() == Notice(None)
    rig.announce("terminate", WHEN)
    assert rig.cloud.notice() == Notice("terminate", WallNs(int(WHEN.timestamp()) * NS_PER_S))


def test_no_answer_is_not_the_answer_that_nothing_is_announced(rig: Rig) -> None:
    rig.give_no_answer()
    assert rig.cloud.notice() is None
