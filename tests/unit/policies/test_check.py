from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from governor.cli.policy.command import policy
from governor.core.base.units import usd
from governor.policies.check import check
from governor.policies.keys import parse_for
from governor.policies.words import format_for, format_span

VALID = """
[policy]
name = "p"
[budget]
ceiling_usd = 90
tokens = "6M"
window = "2M"
[expected]
usd_per_mtok = 12.5
tokens_per_s = 5000
[halt]
grace = "90s"
stop = "instance"
[[rule]]
name = "slow"
trigger = "throughput_collapse"
mode = "observe"
for = "2M tokens"
response = "halt"
floor_frac = 0.4
[[rule]]
name = "budget"
trigger = "budget"
response = "halt"
"""


def test_a_valid_policy_is_said_in_plain_lines() -> None:
    lines, status = check([("p.toml", VALID)])
    assert status == 0
    assert lines[:-1] == [
        'p.toml: policy "p" (enforce) for every run that no other policy matches',
        "  budget: ceiling $90.00, the price of the halt included; 6,000,000 tokens; reported per 2,000,000 tokens",
        "  expected: $12.500000 per 1M tokens, $75.00 in all; 5,000 tokens/s",
        "  slow    throughput_collapse for 2,000,000 tokens: observe only (would halt), saving [floor_frac 0.4]",
        "  budget  budget: halt, saving",
        "  on halt: ask for a checkpoint (up to 1m30s), SIGTERM (10s), SIGKILL (10s), stop the instance; "
        "at most 3 a day",
    ]
    assert lines[-1].startswith("1 policy is valid (digest ")


def test_errors_are_all_there_is_when_anything_is_wrong() -> None:
    lines, status = check([("good.toml", VALID), ("bad.toml", VALID.replace('"p"', '"q"').replace("grace", "grase"))])
    assert status == 1
    assert lines[0] == 'bad.toml:12: halt.grase: unknown key; did you mean "grace"?'
    assert lines[-1] == f"{len(lines) - 1} error{'s' if len(lines) > 2 else ''}"


def test_a_policy_that_never_halts_says_so() -> None:
    lines, _ = check([("p.toml", '[policy]\nname = "p"\n')])
    assert "  on halt: never halts" in lines


def test_holds_and_spans_read_back_as_they_were_written() -> None:
    for text in ("1 step", "3 steps", "3 of 5 steps", "1m30s", "250ms", "2h"):
        assert format_for(parse_for(text)) == text
    assert format_span(0) == "0s"


def test_when_a_rule_may_speak_is_said_too() -> None:
    rule = """
[[rule]]
name = "both"
all = [{ trigger = "nonfinite", skipped_streak = 9 }, { trigger = "hang" }]
match = { stage = ["s1", "s2"] }
warmup = "5M tokens"
cooldown = "1h"
response = "warn"
"""
    lines, _ = check([("p.toml", '[policy]\nname = "p"\n' + rule)])
    assert lines[2] == (
        "  both  nonfinite and hang: warn; only for runs with stage = s1 or s2, after 5,000,000 tokens of an attempt, "
        "at most once in 1h [nonfinite skipped_streak 9]"
    )


def test_the_command_shows_what_is_in_force_and_steers_no_terminal(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[policy]\nname = "p"\n[halt]\ngrace = "3m"\n')
    told = CliRunner().invoke(policy, ["check", "--show", str(file)])
    assert told.exit_code == 0
    assert ["halt.grace", '"3m"', f"{file}:4"] in [line.split() for line in told.stdout.splitlines()]
    told = CliRunner().invoke(policy, ["check", "--show", "--json", str(file)])
    assert {"key": "halt.grace", "value": '"3m"', "source": f"{file}:4"} in json.loads(told.stdout)["in_force"]["p"]
    file.write_text('[policy]\nname = "p"\n"\\u001b[31mred" = 1\n')
    told = CliRunner().invoke(policy, ["check", str(file)])
    assert (told.exit_code, "\x1b" in told.stderr) == (1, False)


def test_a_plan_that_is_dearer_than_its_ceiling_at_this_nodes_price_is_doubted() -> None:
    plan = '[budget]\nceiling_usd = 50\ntokens = "10M"\n[expected]\ntokens_per_s = 1000\n'
    text = f'[policy]\nname = "p"\n{plan}[[rule]]\nname = "b"\ntrigger = "budget"\nresponse = "halt"\n'
    assert check([("p.toml", text)], usd(18))[1] == 0
    lines, code = check([("p.toml", text)], usd(20))
    assert (lines[0], code) == (
        "p.toml: expected.tokens_per_s: the run takes 2h 46m at that speed, which is $55.56 at this node's price: "
        "above budget.ceiling_usd ($50.00)",
        1,
    )
