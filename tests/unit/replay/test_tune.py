"""Limits from healthy logs: the worst case is found in the key's own unit, and what is suggested keeps the margin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode
from governor.cli.policy.tune import tune as command
from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_S
from governor.policies.parse import load_policies
from governor.replay.play import Replay, ReplayVerdict
from governor.replay.tune import State, Tuned, in_toml, lacking, tune

Records = list[dict[str, Any]]


def policy_of(rule: str) -> Policy:
    policies, errors = load_policies(
        [("p.toml", f'[policy]\nname = "p"\n[[rule]]\nname = "r"\nresponse = "halt"\n{rule}')]
    )
    assert policies is not None, errors
    return policies.policies[0]


def steps(count: int, *, every_s: float = 1.0, after: Records | None = None, **fields: Any) -> Records:
    """So many records, `every_s` apart, after those that there are."""
    before = list(after or [])
    t, step = (before[-1]["t"], before[-1]["step"]) if before else (0.0, 0)
    return before + [{"t": t + every_s * n, "step": step + n, "loss": 2.0, **fields} for n in range(1, count + 1)]


def tuned(rule: str, *logs: Records, margin: float = 2.0) -> dict[str, Tuned]:
    """Every limit of the rule, by key."""

    def play(names: Sequence[str], policy: Policy) -> Iterator[tuple[str, list[ReplayVerdict]]]:
        for name in names:
            replay = Replay([policy])
            for record in logs[int(name)]:
                replay.read(dict(record))
            replay.end()
            assert len({told.rule for told in replay.verdicts}) == len(replay.verdicts), (
                "each variant tells once: logs are long"
            )
            yield name, replay.verdicts

    return {one.key.name: one for one in tune(policy_of(rule), [str(n) for n in range(len(logs))], play, margin)}


PAUSED = steps(60, after=[*steps(60), {"t": 160.0, "step": 61, "loss": 2.0}])  # A hundred seconds after minute 1.
HEALTHY = steps(120)


@pytest.mark.parametrize(
    ("here", "state"),
    [("90s", State.FIRES), ("150s", State.CLOSE), ("199s", State.CLOSE), ("5m", State.WIDE), ("10m", State.WIDE)],
)
def test_the_longest_pause_is_found_whatever_the_limit_in_force(here: str, state: State) -> None:
    found = tuned(f'trigger = "hang"\nbetween_limit = "{here}"', HEALTHY, PAUSED)["between_limit"]
    assert found.state is state
    assert found.worst is not None
    assert 100 <= found.worst / NS_PER_S <= 107, "within 6 %, and on the safe side"
    assert found.verdict is not None
    assert (found.verdict.log, round(found.verdict.t or 0)) == ("1", pytest.approx(160, abs=6))
    assert found.suggested is not None
    assert 2.0 <= found.suggested / found.worst <= 2.1


def test_a_limit_that_must_be_lower_to_be_safer_is_lowered() -> None:
    slow = steps(900, every_s=2.0, after=steps(200, tokens=1000), tokens=1000)
    found = tuned('trigger = "throughput_collapse"\nfor = "5m"', slow)["floor_frac"]
    assert found.worst is not None
    assert 0.47 <= found.worst <= 0.5, "half of its own speed is the worst"
    assert (found.state, found.suggested) == (State.CLOSE, pytest.approx(0.24, abs=0.011))
    assert tuned('trigger = "throughput_collapse"\nfor = "5m"', slow, margin=1.25)["floor_frac"].state is State.WIDE


def test_a_share_has_no_limit_above_one() -> None:
    starved = steps(200, step_time_s=1.0, data_time_s=0.6)
    found = tuned('trigger = "data_starvation"', starved)["share_frac"]
    assert (found.state, found.suggested) == (State.FIRES, None)
    assert found.worst == pytest.approx(0.62, abs=0.02)


def test_what_fires_at_any_value_is_said_to_and_not_tuned() -> None:
    found = tuned('trigger = "nonfinite"', steps(1, after=steps(30), loss=float("nan")))
    assert {one.state for one in found.values()} == {State.ALWAYS}
    assert {one.suggested for one in found.values()} == {None}


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_nan_is_never_healthy_however_short_the_log_that_a_halt_has_left(count: int) -> None:
    found = tuned('trigger = "nonfinite"\nfor = "1 step"', steps(count, after=steps(300), loss=float("nan")))
    assert {one.state for one in found.values()} == {State.ALWAYS}
    assert lacking([*found.values()]) == {"r"}


def test_logs_that_come_near_nothing_suggest_nothing_and_their_order_does_not_matter() -> None:
    rule = 'trigger = "hang"\nbetween_limit = "150s"'
    assert tuned(rule, HEALTHY)["eval_limit"].state is State.FAR
    ways = [tuned(rule, *logs)["between_limit"] for logs in ((HEALTHY, PAUSED), (PAUSED, HEALTHY))]
    assert ways[0].suggested == ways[1].suggested


def test_a_long_log_tells_of_a_value_once() -> None:
    """What fires every hour would else be kept for every hour, of each value that is tried."""
    often = PAUSED
    for _ in range(3):
        often = steps(60, after=[*often, {"t": often[-1]["t"] + 100.0, "step": often[-1]["step"] + 1, "loss": 2.0}])
    assert tuned('trigger = "hang"\nbetween_limit = "90s"', often)["between_limit"].state is State.FIRES


def test_how_long_it_must_hold_is_tuned_as_well() -> None:
    slow = steps(120, every_s=4.0, after=steps(400, tokens=1000), tokens=1000)  # For eight minutes, a quarter.
    well = steps(400, after=slow, tokens=1000)
    found = tuned('trigger = "throughput_collapse"\nfor = "5m"', well)["for"]
    assert found.state is State.FIRES
    assert found.worst is not None
    assert 440 <= found.worst / NS_PER_S <= 520, "the pause of eight minutes, but for what its window smooths"
    assert found.suggested is not None
    assert found.suggested / found.worst >= 2.0


def test_steps_that_it_must_hold_for_stay_whole() -> None:
    spiking = steps(200, after=steps(7, after=steps(200), loss=60.0))
    found = tuned('trigger = "loss_spike"\nfor = "3 steps"\nfactor = 10.0', spiking)["for"]
    assert (found.state, found.worst) == (State.FIRES, 8)
    assert found.suggested is not None
    assert found.suggested >= 16
    assert in_toml(found.key, found.suggested) == f"{found.suggested} steps"


def test_a_rule_of_several_triggers_has_its_for_tuned() -> None:
    both = 'all = [{ trigger = "hang", between_limit = "30s" }, { trigger = "runtime", run = "1s" }]\nfor = "10s"'
    found = tuned(both, PAUSED)
    assert [*found] == ["for"]
    assert found["for"].state is State.FIRES


def written(path: Path, records: Records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_what_is_suggested_lies_over_the_policy_and_leaves_nothing_to_suggest(tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    rule = '[[rule]]\nname = "hang"\ntrigger = "hang"\nresponse = "halt"\nbetween_limit = "90s"\n'
    policy.write_text(f'[policy]\nname = "p"\n{rule}')
    log = written(tmp_path / "paused.jsonl", PAUSED)
    told = CliRunner().invoke(command, [log, "--policy", str(policy)])
    assert told.exit_code == ExitCode.OK
    assert "WOULD HAVE TOLD OF A HEALTHY LOG (paused.jsonl at 2m" in told.output
    (tmp_path / "p.d").mkdir()
    (tmp_path / "p.d/tuned.toml").write_text(told.output[told.output.index("# costgov policy tune") :])
    document = json.loads(CliRunner().invoke(command, [log, "--policy", str(policy), "--json"]).output)
    states = {limit["key"]: limit["state"] for limit in document["limits"]}
    assert states["between_limit"] == "wide"
    assert not {"fires", "close"} & set(states.values())
    assert (document["logs"], document["records"]) == (1, 121)


def test_a_margin_that_no_value_has_is_no_success(tmp_path: Path) -> None:
    log = written(tmp_path / "starved.jsonl", steps(200, step_time_s=1.0, data_time_s=0.6))
    policy = tmp_path / "p.toml"
    policy.write_text('[policy]\nname = "p"\n[[rule]]\nname = "s"\ntrigger = "data_starvation"\nresponse = "halt"\n')
    told = CliRunner().invoke(command, [log, "--policy", str(policy)])
    assert told.exit_code == ExitCode.FAILED
    assert "share_frac" in told.output
    assert "# No limit has the margin, of: s." in told.output
    assert "came closer" not in told.output


def test_logs_without_a_record_say_nothing_of_any_limit(tmp_path: Path) -> None:
    told = CliRunner().invoke(command, [written(tmp_path / "empty.jsonl", [])])
    assert told.exit_code == ExitCode.FAILED
    assert "hold no record" in told.output
    assert "margin" not in told.output


def test_a_log_that_replay_refuses_is_no_healthy_one(tmp_path: Path) -> None:
    """Nothing but its steps is known: neither it nor its pauses are a case of anything."""
    good = written(tmp_path / "good.jsonl", steps(200))
    odd = written(tmp_path / "odd.jsonl", [{"step": n, "my_ce": 2.0, "t": 600.0 * n} for n in range(50)])
    alone = CliRunner().invoke(command, [good, "--json"])
    both = CliRunner().invoke(command, [good, odd, "--json"])
    assert both.exit_code == ExitCode.FAILED
    assert "nothing but its steps is known" in both.stderr
    assert json.loads(both.stdout) == json.loads(alone.stdout)
    assert json.loads(both.stdout)["logs"] == 1
    told = CliRunner().invoke(command, [odd])
    assert told.exit_code == ExitCode.FAILED
    assert "these logs could not be judged: nothing is known of any limit" in told.stderr
    assert told.stdout == ""


def test_standard_input_cannot_be_read_as_often_as_tune_reads() -> None:
    told = CliRunner().invoke(command, ["-"], b'{"step": 1, "loss": 2.0}\n')
    assert told.exit_code == ExitCode.FAILED
    assert "-: tune reads each log many times, standard input can be read once; name a file" in told.output


def test_a_rule_of_several_triggers_is_named_and_left_out(tmp_path: Path) -> None:
    log = written(tmp_path / "paused.jsonl", PAUSED)
    policy = tmp_path / "p.toml"
    both = 'all = [{ trigger = "hang", between_limit = "90s" }, { trigger = "data_starvation" }]'
    policy.write_text(f'[policy]\nname = "p"\n[[rule]]\nname = "both"\n{both}\nresponse = "halt"\n')
    told = CliRunner().invoke(command, [log, "--policy", str(policy)])
    assert told.exit_code == ExitCode.OK
    assert told.output.splitlines() == [
        "No rule of policy p has a limit that could be moved.",
        "Several triggers must fire together, so their limits are left out: both.",
    ]
