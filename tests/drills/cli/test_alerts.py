"""`costgov alert test`, and what the doctor says of receivers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from tests.contract.alerts.rigs import PATH_SECRET, SECRET, Answer, Told, receiver_server
from tests.drills.cli.installed import Costgov


@pytest.fixture
def pager() -> Iterator[Told]:
    with receiver_server() as told:
        yield told


@pytest.fixture
def config(pager: Told, tmp_path: Path) -> str:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    path = tmp_path / "c.toml"
    path.write_text(
        f'[node]\nname = "gpu-17"\nprice_usd_per_hour = 22.0\n[metrics]\nport = 0\n'
        f'[[alert]]\nkind = "webhook"\nname = "pager"\nurl = "{pager.url}/{PATH_SECRET}"\nsecret_file = "{secret}"\n'
        f'min_severity = "critical"\nonly = ["needs_human"]\n'
        f'[[alert]]\nkind = "alertmanager"\nname = "am"\nurl = "{pager.url}"\n'
    )
    path.chmod(0o600)
    return str(path)


def test_every_receiver_is_sent_one_and_says_what_it_answered(costgov: Costgov, config: str, pager: Told) -> None:
    told = costgov("alert", "test", "--config", config)
    assert (told.returncode, told.stderr) == (0, "")
    first, second = told.stdout.splitlines()
    assert first.startswith(f"pager  webhook at {pager.url}: taken (http_200, ")
    assert second.startswith(f"am  alertmanager at {pager.url}: taken (http_200, ")
    assert [asked.path for asked in pager.asked] == [f"/{PATH_SECRET}", "/api/v2/alerts"]
    document = json.loads(pager.asked[0].body)
    assert (document["type"], document["name"], document["severity"]) == ("costgov.test", "test", "info")
    assert document["node"] == "gpu-17"


def test_a_receiver_that_does_not_take_it_is_named_and_the_others_are_told_all_the_same(
    costgov: Costgov, config: str, pager: Told
) -> None:
    pager.then(Answer(401))
    told = costgov("alert", "test", "--config", config, "--json")
    assert told.returncode == ExitCode.FAILED
    assert told.stderr == "costgov: not taken by: pager\n"
    answers = json.loads(told.stdout)["receivers"]
    assert [(one["name"], one["taken"], one["reason"]) for one in answers] == [
        ("pager", False, "http_401"),
        ("am", True, "http_200"),
    ]
    assert PATH_SECRET not in told.stdout + told.stderr
    assert SECRET not in told.stdout + told.stderr


def test_one_receiver_by_its_name(costgov: Costgov, config: str, pager: Told) -> None:
    assert costgov("alert", "test", "--config", config, "--name", "am").returncode == 0
    assert [asked.path for asked in pager.asked] == ["/api/v2/alerts"]
    wrong = costgov("alert", "test", "--config", config, "--name", "pagr")
    assert wrong.returncode == ExitCode.USAGE
    assert 'there is no receiver "pagr"; known: pager, am' in wrong.stderr


def test_without_a_receiver_it_says_what_to_add(costgov: Costgov) -> None:
    told = costgov("alert", "test")
    assert told.returncode == ExitCode.FAILED
    assert "add an [[alert]] table to costgov.toml" in told.stderr


def test_the_doctor_looks_and_sends_nothing(costgov: Costgov, config: str, pager: Told, tmp_path: Path) -> None:
    about = [line for line in costgov("doctor", "--config", config).stdout.splitlines() if "  alerts " in line]
    assert [line.split("  ")[0] for line in about] == ["ok", "ok"]
    assert f"pager: webhook at {pager.url}; nothing was sent" in about[0]
    (tmp_path / "secret").write_text("hunter2")
    told = costgov("doctor", "--config", config)
    assert told.returncode == ExitCode.FAILED
    assert "the file of the secret holds none (secret_malformed)" in told.stdout
    assert pager.asked == []
    assert PATH_SECRET not in told.stdout
