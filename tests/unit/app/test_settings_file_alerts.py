"""[[alert]] tables of costgov.toml: one line per mistake, and nothing of a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.adapters import alerts
from governor.adapters.alerting.tables import configured_receivers
from governor.app.settings_file import load_settings
from governor.core.alerts.catalogue import Route, Severity
from governor.settings.streams import ALERT_RECEIVERS_MAX
from tests.unit.app.test_settings_file import HOME, bad, config, good

MANAGER = '[[alert]]\nkind = "alertmanager"\nurl = "http://127.0.0.1:9093"\n'
WEBHOOK = '[[alert]]\nkind = "webhook"\nurl = "https://a.example.org/T0KEN"\nsecret_file = "/etc/costgov/s"\n'

MISTAKES = [
    ("[[alert]]\n", ":1: alert[1].kind: is missing; add it"),
    (
        '[[alert]]\nkind = "webhok"\n',
        f':2: alert[1].kind: there is no kind of alert receiver "webhok"; known: {", ".join(alerts.names())}',
    ),
    ('[[alert]]\nkind = "webhook"\n', ":1: alert[1].url is missing; add it"),
    (
        f'{MANAGER}[[alert]]\nkind = "webhook"\nurl = "https://a.example.org"\n',
        ":4: alert[2].secret_file is missing: receivers must be able to tell our alerts from anybody's; make one with",
    ),
    (
        '[[alert]]\nkind = "alertmanager"\nurl = "http://10.0.0.7:9093"\n',
        ":3: alert[1].url is plain http to another machine, where everybody on the way can read and change it; ",
    ),
    (
        f"{MANAGER}tokenfile = 3\n",
        ':4: alert[1]: unknown key "tokenfile"; known: ca_file, insecure, timeout_s, token_',
    ),
    (f"{MANAGER}token_file = 3\n", ":4: alert[1].token_file must be a non-empty text"),
    (f'{MANAGER}min_severity = "high"\n', ":4: alert[1].min_severity: must be 'info', 'warning' or 'critical'"),
    (f'{MANAGER}only = ["rule *"]\n', ':4: alert[1].only: "rule *" is no name of an alarm'),
    (f'{MANAGER}{MANAGER}name = "am"\n{MANAGER}', ':8: alert[3].name: another receiver is called "127.0.0.1" already'),
    (MANAGER * (ALERT_RECEIVERS_MAX + 1), f":1: alert: must have at most {ALERT_RECEIVERS_MAX} items"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_a_mistake_is_one_line_with_file_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    path = config(tmp_path, text)
    (problem,) = bad(path)
    assert problem.startswith(f"{path}{expected}")


def test_receivers_have_names_and_what_they_want(tmp_path: Path) -> None:
    text = f'{MANAGER}{WEBHOOK}name = "pager"\nonly = ["halt", "rule_*"]\nmin_severity = "warning"\n'
    first, second = configured_receivers(good(config(tmp_path, text)).alert)
    assert (first.name, first.kind, first.route) == ("127.0.0.1", "alertmanager", Route())
    assert (second.name, second.kind) == ("pager", "webhook")
    assert second.route == Route(("halt", "rule_*"), Severity.WARNING)
    assert second.receiver.where == "https://a.example.org"


def test_neither_a_url_nor_a_file_is_in_any_representation(tmp_path: Path) -> None:
    settings = good(config(tmp_path, WEBHOOK))
    assert "T0KEN" not in f"{settings!r}{settings}{settings.alert}{configured_receivers(settings.alert)}"


def test_a_secrets_file_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    secret = tmp_path / "s"
    secret.write_text("whsec_hunter2")
    secret.chmod(0o644)
    path = config(tmp_path, WEBHOOK.replace("/etc/costgov/s", str(secret)))
    settings, warnings = load_settings(path, None, HOME)
    assert settings is not None
    assert warnings == [f"{secret}: named by alert[1].secret_file and others may read it; chmod o-r {secret}"]
    secret.chmod(0o640)
    assert load_settings(path, None, HOME)[1] == []
