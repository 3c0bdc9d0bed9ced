"""What is wrong with a bill, a price or a ceiling is one line that names it, with its exit code, and loses nothing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from tests.drills.cli.installed import Costgov
from tests.unit.cost.ledger_file import a_month, write_ledger

HEAD = (
    "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ResourceId,ServiceCategory,"
    "PricingQuantity,PricingUnit\n"
)
ROW = "55.04,USD,Usage,2026-11-02T10:00:00Z,2026-11-02T11:00:00Z,i-0aaa,Compute,1,Hours\n"
CUR_HEAD = (
    "lineItem/LineItemType,lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/UnblendedCost,lineItem/ResourceId\n"
)
CUR_ROW = "Usage,2026-11-02T10:00:00Z,2026-11-02T11:00:00Z,55.04,i-0aaa\n"

BILLS: dict[str, tuple[bytes, str]] = {
    "other_columns": (b"Date,Amount\n2026-11-02,5\n", ":1: neither a FOCUS nor a CUR bill: say by --map"),
    "some_columns": (b"BilledCost,BillingCurrency\n1,USD\n", ":1: no bill in the form FOCUS: it lacks ChargeCategory,"),
    "twice_a_column": (f"{HEAD.strip()},BilledCost\n".encode(), ":1: BilledCost: this column stands there twice"),
    "negative_quantity": ((HEAD + ROW.replace(",1,", ",-1,")).encode(), ":2: PricingQuantity: -1 is negative"),
    "negative_cost": ((HEAD + "-" + ROW).encode(), ":2: BilledCost: -55.04 is negative"),
    "other_currency": ((HEAD + ROW.replace("USD", "EUR")).encode(), ':2: BillingCurrency: "EUR": the ledger is in USD'),
    "twice_a_cur_row": ((CUR_HEAD + CUR_ROW + CUR_ROW).encode(), ":3: row: this row is there twice"),
    "no_number": ((HEAD + ROW.replace("55.04", "nan")).encode(), ':2: BilledCost: "nan" is no number'),
    "absurd": ((HEAD + ROW.replace("55.04", "1e99")).encode(), ":2: BilledCost: 1e99 is more than any bill has"),
    "no_date": ((HEAD + ROW.replace("2026-11-02T11", "2026-13-02T11")).encode(), ":2: ChargePeriodEnd: "),
    "ragged": ((HEAD + ROW.strip() + ",more\n").encode(), ":2: 10 cells under 9 columns"),
    "torn": ((HEAD + ROW + ROW[:30]).encode(), ":3: 4 cells under 9 columns"),
    "empty": (b"", ": the file is empty"),
    "head_only": (HEAD.encode(), ": a header and no row"),
    "binary": (bytes(range(256)) * 64, ":1: not UTF-8 (byte 0x80, in this row or soon after)"),
    "long_cell": ((HEAD + "5" * 1_000_000).encode(), ":2: field larger than field limit (131072)"),
    "torn_gzip": (gzip.compress((HEAD + ROW).encode())[:40], ": cannot be read: Compressed file ended before"),
}


@pytest.mark.parametrize("name", BILLS)
def test_a_bill(costgov: Costgov, environ: dict[str, str], tmp_path: Path, name: str) -> None:
    content, said = BILLS[name]
    bill = tmp_path / "bill.csv"
    bill.write_bytes(content)
    journal = Path(environ["COSTGOV_PATHS__STATE_DIR"]) / "costgov.db"
    journal.parent.mkdir()
    write_ledger(journal, a_month())
    before = journal.read_bytes()
    told = costgov("cost", "reconcile", str(bill))
    assert (told.returncode, told.stdout) == (ExitCode.FAILED, "")
    assert told.stderr.startswith(f"costgov: {bill}{said}")
    assert told.stderr.count("\n") == 1
    assert (journal.read_bytes(), bill.read_bytes()) == (before, content)


PRICES = {
    "0": '"0" must be above 0',
    "-1": '"-1" is not an amount in dollars',
    "12,50": '"12,50" is not an amount in dollars; write 12.50 with a point',
    "22/h": '"22/h" is not an amount in dollars; leave the unit out',
    "22 USD/h": '"22 USD/h" is not an amount in dollars; leave the unit out',
    "nan": '"nan" is not an amount in dollars',
    "inf": '"inf" is not an amount in dollars',
    "0.0000001": '"0.0000001" is less than a millionth of a dollar',
    "1e9": '"1e9" is more than $1,000,000.00 an hour, which no machine costs',
}


@pytest.mark.parametrize("price", PRICES)
def test_a_price_on_the_command_line(costgov: Costgov, tmp_path: Path, price: str) -> None:
    told = costgov("run", f"--price={price}", "--", "touch", str(tmp_path / "ran"))
    assert told.returncode == ExitCode.USAGE
    assert told.stderr.startswith(f"costgov run: Invalid value for '--price': {PRICES[price]}")
    assert told.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()


CONFIGS = {
    "price_usd_per_hour = 0": "node.price_usd_per_hour: must be greater than 0",
    "price_usd_per_hour = -3": "node.price_usd_per_hour: -3 is not an amount in dollars; write it without a sign",
    "price_usd_per_hour = nan": "node.price_usd_per_hour: must be a finite number",
    "price_usd_per_hour = 1e9": "node.price_usd_per_hour: must be less than 1000000",
    'price_usd_per_hour = "much"': 'node.price_usd_per_hour: "much" is not an amount in dollars',
    'price_usd_per_hour = "22,5"': 'node.price_usd_per_hour: "22,5" is not an amount in dollars; write 12.50 with',
    "price_usd_per_hour = true": "node.price_usd_per_hour: true is no amount in dollars; write for example 22.50",
    'price_usd_per_hour = 22\nprice_as_of = "lately"': 'node.price_as_of: "lately" is not a date',
}


@pytest.mark.parametrize("line", CONFIGS)
def test_a_price_in_the_configuration(costgov: Costgov, tmp_path: Path, line: str) -> None:
    config = tmp_path / "costgov.toml"
    config.write_text(f"[node]\n{line}\n")
    place = f"costgov: {config}:{2 + line.count(chr(10))}: "
    for words in (["run", "--", "touch", str(tmp_path / "ran")], ["daemon"], ["prices"]):
        told = costgov(*words[:1], "--config", str(config), *words[1:])
        assert told.returncode == ExitCode.FAILED, words
        assert told.stderr.startswith(place + CONFIGS[line]), words
        assert told.stderr.count("\n") == 1, words
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("as_of", "said"),
    [
        ("2020-01-01", "the price of $22.00/h (costgov.toml, 2020-01-01) is "),
        ("2999-01-01", "the price of $22.00/h (costgov.toml, 2999-01-01) is of a day that has not come"),
    ],
)
def test_an_old_price_counts_and_is_said_to_be_old(costgov: Costgov, tmp_path: Path, as_of: str, said: str) -> None:
    """Unknown would be worse: what is charged by it can be put right, what is not charged cannot."""
    config = tmp_path / "costgov.toml"
    config.write_text(f'[node]\nprice_usd_per_hour = 22\nprice_as_of = "{as_of}"\n')
    told = costgov("prices", "--config", str(config))
    assert told.returncode == 0
    assert told.stdout.splitlines()[1].strip().startswith(f"! {said}")


TIGHT = (
    '[policy]\nname = "tight"\n[budget]\nceiling_usd = 0.1\n[[rule]]\nname = "budget"\ntrigger = "budget"\n'
    'response = "halt"\n'
)


def test_a_ceiling_that_cannot_hold_is_refused_with_the_numbers(costgov: Costgov, tmp_path: Path) -> None:
    """Below the price of the halt itself: by policy check, at the start of either governor, on the command line."""
    config, policy, ran = tmp_path / "costgov.toml", tmp_path / "tight.toml", tmp_path / "ran"
    config.write_text("[node]\nprice_usd_per_hour = 98\n[metrics]\nenabled = false\n")
    policy.write_text(TIGHT)
    wanted = "the ceiling $0.1000 is below $0.1089, which a halt itself may cost here"
    on = ["--config", str(config)]
    for words in (
        ["policy", "check", *on, str(policy)],
        ["daemon", *on, "--policy", str(policy)],
        ["run", *on, "--policy", str(policy), "--", "touch", str(ran)],
        ["run", *on, "--ceiling", "0.1", "--", "touch", str(ran)],
    ):
        told = costgov(*words)
        assert told.returncode == ExitCode.FAILED, words
        assert wanted in told.stderr.splitlines()[0], words
    assert not ran.exists()
    assert costgov("policy", "check", str(policy)).returncode == 0, "without a price nobody can tell"
