"""What is EC2's own: identity, spot, Auto Scaling, protection, reservations, credentials, and a wrong clock."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from examples.demo_cloud import Fault
from governor.adapters.clouds.ec2.instance import BILLING_BY_STATE
from governor.adapters.plugins import Surroundings
from governor.core.base.units import NS_PER_HOUR
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, StopReply
from tests.contract.clouds.rigs import AwsRig, aws_rig
from tests.contract.clouds.rigs import aws as load_aws

NOT_FOUND = Fault("refuse", count=100, action="DescribeInstances", status=400, code="InvalidInstanceID.NotFound")
ASG_XML = (
    "<tagSet><item><key>aws:autoscaling:groupName</key><value>gpu-fleet</value></item></tagSet>"
    # moto's own (empty) tagSet follows; EC2 sends one. Ours comes first and is the one with the tag.
)


def as_spot(aws: AwsRig, kind: str) -> None:
    aws.demo.spot_request = {"id": "sir-0demo", "type": kind, "state": "active"}


# --- who we are ------------------------------------------------------------------------------------------


def test_a_configured_id_that_metadata_does_not_confirm_stops_nothing(moto_port: int) -> None:
    with aws_rig(moto_port, instance_id="i-00000000000000000") as aws:
        assert aws.cloud.stop("run-7-1", 0) == StopReply(StopAnswer.REFUSED, False, "instance_id_mismatch")
        assert aws.cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "instance_id_mismatch")
        found = aws.cloud.preflight()
        assert not found.ok
        assert "i-00000000000000000" in found.problems[0]
        assert aws.effects() == []


def test_a_configured_id_that_metadata_confirms_is_stopped(aws: AwsRig) -> None:
    cloud = load_aws(aws.demo, instance_id=aws.demo.instance_id)
    assert cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert not aws.meter_runs()


def test_metadata_that_changes_its_mind_stops_nothing(aws: AwsRig) -> None:
    aws.cloud.preflight()
    aws.demo.reported_id = aws.other_id
    assert aws.cloud.stop("run-7-1", 0).reason == "instance_id_changed"
    assert aws.others_run()
    assert aws.meter_runs()


def test_another_machine_is_stopped_only_where_the_settings_allow_it(aws: AwsRig, moto_port: int) -> None:
    """Of a node whose governor is silent. It is stopped at most, whatever this machine's own settings allow."""
    with aws_rig(moto_port) as silent:
        its_id = silent.demo.instance_id
        assert aws.cloud.other(its_id) is None
        cloud = load_aws(aws.demo, stops_others=True, terminate=True)
        assert cloud.other(its_id) is None, "not before we know which region this is"
        cloud.preflight()
        assert cloud.other("i-1&InstanceId.2=" + aws.demo.instance_id) is None
        machine = cloud.other(its_id)
        assert machine is not None
        assert machine.billing().answer is BillingAnswer.RUNNING
        assert machine.stop("llama.node-a.1.node-b", 2).answer is StopAnswer.ACCEPTED
        assert not silent.meter_runs()
        assert aws.meter_runs(), "our own goes on"
        assert aws.others_run()
        assert "TerminateInstances" not in aws.effects()


@pytest.mark.parametrize("claimed", ["i-1/../x", "", "i-0123456789abcdef0&InstanceId.2=i-1", "I-0123456789ABCDEF0"])
def test_an_id_that_is_none_is_not_sent_to_ec2(aws: AwsRig, claimed: str) -> None:
    aws.demo.reported_id = claimed or " "
    assert aws.cloud.stop("run-7-1", 0).reason == "metadata_malformed"
    assert list(aws.demo.calls) == []


def test_without_metadata_nothing_is_stopped_until_it_answers(aws: AwsRig) -> None:
    aws.demo.metadata_down = True
    assert aws.cloud.stop("run-7-1", 0) == StopReply(StopAnswer.REFUSED, True, "metadata_http_503")
    assert not aws.cloud.preflight().ok
    aws.demo.metadata_down = False
    assert aws.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED


def test_metadata_that_dies_after_start_does_not_save_the_machine(aws: AwsRig) -> None:
    aws.cloud.preflight()
    aws.demo.metadata_down = True
    assert aws.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert not aws.meter_runs()


def test_every_effect_names_this_instance_and_its_incident(aws: AwsRig) -> None:
    for rung in range(3):
        aws.cloud.stop("run-7-1", rung)
    effects = [call for call in aws.demo.calls if call["action"] in ("StopInstances", "TerminateInstances")]
    assert effects
    assert {tuple(call["ids"]) for call in effects} == {(aws.demo.instance_id,)}
    assert all(call["agent"].endswith(" incident/run-7-1") for call in effects)


def test_proxy_variables_do_not_catch_metadata(aws: AwsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    cloud = load_aws(aws.demo)
    assert cloud.preflight().ok
    assert cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED


# --- states ----------------------------------------------------------------------------------------------


def test_only_two_states_have_ended() -> None:
    ended = {state for state, answer in BILLING_BY_STATE.items() if answer is BillingAnswer.ENDED}
    assert ended == {"stopped", "terminated"}


def test_stopping_is_running(aws: AwsRig) -> None:
    aws.demo.stopping_s = 3600.0
    aws.cloud.stop("run-7-1", 0)
    assert aws.cloud.billing() == BillingReply(BillingAnswer.RUNNING, "stopping")


def test_not_found_ends_only_an_instance_that_was_seen(aws: AwsRig) -> None:
    aws.demo.faults = [NOT_FOUND]
    assert aws.cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "InvalidInstanceID.NotFound")
    aws.demo.faults = []
    aws.cloud.billing()
    aws.demo.faults = [NOT_FOUND]
    assert aws.cloud.billing() == BillingReply(BillingAnswer.ENDED, "InvalidInstanceID.NotFound")


def test_a_page_that_is_not_ec2s_is_no_answer(aws: AwsRig) -> None:
    aws.demo.faults = [Fault("garbage", action="DescribeInstances")]
    assert aws.cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "malformed")
    aws.demo.faults = [Fault("garbage")]
    reply = aws.cloud.stop("run-7-1", 0)
    assert reply == StopReply(StopAnswer.UNKNOWN, True, "malformed")
    assert aws.meter_runs()


# --- rungs -----------------------------------------------------------------------------------------------


def test_terminate_is_the_third_rung_only_where_allowed(moto_port: int) -> None:
    for terminate, last in ((False, "StopInstances"), (True, "TerminateInstances")):
        with aws_rig(moto_port, terminate=terminate) as aws:
            aws.demo.faults = [Fault("keeps_running"), Fault("http_503", count=1)]
            for rung in range(3):
                aws.cloud.stop("run-7-1", rung)
            assert aws.effects() == ["StopInstances", "StopInstances", last]
            assert [call["force"] for call in aws.demo.calls if call["action"] == "StopInstances"][:2] == [False, True]


def test_one_time_spot_is_terminated_because_that_is_its_stop(aws: AwsRig) -> None:
    as_spot(aws, "one-time")
    found = aws.cloud.preflight()
    assert found.survives_stop is False
    assert "terminate" in found.will
    assert aws.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert aws.effects() == ["TerminateInstances"]
    assert aws.cloud.billing() == BillingReply(BillingAnswer.ENDED, "terminated")


def test_what_was_learned_of_spot_holds_while_ec2_does_not_answer_questions(aws: AwsRig) -> None:
    as_spot(aws, "one-time")
    aws.cloud.preflight()
    aws.demo.faults = [Fault("http_503", count=100, action="DescribeInstances")]
    assert aws.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert aws.effects() == ["TerminateInstances"]


def test_a_persistent_spot_request_is_cancelled_before_the_stop(aws: AwsRig) -> None:
    as_spot(aws, "persistent")
    assert aws.cloud.preflight().respawners == ("persistent spot request sir-0demo",)
    assert aws.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert aws.effects() == ["CancelSpotInstanceRequests", "StopInstances"]
    assert aws.demo.spot_request == {"id": "sir-0demo", "type": "persistent", "state": "cancelled"}


def test_a_spot_instance_that_cannot_be_stopped_is_terminated(aws: AwsRig) -> None:
    as_spot(aws, "persistent")
    aws.demo.faults = [Fault("unsupported", action="StopInstances")]
    assert aws.cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert aws.effects() == ["CancelSpotInstanceRequests", "StopInstances", "TerminateInstances"]


def test_a_spot_instance_whose_request_lives_on_is_not_terminated(aws: AwsRig) -> None:
    as_spot(aws, "persistent")
    aws.demo.faults = [
        Fault("denied", action="CancelSpotInstanceRequests"),
        Fault("unsupported", action="StopInstances"),
    ]
    assert aws.cloud.stop("run-7-1", 0) == StopReply(StopAnswer.REFUSED, False, "UnsupportedOperation")
    assert aws.effects() == ["CancelSpotInstanceRequests", "StopInstances"]


def test_no_termination_while_the_spot_request_would_start_another(moto_port: int) -> None:
    with aws_rig(moto_port, terminate=True) as aws:
        as_spot(aws, "persistent")
        aws.demo.faults = [Fault("denied", action="CancelSpotInstanceRequests")]
        reply = aws.cloud.stop("run-7-1", 2)
        assert reply == StopReply(StopAnswer.REFUSED, False, "CancelSpotInstanceRequests:UnauthorizedOperation")
        assert aws.effects() == ["CancelSpotInstanceRequests"]


def test_an_auto_scaling_group_is_reported_and_outwitted_only_where_allowed(moto_port: int) -> None:
    for terminate, action in ((False, "StopInstances"), (True, "TerminateInstanceInAutoScalingGroup")):
        with aws_rig(moto_port, terminate=terminate) as aws:
            aws.demo.extra_instance_xml = ASG_XML
            found = aws.cloud.preflight()
            assert found.respawners == ("Auto Scaling group gpu-fleet",)
            assert any("will replace" in problem for problem in found.problems) is not terminate
            aws.cloud.stop("run-7-1", 0)
            assert aws.effects() == [action]


def test_protection_is_reported_and_lifted_only_on_the_users_word(moto_port: int) -> None:
    for override, answer in ((False, StopAnswer.REFUSED), (True, StopAnswer.ACCEPTED)):
        with aws_rig(moto_port, override_protection=override) as aws:
            aws.demo.moto(
                Action="ModifyInstanceAttribute",
                InstanceId=aws.demo.instance_id,
                **{"DisableApiStop.Value": "true"},
            )
            assert aws.cloud.preflight().ok is override
            reply = aws.cloud.stop("run-7-1", 0)
            assert reply.answer is answer
            assert aws.meter_runs() is not override
            if not override:
                assert reply == StopReply(StopAnswer.REFUSED, False, "OperationNotPermitted")


# --- preflight -------------------------------------------------------------------------------------------


def test_preflight_says_what_stays_billed(aws: AwsRig) -> None:
    aws.demo.extra_instance_xml = "<capacityReservationId>cr-0demo</capacityReservationId>"
    allocated = aws.demo.moto(Action="AllocateAddress", Domain="vpc")
    address = allocated.partition("<publicIp>")[2].partition("<")[0]
    aws.demo.moto(Action="AssociateAddress", InstanceId=aws.demo.instance_id, PublicIp=address)
    volume, elastic, reservation = aws.cloud.preflight().stays_billed
    assert volume.startswith("EBS volume vol-")
    assert volume.endswith(" (100 GiB)")
    assert elastic == f"Elastic IP {address}"
    assert reservation == "capacity reservation cr-0demo: at the full rate, used or not"


@pytest.mark.parametrize(("said", "survives"), [(None, False), (True, True), (False, False)])
def test_local_disks_are_lost_in_a_stop_unless_the_user_says_that_nothing_is_on_them(
    aws: AwsRig, tmp_path: Path, said: bool | None, survives: bool
) -> None:
    for name, model in (("nvme0n1", "Amazon Elastic Block Store"), ("nvme1n1", "Amazon EC2 NVMe Instance Storage")):
        (tmp_path / "block" / name / "device").mkdir(parents=True)
        (tmp_path / "block" / name / "device" / "model").write_text(f"{model}\n")
    config = {} if said is None else {"survives_stop": said}
    found = load_aws(aws.demo, Surroundings(sys=tmp_path), **config).preflight()
    assert found.ok
    assert found.survives_stop is survives
    assert any("nvme1n1 are erased" in problem for problem in found.problems) is (said is None)


def test_a_root_disk_of_the_machine_itself_does_not_survive(aws: AwsRig) -> None:
    assert aws.cloud.preflight().survives_stop is True
    aws.demo.extra_instance_xml = "<rootDeviceType>instance-store</rootDeviceType>"
    assert aws.cloud.preflight().survives_stop is False


def test_preflight_meets_a_denied_dry_run(aws: AwsRig) -> None:
    aws.demo.faults = [Fault("dryrun_denied")]
    found = aws.cloud.preflight()
    assert not found.ok
    assert found.problems == (
        f"ec2:StopInstances on {aws.demo.instance_id} is not allowed; see deploy/aws/iam-policy.json",
    )


def test_preflight_knows_the_launch_time(aws: AwsRig) -> None:
    launched = aws.cloud.preflight().launched_at_wall
    assert launched is not None
    assert abs(launched - time.time_ns()) < NS_PER_HOUR


# --- credentials and clocks ------------------------------------------------------------------------------


def test_rotated_role_credentials_are_fetched_anew(aws: AwsRig) -> None:
    aws.cloud.preflight()
    aws.demo.rotate_credentials()
    refused = aws.cloud.billing()
    assert refused == BillingReply(BillingAnswer.UNKNOWN, "AuthFailure")
    assert aws.cloud.billing().answer is BillingAnswer.RUNNING


def test_role_credentials_are_kept_until_shortly_before_they_expire(aws: AwsRig) -> None:
    now = [time.time_ns()]
    cloud = load_aws(aws.demo, Surroundings(wall_ns=lambda: now[0]))

    def fetched() -> int:
        return sum(path.endswith("/costgov-demo") for path in aws.demo.metadata_reads)

    cloud.billing()
    cloud.billing()
    assert fetched() == 1
    now[0] += 6 * NS_PER_HOUR  # They are valid for six hours.
    cloud.billing()
    assert fetched() == 2


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_wrong_clock_is_named_and_does_not_prevent_the_stop(aws: AwsRig, hours: int) -> None:
    surroundings = Surroundings(wall_ns=lambda: time.time_ns() + hours * NS_PER_HOUR)
    cloud = load_aws(aws.demo, surroundings)
    found = cloud.preflight()
    assert found.ok
    assert "clock is" in found.problems[0]
    assert ("behind" if hours < 0 else "ahead") in found.problems[0]
    assert cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED


def test_a_wrong_clock_without_a_preflight_does_not_prevent_the_stop_either(aws: AwsRig) -> None:
    cloud = load_aws(aws.demo, Surroundings(wall_ns=lambda: time.time_ns() - 3 * NS_PER_HOUR))
    assert cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED


def credentials_file(directory: Path, aws: AwsRig, mode: int = 0o600) -> Path:
    found = aws.demo.credentials
    path = directory / "aws"
    path.write_text(
        f"[default]\naws_access_key_id = {found['AccessKeyId']}\naws_secret_access_key = {found['SecretAccessKey']}\n"
        f"aws_session_token = {found['Token']}\n"
    )
    path.chmod(mode)
    return path


def test_the_role_comes_before_the_file(aws: AwsRig, tmp_path: Path) -> None:
    path = credentials_file(tmp_path, aws)
    aws.demo.rotate_credentials()  # The file is stale now.
    assert load_aws(aws.demo, credentials_file=str(path)).preflight().ok


def test_a_file_in_systemds_credentials_directory_is_found(aws: AwsRig, tmp_path: Path) -> None:
    credentials_file(tmp_path, aws)
    surroundings = Surroundings(environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert load_aws(aws.demo, surroundings, credentials="file").preflight().ok


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.unlink(), "file:not_found"),
        (lambda path: path.chmod(0o644), "file:readable_by_everyone"),
        (lambda path: path.write_text("[default]\naws_access_key_id = A\n"), "file:profile_or_key_missing"),
        (lambda path: path.write_text("top-secret-line\n"), "file:malformed"),
        (lambda path: (path.unlink(), path.mkdir()), "file:not_a_file"),
    ],
)
def test_a_bad_credentials_file_is_one_clear_line(aws: AwsRig, tmp_path: Path, spoil: object, reason: str) -> None:
    path = credentials_file(tmp_path, aws)
    assert callable(spoil)
    spoil(path)
    cloud = load_aws(aws.demo, credentials="file", credentials_file=str(path))
    found = cloud.preflight()
    assert not found.ok
    assert len(found.problems) == 1
    assert reason in found.problems[0]
    assert "top-secret-line" not in repr(found)
    assert cloud.stop("run-7-1", 0) == StopReply(StopAnswer.REFUSED, True, "no_credentials")


def test_aws_variables_count_only_on_the_users_word(aws: AwsRig) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "AKIASTRAY", "AWS_SECRET_ACCESS_KEY": "stray"}
    assert load_aws(aws.demo, Surroundings(environ=environ)).preflight().ok
    ours = {
        "AWS_ACCESS_KEY_ID": aws.demo.credentials["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": aws.demo.credentials["SecretAccessKey"],
    }
    told = Surroundings(environ=ours)
    assert load_aws(aws.demo, told, credentials="environment").preflight().ok
    assert "AKIA" not in repr(told)


def test_a_role_that_metadata_garbles_is_no_credential(aws: AwsRig) -> None:
    aws.demo.credentials = json.loads('{"AccessKeyId": "A"}')
    assert "role:malformed" in aws.cloud.preflight().problems[0]
