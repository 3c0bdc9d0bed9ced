"""From costgov.toml and the providers' answers to the price that the ledger charges."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from governor.adapters.plugins import ConfigError
from governor.app import pricing
from governor.app.settings_file import Settings, load_settings
from governor.core.base.policy import PolicySet
from governor.core.base.units import NS_PER_DAY, BootNs, UsdMicros, WallNs
from governor.core.engine.node import NodeFacts, new_node
from governor.core.engine.node_journal import node_snapshot
from governor.core.money.prices import Chosen, Day, Origin, PriceAnswer, PriceKind, RemarkKind, span_of
from governor.remote_ports import Preflight
from governor.wire.price_table import built_in
from tests.contract.prices import rigs
from tests.contract.prices.rigs import Loopback, Rig, spot_history, spot_item

TODAY = Day(span_of("2026-11-21")[0])
# A look-up dates its answer by the real clock. Judged a day later it is from no future, also across midnight.
TOMORROW = Day(time.time_ns() // NS_PER_DAY + 1)
AWS = (
    '[cloud]\nprovider = "aws"\n[cloud.aws]\ncredentials = "environment"\nendpoint = "{0}"\nmetadata_endpoint = "{0}"\n'
)


def settings(directory: Path, text: str) -> Settings:
    path = directory / "costgov.toml"
    path.write_text(text)
    path.chmod(0o600)
    found, problems = load_settings(path, environ={"HOME": "/nonexistent"})
    assert problems == []
    assert found is not None
    return found


def choice(
    directory: Path, text: str, given: float | None = None, preflight: Preflight | None = None, today: Day = TODAY
) -> Chosen:
    read = settings(directory, text)
    micros = UsdMicros(round(given * 1e6)) if given is not None else None
    return pricing.price_of(read, preflight, micros, today, pricing.ask(pricing.load_source(read)))


def kinds(chosen: Chosen) -> list[RemarkKind]:
    return [remark.kind for remark in chosen.remarks]


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", rigs.SECRET)


@pytest.fixture
def on_demand(server: Loopback, aws_environment: None) -> Loopback:
    rigs.aws(server)
    server.answers["/latest/meta-data/instance-life-cycle"] = lambda _: (200, b"on-demand")
    return server


def test_nobody_is_asked_and_nothing_is_known_without_a_word(tmp_path: Path) -> None:
    chosen = choice(tmp_path, "")
    assert (chosen.quote, kinds(chosen)) == (None, [RemarkKind.UNKNOWN])


def test_what_is_stated_is_of_today_unless_it_has_a_date(tmp_path: Path) -> None:
    chosen = choice(tmp_path, "[node]\nprice_usd_per_hour = 22.0\n")
    assert (chosen.text, chosen.remarks) == ("$22.00/h on-demand (costgov.toml, as of 2026-11-21)", ())
    dated = '[node]\nprice_usd_per_hour = 22.0\nprice_source = "contract"\n'
    dated += 'price_as_of = "2026-03"\nprice_kind = "reserved"\n'
    chosen = choice(tmp_path, dated)
    assert chosen.text == "$22.00/h reserved (contract, as of 2026-03, 265 days ago)"
    assert kinds(chosen) == [RemarkKind.STALE]
    assert choice(tmp_path, f"{dated}[price]\nstale_after_days = 365\n").remarks == ()


def test_the_command_line_is_the_users_last_word(tmp_path: Path) -> None:
    chosen = choice(tmp_path, "[node]\nprice_usd_per_hour = 22.0\n", given=25.0)
    assert (chosen.usd_micros_per_hour, chosen.quote and chosen.quote.source) == (25_000_000, "command line")


def test_on_demand_at_aws_is_the_users_price_else_the_tables_for_the_type(tmp_path: Path, on_demand: Loopback) -> None:
    text = AWS.format(on_demand.url)
    chosen = choice(tmp_path, text)
    assert chosen.quote is not None
    assert (chosen.usd_micros_per_hour, chosen.quote.origin) == (55_040_000, Origin.TABLE)
    assert (chosen.quote.as_of, chosen.remarks) == ("2026-11-09", ())
    chosen = choice(tmp_path, f"{text}[node]\nprice_usd_per_hour = 40.0\n")
    assert (chosen.usd_micros_per_hour, kinds(chosen)) == (40_000_000, [RemarkKind.LISTED])


def test_the_tables_price_is_alarmed_once_it_is_old(tmp_path: Path, on_demand: Loopback) -> None:
    chosen = choice(tmp_path, AWS.format(on_demand.url), today=Day(built_in().compiled + 400))
    assert (chosen.usd_micros_per_hour, kinds(chosen)) == (55_040_000, [RemarkKind.STALE])


def test_spot_at_aws_is_what_the_history_says_over_the_users_price(
    tmp_path: Path, server: Loopback, aws_environment: None
) -> None:
    rigs.aws(server).costs(17.5)
    chosen = choice(tmp_path, f"{AWS.format(server.url)}[node]\nprice_usd_per_hour = 55.04\n", today=TOMORROW)
    assert chosen.quote is not None
    assert (chosen.usd_micros_per_hour, chosen.quote.kind) == (17_500_000, PriceKind.SPOT)
    assert kinds(chosen)[0] is RemarkKind.CONTRADICTION
    assert "$17.50/h" in chosen.remarks[0].text
    assert "$55.04/h" in chosen.remarks[0].text


def test_spot_without_an_answer_is_unknown_and_never_the_on_demand_price(
    tmp_path: Path, server: Loopback, aws_environment: None
) -> None:
    rigs.aws(server).says(200, spot_history(spot_item(17.5, zone="us-east-1f")))
    chosen = choice(tmp_path, f'{AWS.format(server.url)}[price]\ninstance = "trn1.32xlarge"\n')
    assert (chosen.quote, kinds(chosen)) == (
        None,
        [RemarkKind.UNANSWERED, RemarkKind.UNLISTED, RemarkKind.UNKNOWN],
    )
    chosen = choice(tmp_path, AWS.format(server.url))  # The table has its spot price.
    assert (chosen.usd_micros_per_hour, kinds(chosen)) == (25_752_200, [RemarkKind.UNANSWERED, RemarkKind.STALE])


def test_a_provider_that_does_not_answer_leaves_the_users_price_and_an_alarm(
    tmp_path: Path, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs.runpod(server)
    rig.says(500)
    for name, value in rig.environ.items():
        monkeypatch.setenv(name, value)
    text = f'[price]\nsource = "runpod"\n[price.runpod]\nendpoint = "{server.url}"\n'
    chosen = choice(tmp_path, f"[node]\nprice_usd_per_hour = 2.69\n{text}")
    assert (chosen.usd_micros_per_hour, kinds(chosen)) == (2_690_000, [RemarkKind.UNANSWERED])
    assert "runpod does not say what this machine costs" in chosen.alarms[0].line
    rig.costs(2.99)
    chosen = choice(tmp_path, f"[node]\nprice_usd_per_hour = 2.69\n{text}", today=TOMORROW)
    assert (chosen.usd_micros_per_hour, kinds(chosen)) == (
        2_990_000,
        [RemarkKind.CONTRADICTION, RemarkKind.LISTED],
    )


def test_a_list_price_does_not_overrule_the_user(tmp_path: Path, server: Loopback) -> None:
    rigs.azure(server).costs(98.32)
    text = f'[price]\nsource = "azure"\n[price.azure]\nendpoint = "{server.url}"\nmetadata_endpoint = "{server.url}"\n'
    chosen = choice(tmp_path, text)
    assert chosen.quote is not None
    assert (chosen.usd_micros_per_hour, chosen.quote.origin) == (98_320_000, Origin.LIST)
    chosen = choice(tmp_path, f"{text}[node]\nprice_usd_per_hour = 70.0\n")
    assert (chosen.usd_micros_per_hour, set(kinds(chosen))) == (70_000_000, {RemarkKind.LISTED})


def test_where_no_look_up_exists_the_user_names_the_row(tmp_path: Path) -> None:
    chosen = choice(tmp_path, '[price]\nprovider = "GCP"\ninstance = "a3-ultragpu-8g"\nkind = "on-demand"\n')
    assert (chosen.usd_micros_per_hour, chosen.remarks) == (83_492_000, ())
    chosen = choice(tmp_path, '[price]\nprovider = "GCP"\ninstance = "a3-highgpu-2g"\nkind = "on-demand"\n')
    assert (chosen.usd_micros_per_hour, kinds(chosen)) == (22_122_500, [RemarkKind.STALE])
    chosen = choice(tmp_path, '[price]\nprovider = "CoreWeave"\ngpu = "NVIDIA H200"\ngpus = 8\n')
    assert (chosen.usd_micros_per_hour, kinds(chosen)) == (50_440_000, [RemarkKind.ASSUMED])
    chosen = choice(tmp_path, '[price]\nprovider = "GCP"\ninstance = "e2-micro"\n')
    assert (chosen.quote, kinds(chosen)) == (None, [RemarkKind.UNLISTED, RemarkKind.UNKNOWN])


def test_the_users_word_on_the_machine_counts_over_the_providers(tmp_path: Path, on_demand: Loopback) -> None:
    chosen = choice(tmp_path, f'{AWS.format(on_demand.url)}[price]\ninstance = "p4d.24xlarge"\n')
    assert chosen.usd_micros_per_hour == 21_957_642
    chosen = choice(tmp_path, f'{AWS.format(on_demand.url)}[price]\nkind = "reserved"\n')
    assert (chosen.quote, kinds(chosen)) == (None, [RemarkKind.UNLISTED, RemarkKind.UNKNOWN])


def test_source_none_asks_nobody(tmp_path: Path, on_demand: Loopback) -> None:
    chosen = choice(tmp_path, f'{AWS.format(on_demand.url)}[price]\nsource = "none"\n')
    assert (chosen.quote, on_demand.asked) == (None, [])


def test_a_price_in_the_preflight_is_the_machines(tmp_path: Path) -> None:
    preflight = Preflight(True, "i-1", "stop", (), (), UsdMicros(3_000_000), "the cloud")
    chosen = choice(tmp_path, "[node]\nprice_usd_per_hour = 2.0\n", preflight=preflight)
    assert chosen.quote is not None
    assert (chosen.usd_micros_per_hour, chosen.quote.source) == (3_000_000, "the cloud")
    assert kinds(chosen) == [RemarkKind.CONTRADICTION]


def test_a_wrong_key_of_a_look_up_is_an_error_and_not_a_missing_price(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"price\.vast\.timeout_s must be"):
        choice(tmp_path, '[price]\nsource = "vast"\n[price.vast]\ntimeout_s = -1\n')


def test_a_halt_under_way_does_not_wait_for_a_price(tmp_path: Path, on_demand: Loopback) -> None:
    on_demand.answers["/latest/dynamic/instance-identity/document"] = lambda _: (rigs.HANG, b"")
    read = settings(tmp_path, AWS.format(on_demand.url))
    answer = pricing.ask(pricing.load_source(read), 0.2)  # The look-up itself has two seconds for its metadata.
    chosen = pricing.price_of(read, None, None, TODAY, answer)
    assert kinds(chosen) == [RemarkKind.UNANSWERED, RemarkKind.UNKNOWN]
    assert "within 0.2 s" in chosen.remarks[0].line
    assert "\n" not in chosen.remarks[0].line


def test_patience_costs_an_answer_nothing(tmp_path: Path, on_demand: Loopback) -> None:
    read = settings(tmp_path, AWS.format(on_demand.url))
    assert pricing.ask(pricing.load_source(read), 30.0) == pricing.ask(pricing.load_source(read))
    assert pricing.ask(None, 30.0) is None


def test_no_secret_is_in_the_document(tmp_path: Path, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text(rigs.SECRET)
    key.chmod(0o600)
    rigs.runpod(server).says(401, rigs.SECRET.encode())
    text = f'[price]\nsource = "runpod"\n[price.runpod]\nendpoint = "{server.url}"\napi_key_file = "{key}"\n'
    monkeypatch.setenv("RUNPOD_POD_ID", "pod1")
    read = settings(tmp_path, text)
    answer = pricing.ask(pricing.load_source(read))
    chosen = pricing.price_of(read, None, None, TODAY, answer)
    assert rigs.SECRET not in f"{json.dumps(chosen.document())}{read!r}{answer!r}"
    assert "http_401" in chosen.remarks[0].line


# --- at a start that the provider does not answer -------------------------------------------------------------


def journaled(price: int, boot_id: str = "boot-1", kind: str = "") -> dict[str, object]:
    facts = NodeFacts("node-a", boot_id, UsdMicros(price), "EC2 spot price history", "2026-11-20", price_kind=kind)
    return dict(node_snapshot(new_node(facts, PolicySet((), "digest"), BootNs(0), WallNs(0))))


def restarted(directory: Path, rig: Rig | None, journal: dict[str, object] | None, node: str = "") -> Chosen:
    read = settings(directory, f'[price]\nsource = "{rig.name if rig is not None else "none"}"\n{node}')
    answer = pricing.ask(rig.source() if rig is not None else None)
    left = pricing.price_left(read, answer, journal, "boot-1")
    return pricing.price_of(read, None, None, TOMORROW, answer, left)


@pytest.mark.parametrize(
    ("journal", "said", "kind"),
    [
        ("spot", "", PriceKind.SPOT), ("reserved", "", PriceKind.RESERVED),
        ("", "", PriceKind.ON_DEMAND), ("auction", "", PriceKind.ON_DEMAND),
        ("spot", 'kind = "reserved"\n', PriceKind.RESERVED),
    ],
    ids=["spot", "reserved", "an older journal", "a newer one", "the user says another"],
)  # fmt: skip
def test_the_price_of_before_keeps_its_kind(journal: str, said: str, kind: PriceKind, tmp_path: Path) -> None:
    read = settings(tmp_path, f'[price]\nsource = "runpod"\n{said}')
    failed = PriceAnswer(problem="http_500")
    left = pricing.price_left(read, failed, journaled(20_000_000, kind=journal), "boot-1")
    assert left is not None
    assert (left.usd_micros_per_hour, left.kind) == (20_000_000, kind)
    chosen = pricing.price_of(read, None, None, TOMORROW, failed, left)
    assert chosen.quote is not None
    assert chosen.quote.kind is kind


def test_a_restart_that_the_provider_does_not_answer_goes_on_at_the_price_of_before(
    tmp_path: Path, server: Loopback
) -> None:
    rig = rigs.runpod(server)
    rig.says(500)
    chosen = restarted(tmp_path, rig, journaled(17_500_000))
    assert chosen.usd_micros_per_hour == 17_500_000
    assert kinds(chosen) == [RemarkKind.UNANSWERED], "said, and no other alarm"
    assert "EC2 spot price history, as of 2026-11-20" in chosen.text
    assert "as it was charged before this start" in chosen.text
    endless = {"usd_micros_per_hour": float("inf"), "source": "", "as_of": "2026-11-20"}  # JSON has 1e999 for that.
    rows = [{**journaled(1), "price": price} for price in ({}, endless)]
    for torn in (None, {}, *rows, journaled(17_500_000, "boot-0")):
        assert kinds(restarted(tmp_path, rig, torn)) == [RemarkKind.UNANSWERED, RemarkKind.UNKNOWN]
    stated = restarted(tmp_path, rig, journaled(17_500_000), "[node]\nprice_usd_per_hour = 3.0\n")
    assert (stated.usd_micros_per_hour, kinds(stated)) == (3_000_000, [RemarkKind.UNANSWERED])
    rig.costs(2.99)
    assert restarted(tmp_path, rig, journaled(17_500_000)).usd_micros_per_hour == 2_990_000
    assert restarted(tmp_path, None, journaled(17_500_000)).quote is None, "nobody was asked: what was removed is gone"
