"""Providers are found by a scan, and a mistake in their table is one line that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from governor.adapters import clouds
from governor.adapters.plugins import ConfigError
from governor.core.events.inputs import BillingAnswer, StopAnswer


def test_providers_are_found_by_themselves() -> None:
    assert {"aws", "command", "none"} <= set(clouds.names())
    assert list(clouds.names()) == sorted(clouds.names())


@pytest.mark.parametrize("name", clouds.names())
def test_every_provider_documents_every_key(name: str) -> None:
    keys = clouds.provider(name).KEYS
    assert len({key.name for key in keys}) == len(keys)
    assert all(key.meaning.endswith((".", ".)")) for key in keys), "a key's meaning is a sentence"


@pytest.mark.parametrize(
    ("name", "config", "line"),
    [
        ("gcp", {}, f'there is no cloud "gcp"; known: {", ".join(clouds.names())}'),
        ("none", {"region": "x"}, 'cloud.none: unknown key "region"; known: none'),
        ("aws", {"terminate": "yes"}, "cloud.aws.terminate must be true or false"),
        ("aws", {"timeout_s": 0}, "cloud.aws.timeout_s must be a number of seconds, above 0 and at most 86400"),
        ("aws", {"timeout_s": True}, "cloud.aws.timeout_s must be a number of seconds, above 0 and at most 86400"),
        ("aws", {"credentials": "AKIA"}, "cloud.aws.credentials must be one of auto, role, file, environment"),
        ("aws", {"endpoint": "http://ec2.example/"}, "cloud.aws.endpoint must be an https URL, or plain http on a"),
        ("aws", {"endpoint": "file:///etc/passwd"}, "cloud.aws.endpoint must be an https URL"),
        ("aws", {"endpoint": "http://[::1"}, "cloud.aws.endpoint must be an https URL"),
        ("aws", {"endpoint": "https://ec2.example:port"}, "cloud.aws.endpoint must be an https URL"),
        ("aws", {"endpoint": "http://[fd00:ec2::254]"}, "cloud.aws.endpoint must be an https URL"),
        ("aws", {"metadata_endpoint": "http://[fd00::1]"}, "cloud.aws.metadata_endpoint must be an https URL"),
        ("aws", {"metadata_endpoint": "http://10.0.0.1"}, "cloud.aws.metadata_endpoint must be an https URL"),
        ("command", {}, "cloud.command.argv is missing"),
        ("command", {"argv": "stop me"}, "cloud.command.argv must be a list of words"),
        ("command", {"argv": []}, "cloud.command.argv must be a list of words"),
        ("command", {"argv": ["stop", "{node}"]}, "cloud.command.argv: unknown placeholder {node}"),
        ("command", {"argv": ["stop", "{instance}"]}, "cloud.command.argv uses {instance}, but"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(name: str, config: Mapping[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        clouds.load(name, config)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_the_metadata_address_of_both_families_is_accepted() -> None:
    for endpoint in (
        "http://169.254.169.254",
        "http://[fd00:ec2::254]",
        "http://[fe80::1]",
        "http://127.0.0.1:8080",
        "http://[::1]:80",
    ):
        clouds.load("aws", {"metadata_endpoint": endpoint})


def test_no_cloud_promises_nothing() -> None:
    cloud = clouds.load("none", {})
    reply = cloud.stop("run-7-1", 0)
    assert (reply.answer, reply.retryable) == (StopAnswer.REFUSED, False)
    assert cloud.billing().answer is BillingAnswer.UNKNOWN
    assert cloud.preflight().stays_billed == ("this machine: no cloud is configured",)
