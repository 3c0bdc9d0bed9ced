"""What the core is told of the machine: where it is, since when it is billed, and for what."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from governor.app.node_facts import CannotStart, NoRoom, needs_room, node_facts
from governor.app.settings_file import load_settings
from governor.core.base.policy import PolicySet
from governor.core.base.units import BootNs, DurationNs, UsdMicros, WallNs
from governor.core.engine.node import new_node
from governor.core.money.charges import Part, Payer, Place
from governor.core.money.prices import Day, Origin, PriceKind, Quote, choose
from governor.remote_ports import Preflight
from governor.settings.money import lines_of

CONFIG = """
[node]
name = "gpu-17"
[[line]]
kind = "fixed"
name = "support"
price_usd_per_hour = 1.5
"""


def test_charges_know_the_region_and_the_core_the_launch_and_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "costgov.toml"
    path.write_text(CONFIG)
    settings, problems = load_settings(path, environ={"HOME": "/nonexistent"})
    assert problems == []
    assert settings is not None
    since = WallNs(7)
    quote = Quote(UsdMicros(22_000_000), "spot", "2026-11", PriceKind.SPOT, "", Origin.MACHINE, since=since)
    told = Preflight(True, "i-1", "stop it", (), (), launched_at_wall=WallNs(5), region="eu-west-1")
    lines = lines_of(settings.line, Day(20_000))
    chosen = choose([quote], None, None, Day(20_000))
    facts = node_facts(settings, None, told, None, chosen, "boot-1", lines, exclusive=False)
    assert (facts.launched_at_wall, facts.price_since_wall, facts.usd_micros_per_hour) == (5, 7, 23_500_000)
    node = new_node(facts, PolicySet((), "digest"), BootNs(0), WallNs(0))
    node.ledger.book.add(lines.hourly[0].line, WallNs(0), DurationNs(1), [Part(Payer("run"), 1, 1)])
    [charge] = node.ledger.book.open_charges()
    assert charge.place == Place("gpu-17", "none", "i-1", "eu-west-1")


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (RuntimeError("can't start new thread"), True),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), True),
        (RuntimeError("dictionary changed size during iteration"), False),
    ],
)
def test_a_machine_without_a_free_thread_or_process_is_told_of_as_that(error: Exception, is_told: bool) -> None:
    """It read as a fault of costgov's own."""
    with pytest.raises(NoRoom if is_told else type(error)) as raised, needs_room():
        raise error
    assert ("ulimit -u" in str(raised.value)) == is_told
    assert issubclass(NoRoom, CannotStart)
