"""What `costgov run` refuses before it starts anything."""

from __future__ import annotations

import click
import pytest

from governor.cli.run.command import GateAfter
from governor.cli.run.limits import nothing_to_compare, too_dear
from governor.core.base.policy import Budget, Expected, PersistenceKind, Policy, WarmUp
from governor.core.base.units import UsdMicros, usd
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.lines import Lines, Metered

TEXT = "$98.32/h on-demand (built-in table, as of 2025-06)"


@pytest.mark.parametrize(("price", "refused"), [(59.99, False), (60.0, False), (60.000001, True), (98.32, True)])
def test_a_machine_above_the_highest_rate_is_refused(price: float, refused: bool) -> None:
    assert (too_dear(usd(60), usd(price), TEXT, Lines()) is not None) == refused


def test_the_line_names_the_price_and_where_it_is_from() -> None:
    told = too_dear(usd(60), usd(98.32), TEXT, Lines())
    assert told == f"not launched: --max-rate $60.00/h is below $98.32/h, the price of this machine: {TEXT}"
    told = too_dear(usd(21.999999), usd(22), "$22.00/h (--price)", Lines())
    assert told is not None
    assert told.startswith("not launched: --max-rate $21.999999/h is below $22.00/h, the price")


def test_every_line_by_the_hour_counts_and_is_named() -> None:
    disk = Line(LineKind.STORAGE, "vol-1", Unit.GB_MONTH, UsdMicros(730_000), "costgov.toml", "2026-11-01")
    fee = Line(LineKind.FIXED, "licence", Unit.PIECE, UsdMicros(500_000_000), "costgov.toml", "2026-11-01")
    lines = Lines((Metered(disk, 100_000),), (fee,))
    assert too_dear(usd(122), usd(22), "$22.00/h (--price)", lines) is None
    told = too_dear(usd(60), usd(22), "$22.00/h (--price)", lines)
    assert told == (
        "not launched: --max-rate $60.00/h is below $122.00/h: the machine $22.00/h (--price); "
        "vol-1: $100.00/h (100000 GB at $0.7300/GB-month; costgov.toml, 2026-11-01)"
    )


def test_an_unknown_price_is_refused_and_without_the_option_nothing_is() -> None:
    told = too_dear(usd(60), None, "unknown", Lines())
    assert told is not None
    assert "the price of this machine is unknown: pass --price" in told
    assert too_dear(None, UsdMicros(10**15), TEXT, Lines()) is None
    assert too_dear(None, None, "unknown", Lines()) is None


@pytest.mark.parametrize(
    ("text", "kind", "need"),
    [
        ("20steps", PersistenceKind.STEPS, 20),
        ("1 step", PersistenceKind.STEPS, 1),
        ("1.5K steps", PersistenceKind.STEPS, 1500),
        ("2M", PersistenceKind.TOKENS, 2_000_000),
        (" 2.5B tokens ", PersistenceKind.TOKENS, 2_500_000_000),
        ("51200 tokens", PersistenceKind.TOKENS, 51_200),
    ],
)
def test_a_gate_is_of_steps_or_of_tokens(text: str, kind: PersistenceKind, need: int) -> None:
    assert GateAfter().convert(text, None, None) == WarmUp(kind, need)


@pytest.mark.parametrize(
    "text", ["", "20", "steps", "0steps", "0M", "-5steps", "10m", "20 steps more", "1e9", "nan", "9999999999T"]
)
def test_a_gate_that_is_neither_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no number of steps or tokens; write for example 20steps or 2M"):
        GateAfter().convert(text, None, None)


GATE = WarmUp(PersistenceKind.STEPS, 20)
BARE = Policy("p", budget=Budget(tokens=10**9))


@pytest.mark.parametrize(
    ("policies", "refused"),
    [
        ([BARE], True),
        ([], True),
        ([Policy("p", budget=Budget(usd(300)))], False),
        ([BARE, Policy("p", expected=Expected(usd_micros_per_mtok=1))], False),
        ([BARE, Policy("p", expected=Expected(usd_micros_per_mtok_all_in=1))], False),
        ([Policy("p", expected=Expected(tokens_per_s=1e4))], True),
    ],
)
def test_a_gate_that_has_nothing_to_compare_with_starts_nothing(policies: list[Policy], refused: bool) -> None:
    told = nothing_to_compare(GATE, policies, usd(22))
    assert (told is not None) == refused
    assert told is None or told.startswith(
        "not launched: --gate has no ceiling to compare with: pass --ceiling USD, or"
    )
    assert nothing_to_compare(None, policies, None) is None


def test_a_gate_without_a_price_starts_nothing() -> None:
    told = nothing_to_compare(GATE, [Policy("p", expected=Expected(usd_micros_per_mtok=1))], None)
    assert told is not None
    assert told.startswith("not launched: --gate, and the price of this machine is unknown: pass --price USD_PER_HOUR")
