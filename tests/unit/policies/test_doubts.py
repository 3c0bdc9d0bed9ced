"""Rules that load and cannot mean what they say, and what is in force of a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.core.base.policy import Policy
from governor.core.rules.expressions import never_true
from governor.core.rules.triggers import load
from governor.policies.check import _DEFAULTS, Shown, _toml, check, doubts, in_force
from governor.policies.files import policy_texts
from governor.policies.parse import load_policies, read_policies
from tests.paths import ROOT

POLICIES = ROOT / "policies"
HEAD = '[policy]\nname = "p"\n'
BUDGET = '[budget]\nceiling_usd = 9\ntokens = "10M"\n[[rule]]\nname = "b"\ntrigger = "budget"\nresponse = "halt"\n'


def rule(name: str, response: str, text: str) -> str:
    return f'[[rule]]\nname = "{name}"\nresponse = "{response}"\n{text}\n'


def doubted(text: str) -> list[str]:
    ((policy, reader),) = read_policies([("p.toml", HEAD + text)])
    assert policy is not None, reader.errors
    return [str(doubt) for doubt in doubts(policy, reader)]


NAN = 'trigger = "nonfinite"\nfor = "3 steps"'
BOTH = 'all = [{ trigger = "hang" }, { trigger = "nonfinite" }]'
HTOB = 'all = [{ trigger = "nonfinite" }, { trigger = "hang" }]'


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        (rule("a", "warn", NAN) + rule("c", "warn", NAN), 'p.toml:9: rule[2].name: says the same as rule "a"'),
        (rule("a", "warn", BOTH) + rule("c", "warn", HTOB), 'p.toml:8: rule[2].name: says the same as rule "a"'),
        (
            rule("a", "halt", NAN) + rule("c", "warn", NAN),
            'p.toml:12: rule[2].for: comes no sooner than the halt of rule "a"',
        ),
        (
            rule("c", "checkpoint", NAN.replace("3", "5")) + rule("a", "halt", NAN),
            'p.toml:7: rule[1].for: comes no sooner than the halt of rule "a"',
        ),
        (
            BUDGET.replace('"halt"', '"halt"\nat_frac = 0.8') + rule("w", "warn", 'trigger = "budget"\nat_frac = 0.9'),
            'p.toml:15: rule[2].at_frac: comes no sooner than the halt of rule "b"',
        ),
        (
            BUDGET + "[expected]\ntokens_per_s = 1000\n" + rule("a", "halt", 'trigger = "hang"\nwarmup = "3h"'),
            "p.toml:16: rule[2].warmup: is never over: as [budget] and [expected] have it the run takes 2h 46m",
        ),
        (
            BUDGET + "[expected]\ntokens_per_s = 1000\n" + rule("a", "halt", 'trigger = "hang"\nfor = "3h"'),
            "p.toml:16: rule[2].for: is never over",
        ),
        (
            BUDGET + rule("a", "halt", 'trigger = "nonfinite"\nfor = "10M tokens"'),
            "p.toml:14: rule[2].for: is never over: the run is complete at 10,000,000 tokens",
        ),
        (
            rule("a", "halt", NAN) + rule("c", "warn", NAN + '\nmatch = { stage = "s1" }'),
            'p.toml:12: rule[2].for: comes no sooner than the halt of rule "a"',
        ),
        (
            rule("a", "halt", 'trigger = "silence"\nafter = "10m"')
            + rule("c", "warn", 'trigger = "silence"\nafter = "20m"'),
            'p.toml:12: rule[2].after: comes no sooner than the halt of rule "a": its limit is no stricter',
        ),
        (
            rule("c", "halt", NAN.replace("3", "5")) + rule("a", "halt", NAN),
            'p.toml:7: rule[1].for: comes no sooner than the halt of rule "a"',
        ),
        (
            rule("a", "halt", 'trigger = "nonfinite"') + rule("c", "warn", NAN + '\nwarmup = "200 steps"'),
            'p.toml:11: rule[2].for: comes no sooner than the halt of rule "a"',
        ),
        (rule("a", "halt", 'trigger = "runtime"'), "p.toml:6: rule[1].trigger: never fires: neither `run` nor"),
        (
            rule("a", "warn", 'all = [{ trigger = "nonfinite" }, { trigger = "usd_per_mtok" }]'),
            "p.toml:6: rule[1].all[2].trigger: never fires: [expected] has no usd_per_mtok",
        ),
        (
            BUDGET + "[expected]\ntokens_per_s = 1000\n" + rule("a", "halt", 'trigger = "runtime"\nrun = "2h"'),
            "p.toml:16: rule[2].run: halts a run that keeps to its plan: as [budget]",
        ),
        (
            rule("a", "halt", 'trigger = "restart_loop"\nwarmup = "200 steps"'),
            "p.toml:7: rule[1].warmup: is never over in what it is about",
        ),
        (
            rule("a", "halt", 'trigger = "nonfinite"\nskipped_streak = 50'),
            "p.toml:7: rule[1].skipped_streak: is above search_streak, which then says nothing",
        ),
        (
            rule("a", "halt", 'all = [\n{ trigger = "nonfinite" },\n{ trigger = "hang", start_limit = "4h" },\n]'),
            "p.toml:8: rule[1].all[2].start_limit: is above start_limit_without_beats",
        ),
    ],
)
def test_is_doubted(text: str, doubt: str) -> None:
    (found,) = doubted(text)
    assert found.startswith(doubt)
    lines, code = check([("p.toml", HEAD + text)])
    assert (lines[0], code) == (found, 1)
    assert load_policies([("p.toml", HEAD + text)])[1] == [], "a start of the governor lets it pass"


@pytest.mark.parametrize(
    "text",
    [
        rule("a", "warn", NAN) + rule("c", "halt", NAN.replace("3", "5")),
        rule("a", "warn", NAN) + rule("c", "warn", NAN + '\nmatch = { stage = "s1" }'),
        rule("a", "warn", NAN) + rule("c", "warn", NAN + "\nskipped_streak = 9"),
        rule("a", "halt", NAN) + rule("c", "warn", NAN.replace("3 steps", "3 of 5 steps")),
        rule("a", "halt", NAN + '\nmatch = { stage = "s1" }') + rule("c", "warn", NAN),
        rule("a", "halt", 'trigger = "silence"\nafter = "20m"')
        + rule("c", "warn", 'trigger = "silence"\nafter = "9m"'),
        rule("a", "halt", 'trigger = "silence"\nafter = "10m"')
        + rule("c", "halt", 'trigger = "silence"\nafter = "20m"\nmode = "observe"'),
        rule("a", "halt", 'trigger = "data_starvation"\nshare_frac = 0.5')
        + rule("c", "warn", 'trigger = "data_starvation"\nshare_frac = 0.9'),
        rule("a", "halt", 'trigger = "runtime"\nattempt = "2h"') + BUDGET + "[expected]\ntokens_per_s = 1000\n",
        "[expected]\nusd_per_mtok_all_in = 1\n" + rule("a", "warn", 'trigger = "usd_per_mtok"'),
        rule("a", "halt", NAN + '\nwarmup = "200 steps"') + rule("c", "warn", NAN),
        rule("a", "halt", NAN + '\nmode = "observe"') + rule("c", "warn", NAN.replace("3", "5")),
        BUDGET.replace("9\n", "9\nalert_at = [0.5]\n") + rule("w", "warn", 'trigger = "budget"\nat_frac = 0.9'),
        BUDGET + "[expected]\ntokens_per_s = 1000\n" + rule("a", "halt", 'trigger = "hang"\nwarmup = "2h"'),
    ],
)
def test_is_not_doubted(text: str) -> None:
    assert doubted(text) == []


def test_a_rule_that_halts_by_time_ends_what_waits_longer() -> None:
    by_time = rule("old", "halt", 'trigger = "runtime"\nattempt = "6h"\nfor = "10m"')
    (found,) = doubted(by_time + rule("a", "halt", 'trigger = "hang"\nwarmup = "6h10m"'))
    assert found.endswith('rule[2].warmup: is never over: rule "old" halts an attempt that is 6h 0m old')
    assert doubted(by_time + rule("a", "halt", 'trigger = "hang"\nwarmup = "6h9m"')) == []


def test_nothing_is_doubted_of_the_shipped_policies() -> None:
    _, code = check(policy_texts([POLICIES]))
    assert code == 0


# --- expressions that exclude each other ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "never"),
    [
        (["loss > 5.0 && loss < 3.0"], True),
        (["loss > 5.0", "loss < 3.0"], True),
        (["loss > 3.0", "loss < 5.0"], False),
        (["step > 5 && step < 6"], True),  # No step is between them,
        (["step > 5 && step < 7"], False),
        (["loss > 5.0 && loss < 6.0"], False),  # but a loss is,
        (["loss > 5.0 && grad_norm > loss && grad_norm < 6.0"], False),  # and a norm between it and the next.
        (["loss > grad_norm", "grad_norm > lr", "lr > loss"], True),
        (["loss > grad_norm && grad_norm > lr"], False),
        (["phase == 'eval'", "phase == 'train'"], True),
        (["phase != 'eval'", "phase != 'train'"], False),
        (["step == 3 || loss >= 1.0", "step != 3 && !(loss > 0.5)"], True),
        (["loss < -1.0"], False),
        (["loss * 2.0 > 5.0 && loss < 1.0"], False),  # It is never true, and nobody here can tell.
    ],
)
def test_what_is_never_true(texts: list[str], never: bool) -> None:
    assert never_true(texts) is never


def test_members_that_exclude_each_other_are_doubted() -> None:
    two = (
        "all = [\n{ trigger = 'expression', when = 'loss > 5.0' },\n{ trigger = 'expression', when = 'loss < 3.0' },\n]"
    )
    assert doubted(rule("a", "halt", two)) == [
        "p.toml:6: rule[1].all: is never true: its expressions exclude each other"
    ]
    one = rule("a", "halt", "trigger = 'expression'\nwhen = 'step < 1 && step > 1'")
    assert doubted(one) == ["p.toml:7: rule[1].when: is never true, whatever the run does"]


@pytest.mark.parametrize("when", ["phase == 'evaluation'", "'evaluation' != phase", "phase in ['eval', 'evaluation']"])
def test_a_phase_of_another_name_is_doubted(when: str) -> None:
    [doubt] = doubted(rule("a", "warn", f'trigger = "expression"\nwhen = "step > 9 || {when}"'))
    assert doubt.startswith('p.toml:7: rule[1].when: "evaluation" is no phase; known: init, compile, train, eval')


def test_a_stage_and_an_attempt_may_have_any_name() -> None:
    when = "phase == 'eval' || stage == 'evaluation' && attempt in ['a']"
    assert doubted(rule("a", "warn", f'trigger = "expression"\nwhen = "{when}"')) == []


# --- what is in force -------------------------------------------------------------------------------------------


def test_each_value_in_force_has_the_place_that_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('[halt]\ngrace = "5m"\n' + rule("nan", "halt", NAN + "\nskipped_streak = 9"))
    (tmp_path / "p.toml").write_text(
        'include = ["base.toml"]\n' + HEAD + 'match = { stage = "s1" }\n' + rule("a", "warn", BOTH)
    )
    (tmp_path / "p.d").mkdir()
    (tmp_path / "p.d" / "x.toml").write_text('[[rule]]\nname = "nan"\nmode = "observe"\n')
    ((policy, reader),) = read_policies(policy_texts([tmp_path / "p.toml"]))
    assert policy is not None
    shown = {one.key: (one.value, one.source and one.source.replace(f"{tmp_path}/", "")) for one in in_force(reader)}
    assert shown["policy.match"] == ('{ stage = "s1" }', "p.toml:4")
    assert shown["halt.grace"] == ('"5m"', "base.toml:2")
    assert shown["halt.term_grace"] == ('"10s"', None)
    assert shown["rule.nan.skipped_streak"] == ("9", "base.toml:8")
    assert shown["rule.nan.mode"] == ('"observe"', "p.d/x.toml:3")
    assert shown["rule.nan.vanished_records"] == ("3", None)
    assert shown["rule.a.all[2].trigger"] == ('"nonfinite"', "p.toml:8")
    assert shown["rule.a.all[1].tight_min"] == ('"30s"', None)


def test_the_defaults_that_are_shown_are_those_that_count() -> None:
    written = "".join(
        f"[{table}]\n" + ('name = "p"\n' if table == "policy" else "")
        + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
        for table, values in _DEFAULTS.items()
    )  # fmt: skip
    policies, errors = load_policies([("p.toml", written)])
    assert policies is not None, errors
    assert policies.policies[0] == Policy("p", source="p.toml")


def test_the_key_of_a_default_has_no_place() -> None:
    ((_, reader),) = read_policies([("p.toml", HEAD)])
    assert Shown("policy.mode", '"enforce"', None) in in_force(reader)


def test_a_key_that_is_not_above_another_names_one_and_keeps_to_it() -> None:
    for kind, trigger in load().items():
        keys = {key.name: key for key in trigger.KEYS}
        for key in trigger.KEYS:
            if key.not_above:
                other = keys[key.not_above]
                assert key.kind == other.kind, kind
                assert key.parse(key.default) <= other.parse(other.default), kind
