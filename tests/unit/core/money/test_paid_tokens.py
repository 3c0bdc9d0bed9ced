"""What a million tokens cost is one figure: a rule and a status have the same, whatever happened before."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.cli.ended import money_of
from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, MonoNs, UsdMicros, WallNs, usd
from governor.core.engine.node import Node, make_past
from governor.core.engine.node_journal import persist, run_snapshot
from governor.core.events.inputs import CommandLaunched, Disconnected, LaunchersSeen, TrainerExited
from governor.core.events.machine import PriceRead
from governor.core.money.paid_tokens import bought_of
from governor.core.money.token_windows import TokenMeter
from governor.core.rules.expression_variables import VARIABLES
from governor.core.views.status import run_status
from tests.hand_table.views import metrics_of
from tests.sweeps import share_of
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, at, make_node, peer, rule
from tests.unit.core.money.test_waste import stage_row, steps, until

PRICES = ("usd_per_mtok", "usd_per_mtok_all_in", "usd_per_mtok_useful", "usd_per_mtok_steady")
HOURLY = UsdMicros(3_600 * MICROS_PER_USD)  # A dollar a second.
MILLION = 1_000_000
SANDBOX, OWN = 12345, 1000


def in_rules(node: Node, run: str, when: MonoNs) -> tuple[float | None, ...]:
    return tuple(VARIABLES[name].read(node.runs[run].run, when) for name in PRICES)  # type: ignore[misc]


def in_status(node: Node, run: str, when: MonoNs) -> tuple[float | None, ...]:
    status = run_status(node.runs[run], when)
    return tuple(status[name] for name in PRICES)


@dataclass
class Play:
    """A command, a sandbox below it that speaks first, and the command's own run."""

    world: World = field(default_factory=World)
    steps: dict[str, int] = field(default_factory=dict)
    attempts: int = 0

    def begin(self, price: UsdMicros | None = HOURLY) -> None:
        self.world.node = make_node(rule(), cloud="none", exclusive=True, price_usd_micros_per_hour=price)
        self.world.play(CommandLaunched(at(0), "job", OWN, (COMMAND,)))
        self.world.tick()

    def speak(self, run: str) -> None:
        self.attempts += 1
        uid, pid, link = (SANDBOX, 900, 50) if run == "box" else (OWN, 100, 60)
        said = {"run": run, "connection": ConnectionId(link), "attempt": f"a{self.attempts}"}
        self.world.hear(**said, peer=peer(pid, uid), of_command=run == "box")
        if run == "own":
            self.world.play(LaunchersSeen(MonoNs(self.world.mono), "own", (COMMAND,)))
        self.steps[run] = 0

    def train(self, run: str, seconds: int = 1) -> None:
        """A step of a million tokens."""
        self.wait(seconds)
        if run not in self.steps:
            self.speak(run)
        self.steps[run] += 1
        link, number = ConnectionId(50 if run == "box" else 60), self.steps[run]
        said = {"run": run, "connection": link, "tokens": MILLION, "tokens_total": number * MILLION}
        self.world.play(replace(a_step(number, **said), at=MonoNs(self.world.mono)))

    def wait(self, seconds: int = 1) -> None:
        self.world.pass_time("run", seconds * NS_PER_S)
        self.world.tick()

    def leave(self, run: str) -> None:
        if run in self.steps:
            del self.steps[run]
            now = MonoNs(self.world.mono)
            self.world.play(Disconnected(now, ConnectionId(50 if run == "box" else 60)))
            self.world.play(TrainerExited(now, run, None))

    def restart(self, *, priced: bool = True) -> None:
        self.world.node.facts = replace(self.world.node.facts, price_usd_micros_per_hour=HOURLY if priced else None)
        self.world.restart()
        self.world.play(CommandLaunched(MonoNs(self.world.mono), "job", OWN, (COMMAND,)))
        self.steps.clear()

    def learn_price(self) -> None:
        node, now = self.world.node, MonoNs(self.world.mono)
        self.world.play(PriceRead(now, node.ledger.charged_to, node.metered_wall or WallNs(0), HOURLY, "x", "2026-11"))

    def all_in_rules(self, run: str) -> tuple[float | None, ...]:
        return in_rules(self.world.node, run, MonoNs(self.world.mono))

    def agree(self) -> None:
        now = MonoNs(self.world.mono)
        for run in self.world.node.runs:
            assert in_rules(self.world.node, run, now) == in_status(self.world.node, run, now), run


ACTS = st.one_of(
    st.tuples(st.just("train"), st.sampled_from(["box", "own"])),
    st.tuples(st.just("speak"), st.sampled_from(["box", "own"])),
    st.tuples(st.just("leave"), st.sampled_from(["box", "own"])),
    st.tuples(st.just("wait"), st.integers(1, 9)),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("learn_price"), st.none()),
)


@settings(max_examples=share_of(120))
@given(st.lists(ACTS, max_size=25))
def test_a_rule_sees_the_prices_that_status_shows(acts: list[tuple[str, object]]) -> None:
    play = Play()
    play.begin()
    for what, how in acts:
        match what:
            case "restart":
                play.restart(priced=bool(how))
            case "learn_price":
                play.learn_price()
            case _:
                getattr(play, what)(how)
        play.agree()


def test_whose_tokens_another_run_has_paid_for_has_no_price_until_it_trains_again() -> None:
    """A sandbox trains ten steps for a dollar each. The command's own run takes the money, and ends."""
    play = Play()
    play.begin()
    for _ in range(10):
        play.train("box")
    assert play.all_in_rules("box")[0] == 1.0
    play.wait()
    play.speak("own")
    play.wait(3)
    play.leave("own")
    play.wait(9)
    managed = play.world.node.runs["box"]
    assert (play.all_in_rules("box"), managed.run.paid_tokens.unpaid_tokens) == ((None,) * 4, None)
    status = run_status(managed, MonoNs(play.world.mono))
    assert (status["window"], status["hours_left"]) == (None, None)
    play.agree()
    play.train("box", seconds=2)
    assert managed.run.paid_tokens.unpaid_tokens == 10 * MILLION
    play.agree()


def test_a_restart_of_the_governor_forgets_no_price() -> None:
    """Until another step comes, which may be minutes away. Nor does the journal."""
    play = Play()
    play.begin()
    for _ in range(10):
        play.train("own")
    play.wait()
    told = play.all_in_rules("own")
    play.world.take([persist(play.world.node, MonoNs(play.world.mono))])
    assert told == (1.0, 1.1, 1.1, 1.0)
    play.restart()
    assert play.all_in_rules("own")[0] == 1.0, "before its first tick"
    assert play.all_in_rules("own")[3] == 1.0
    play.world.tick()
    assert play.all_in_rules("own") == told
    play.agree()
    managed = play.world.node.runs["own"]
    row = run_snapshot(play.world.node, managed, MonoNs(play.world.mono))
    assert row["usd_micros_per_mtok_steady"] == MILLION
    ended = money_of(row)
    assert tuple(ended[name] for name in PRICES) == told, "what `costgov status` has of it once it has ended"


def test_an_older_journal_that_does_not_say_what_bought_no_tokens_had_all_in_its_windows() -> None:
    """While it runs, and once it has ended. A run that had no tokens has spent all of it for none."""
    play = Play()
    play.begin()
    for _ in range(10):
        play.train("own")
    play.world.take([persist(play.world.node, MonoNs(play.world.mono))])
    told = play.all_in_rules("own")
    row = dict(play.world.runs["own"])
    del row["paid_before_usd_micros"]
    assert tuple(money_of(row)[name] for name in PRICES) == told
    play.world.runs["own"] = row
    play.restart()
    play.world.tick()
    assert play.all_in_rules("own") == told
    assert bought_of({"spend_usd_micros": 7, "tokens": None}, same_boot=True).paid_before == 7


def test_the_journals_steady_price_stands_until_a_window_closes() -> None:
    play = Play()
    play.begin()
    for _ in range(4):
        play.train("own")
    play.world.take([persist(play.world.node, MonoNs(play.world.mono))])
    play.restart()
    for _ in range(4):  # Again.
        play.train("own", seconds=3)
        assert play.all_in_rules("own")[3] == 1.0
    for _ in range(4):
        play.train("own", seconds=3)
    assert play.all_in_rules("own")[3] == 3.0
    play.agree()


def test_a_run_that_comes_back_has_the_prices_that_it_had() -> None:
    """Four steps of a second, and one more that it pays for as the command's run."""
    play = Play()
    play.begin()
    for _ in range(4):
        play.train("own")
    play.leave("own")
    play.wait()
    node = play.world.node
    make_past(node, node.runs["own"])
    play.speak("own")
    play.world.tick()
    assert play.all_in_rules("own") == (1.0, 1.25, 1.25, 1.0)
    play.agree()


def test_what_was_spent_before_its_tokens_is_in_no_price_of_an_ended_run() -> None:
    meter = TokenMeter(progress_tokens=MILLION, wasted_tokens=MILLION).snapshot()
    ended = money_of({"spend_usd_micros": 7 * MILLION, "paid_before_usd_micros": 3 * MILLION, "tokens": meter})
    assert (ended["usd_per_mtok_all_in"], ended["usd_per_mtok_useful"]) == (2.0, 4.0)


@pytest.mark.parametrize("priced", [True, False])
def test_a_past_run_that_comes_back_has_its_steady_price(priced: bool) -> None:
    play = Play()
    play.begin(HOURLY if priced else None)
    for _ in range(4):
        play.train("own")
    managed = play.world.node.runs["own"]
    assert managed.past().history.steady_before == (MILLION if priced else None)


def test_burn_rate_is_one_figure_and_rises_while_the_run_hangs() -> None:
    """A dollar for each 10M tokens. 2 s to the first step, a second each for four more: 50,000 tokens for $0.006.

    Then nothing for 6 s: $0.012.
    """
    world = World(
        make_node(budget=Budget(usd(1), 10 * MILLION, window_tokens=20_000), price_usd_micros_per_hour=usd(3.6))
    )
    world.tick()
    world.hear()
    steps(world, range(1, 6), began=2)
    for spent in (0.006, 0.012):
        until(world, 1_000 * spent)
        now = MonoNs(world.mono)
        told = run_status(world.node.runs["llama"], now)["burn_rate"]
        [measured] = metrics_of(world, now)["costgov_run_burn_rate"].values()
        at_stages = stage_row(world).burn_rate
        assert (told, measured, float(at_stages or 0)) == pytest.approx((spent / 0.05 * 10,) * 3)
