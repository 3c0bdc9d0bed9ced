"""Time without a price goes with the money: to whom the command's time is handed over, or who takes it back."""

from __future__ import annotations

from governor.core.base.units import NS_PER_S, BootNs, WallNs
from governor.core.engine.node import Node
from governor.core.engine.run_forecast import token_prices
from governor.core.events.inputs import CommandLaunched, LaunchersSeen
from governor.core.events.machine import PriceRead
from tests.unit.core.engine.test_launched_command import COMMAND, PRICE, pass_time
from tests.unit.core.engine.test_metering import WALL
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, rule, tick
from tests.unit.core.engine.test_strangers_bill import LINK, of_sandbox, owns_speaks


def launched() -> Node:
    """A command on a machine without a price."""
    node = make_node(rule(), cloud="none", exclusive=True, price_usd_micros_per_hour=None)
    play(node, CommandLaunched(at(0), "job", 1000, (COMMAND,)), tick(0))
    return node


def priced(node: Node, when: int) -> None:
    play(node, PriceRead(at(when), BootNs(at(when)), WallNs(WALL + at(when)), PRICE, "x", "2026-11"))


def unpriced_s(node: Node, run: str) -> float:
    return node.runs[run].history.unpriced_ns / NS_PER_S


def own_trains(node: Node, since: int, until: int) -> None:
    for second in range(since, until + 1):
        play(node, a_step(second, run="own", when=second, tokens=10**6), tick(second))


def test_what_the_command_waited_is_its_first_runs() -> None:
    node = launched()
    pass_time(node, 30)
    assert node.account.unpriced_ns == 30 * NS_PER_S
    play(node, hello(0, 30, run="own", world_size=1), tick(30))
    assert (unpriced_s(node, "own"), node.account.unpriced_ns) == (30, 0)
    priced(node, 30)
    own_trains(node, 31, 40)
    assert unpriced_s(node, "own") == 30
    assert token_prices(node.runs["own"]).all_in is None


def test_what_a_sandbox_was_charged_first_is_taken_back_with_its_time() -> None:
    node = launched()
    play(node, of_sandbox(1), tick(1))
    pass_time(node, 10, 2)
    assert unpriced_s(node, "box") == 10
    owns_speaks(node, 10)
    priced(node, 10)
    own_trains(node, 11, 20)
    assert node.ledger.spend("own") == PRICE // 360
    assert (unpriced_s(node, "box"), unpriced_s(node, "own")) == (0, 10)
    assert token_prices(node.runs["own"]).all_in is None


def test_money_that_is_taken_back_from_a_sandbox_buys_none_of_its_tokens() -> None:
    """By 10 s it has $9, at 10.10 s none of it; two steps that end until the next tick are valued by what it has."""
    node = launched()
    priced(node, 0)
    play(node, of_sandbox(1), tick(1))
    pass_time(node, 10, 2)
    play(node, hello(0, 10.1, run="own", world_size=1), LaunchersSeen(at(10.1), "own", (COMMAND,)))
    for number, ended in ((1, 10.12), (2, 10.14)):
        sent = {"connection": LINK, "run": "box", "tokens": 10**6, "tokens_total": number * 10**6}
        play(node, a_step(number, when=10.15, ended=at(ended), **sent))
    assert (node.ledger.spend("box"), node.runs["box"].run.paid_tokens.last()) == (0, None)
