"""Servers that fail, lie or steer, names that are no names, and a token that nobody may see."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.plugins import ConfigError, Surroundings, checked
from governor.adapters.schedulers import kubernetes
from governor.adapters.schedulers.kube.api import BODY_BYTES_MAX
from governor.core.events.inputs import BillingAnswer, StopAnswer
from tests.contract.alerts.mail_server import tls_context
from tests.contract.schedulers.fake_api_server import ADMIN, FakeApi, fake_api_server
from tests.contract.schedulers.kube_rig import INCIDENT, NS, KubeRig, asked, is_ended

NESTED = b'{"a":' * 100_000
BODIES = [b"", b"<html>", b"[]", b"null", b'"x"', NESTED, b"\xff\xfe", b'{"items": 7}', b'{"metadata": [1]}', b"{}"]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_broken_reply_is_never_the_end_nor_a_stop(rig: KubeRig, fake: FakeApi, body: bytes) -> None:
    rig.job()
    scheduler = rig.scheduler()
    scheduler.state(asked(f"{NS}/llm-0"))
    fake.interferes = lambda *_: body
    fresh = rig.scheduler()
    assert fresh.state(asked(f"{NS}/llm-0")).answer is BillingAnswer.UNKNOWN
    assert fresh.stop(asked(f"{NS}/llm-0"), INCIDENT, 0).answer is StopAnswer.REFUSED
    assert len(fresh.problems(asked(f"{NS}/llm-0"))) == 1


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 409, 410, 429, 500, 503])
def test_a_status_that_is_no_answer_is_unknown(rig: KubeRig, fake: FakeApi, status: int) -> None:
    rig.job()
    scheduler = rig.scheduler()
    scheduler.state(asked(f"{NS}/llm-0"))
    fake.interferes = lambda _, path: status if "/pods" in path else None
    assert scheduler.state(asked(f"{NS}/llm-0")).answer is BillingAnswer.UNKNOWN


@pytest.mark.parametrize(
    ("status", "answer", "retryable"),
    [
        (403, StopAnswer.REFUSED, True),
        (409, StopAnswer.REFUSED, True),
        (422, StopAnswer.REFUSED, False),
        (429, StopAnswer.REFUSED, True),
        (500, StopAnswer.UNKNOWN, True),  # It may have been stored.
        (503, StopAnswer.REFUSED, True),
        (504, StopAnswer.UNKNOWN, True),
    ],
)
def test_what_a_status_of_the_stop_means(
    rig: KubeRig, fake: FakeApi, status: int, answer: StopAnswer, retryable: bool
) -> None:
    rig.job()
    fake.interferes = lambda method, _: status if method == "PATCH" else None
    reply = rig.scheduler().stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    assert (reply.answer, reply.retryable, reply.reason) == (answer, retryable, f"http_{status}")


def test_a_lost_reply_is_unknown_and_the_state_tells(rig: KubeRig, fake: FakeApi) -> None:
    rig.job()
    patch = fake.cluster.patch

    def done_but_broken(method: str, _: str) -> bytes | None:
        if method != "PATCH":
            return None
        patch(("batch", "jobs", NS, "llm"), {"spec": {"suspend": True}})
        return b'{"kind": "Jo'

    fake.interferes = done_but_broken
    scheduler = rig.scheduler()
    assert scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0).answer is StopAnswer.UNKNOWN
    fake.interferes = lambda *_: None
    rig.cluster.kubelets_end_pods()
    assert is_ended(scheduler.state(asked(f"{NS}/llm-0")))


def test_a_server_that_is_gone_was_certainly_not_asked(rig: KubeRig) -> None:
    with fake_api_server() as other:
        url = other.url
    reply = rig.scheduler(endpoint=url).stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    assert (reply.answer, reply.retryable, reply.reason) == (StopAnswer.REFUSED, True, "connect_failed")


def test_a_reply_without_end_is_cut_off(rig: KubeRig, fake: FakeApi) -> None:
    fake.interferes = lambda *_: b" " * (BODY_BYTES_MAX + 1)
    assert rig.scheduler().state(asked(f"{NS}/llm-0")).provider_state == "too_large"


@pytest.mark.parametrize(
    "job",
    ["", "llm-0", "ml/", "/llm-0", "ml/../llm", "ml/LLM", "ml/a/b/c", "ml/a b", "ml/llm-0?x=1", "ml/llm%2f0", "ml/x\n",
     "ml/" + "a" * 300, "ml/Job/llm", "ml/Secret.v1/llm", "ml/a..b", "\N{FULLWIDTH LATIN SMALL LETTER M}l/llm"],
)  # fmt: skip
def test_a_name_that_is_none_asks_nothing(rig: KubeRig, fake: FakeApi, job: str) -> None:
    scheduler = rig.scheduler()
    reply = scheduler.stop(asked(job), INCIDENT, 0)
    assert (reply.answer, reply.retryable) == (StopAnswer.REFUSED, False)
    assert scheduler.state(asked(job)).answer is BillingAnswer.UNKNOWN
    (line,) = scheduler.problems(asked(job))
    assert line.isprintable()
    assert fake.asked == []
    assert scheduler.drain(f"{job}/", INCIDENT).answer is StopAnswer.REFUSED


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../../secrets/x"}, {"name": "x?watch=1"}, {"name": 7}, {"apiVersion": "batch/v1/namespaces/x"},
        {"apiVersion": "batch/../v1"}, {"uid": None}, {"uid": ["x"]}, {"kind": "Secret", "apiVersion": "v1"},
        {"kind": "\x1b[2J", "apiVersion": "\x1b/v1"}, {"kind": None}, {"kind": "Job" * 1000},
    ],
)  # fmt: skip
def test_a_reference_steers_no_request_elsewhere(rig: KubeRig, fake: FakeApi, wrong: Any) -> None:
    rig.job()
    rig.item("", "pods", "llm-0")["metadata"]["ownerReferences"][0].update(wrong)
    scheduler = rig.scheduler()
    assert scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0).answer is StopAnswer.REFUSED
    assert all(line.isprintable() and len(line) < 400 for line in scheduler.problems(asked(f"{NS}/llm-0")))
    assert {path for _, path, _ in fake.asked} <= {f"/api/v1/namespaces/{NS}/pods/llm-0"}


def test_owners_in_a_circle_end(rig: KubeRig) -> None:
    first = rig.make("batch", "jobs", "a")
    second = rig.make("batch", "jobs", "b", first)
    first["metadata"]["ownerReferences"] = [
        {**second["metadata"], "kind": "Job", "apiVersion": "batch/v1", "controller": True}
    ]
    rig.pod("p", second)
    assert rig.scheduler().state(asked(f"{NS}/p")).provider_state == "owners_in_a_circle"


# --- who is believed, and what is shown -------------------------------------------------------------------------


def test_the_token_is_read_for_each_request(rig: KubeRig, fake: FakeApi) -> None:
    rig.job()
    scheduler = rig.scheduler()
    assert scheduler.state(asked(f"{NS}/llm-0")).answer is BillingAnswer.RUNNING
    fake.rights = {"renewed": None}
    assert scheduler.state(asked(f"{NS}/llm-0")).provider_state == "http_401"
    rig.token_file.write_text("renewed")
    assert scheduler.state(asked(f"{NS}/llm-0")).answer is BillingAnswer.RUNNING


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "\N{SNOWMAN}", "x\r\nHost: y", "x" * 20_000])
def test_a_token_that_is_none_is_not_sent(rig: KubeRig, fake: FakeApi, text: str) -> None:
    rig.token_file.write_text(text)
    reply = rig.scheduler().stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    assert (reply.reason, fake.tokens) == ("token_malformed", [])


def test_a_token_file_that_is_none(rig: KubeRig, tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent", "token_not_found"), (tmp_path, "token_not_readable")):
        assert rig.scheduler(token_file=str(path)).state(asked(f"{NS}/llm-0")).provider_state == reason


def test_the_token_is_nowhere_to_be_seen(rig: KubeRig, fake: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rig.job()
    scheduler = rig.scheduler()
    shown = [repr(scheduler), repr(vars(scheduler)), str(scheduler.problems(asked(f"{NS}/llm-0")))]
    fake.interferes = lambda method, _: 403 if method == "PATCH" else None
    shown += [
        repr(scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0)),
        repr(scheduler.state(asked(f"{NS}/llm-0"))),
        caplog.text,
    ]
    assert ADMIN in fake.tokens
    assert ADMIN not in "".join(shown)
    assert ADMIN not in json.dumps(fake.asked)


def test_a_server_is_believed_by_the_clusters_own_certificate_alone(tls_ca: Path, tmp_path: Path) -> None:
    with fake_api_server(tls_context(tls_ca)) as fake:
        rig = KubeRig(fake, tmp_path)
        rig.job()
        assert rig.scheduler(ca_file=str(tls_ca)).state(asked(f"{NS}/llm-0")).answer is BillingAnswer.RUNNING
        assert ADMIN in fake.tokens
        fake.tokens.clear()
        absent = rig.scheduler(ca_file=str(tmp_path / "absent")).state(asked(f"{NS}/llm-0"))
        assert absent.provider_state == "ca_not_readable"
        (tmp_path / "empty.pem").write_text("")
        assert (
            rig.scheduler(ca_file=str(tmp_path / "empty.pem")).state(asked(f"{NS}/x")).answer is BillingAnswer.UNKNOWN
        )
        assert fake.tokens == []


def built(environ: dict[str, str], **given: object) -> kubernetes.KubernetesScheduler:
    config = checked("scheduler.kubernetes", kubernetes.KEYS, given)
    made = kubernetes.build(config, Surroundings(environ=environ))
    assert isinstance(made, kubernetes.KubernetesScheduler)
    return made


def test_a_pod_finds_its_server_by_its_environment() -> None:
    found = {
        host: repr(built({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"})._api)
        for host in ("10.0.0.1", "fd00::1", "kubernetes.default.svc")
    }
    assert found == {
        "10.0.0.1": "KubeApi(https://10.0.0.1:6443)",
        "fd00::1": "KubeApi(https://[fd00::1]:6443)",
        "kubernetes.default.svc": "KubeApi(https://kubernetes.default.svc:6443)",
    }


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({}, {}),
        ({"KUBERNETES_SERVICE_HOST": "evil/path"}, {}),
        ({"KUBERNETES_SERVICE_HOST": "user@host"}, {}),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "1/x"}, {}),
        ({}, {"endpoint": "http://10.0.0.1:8080"}),
        ({}, {"endpoint": "file:///etc/passwd"}),
    ],
)
def test_no_other_place_gets_the_token(environ: dict[str, str], given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        built(environ, **given)
