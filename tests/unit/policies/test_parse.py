from __future__ import annotations

import pytest

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Expected, Mode, Persistence, PersistenceKind, PolicySet
from governor.core.base.units import MICROS_PER_USD, MTOK, NS_PER_S
from governor.policies.keys import parse_for
from governor.policies.parse import load_policies
from tests.paths import ROOT

POLICIES = ROOT / "policies"
RULE = '[[rule]]\nname = "r"\ntrigger = "nonfinite"\nresponse = "halt"\n'
BUDGET_RULE = '[[rule]]\nname = "b"\ntrigger = "budget"\nresponse = "halt"\n'
HEAD = '[policy]\nname = "p"\n'


def loaded(text: str) -> PolicySet:
    policies, errors = load_policies([("p.toml", text)])
    assert policies is not None, [str(error) for error in errors]
    return policies


def refused(text: str) -> list[str]:
    policies, errors = load_policies([("p.toml", text)])
    assert policies is None
    return [str(error) for error in errors]


def test_everything_that_a_policy_can_say() -> None:
    policy = loaded("""
[policy]
name = "full"
mode = "enforce"
match = { stage = ["stage1", "stage2"], team = "red" }
[budget]
ceiling_usd = 90.5
tokens = "20B"
alert_at = [0.8, 0.5]
window = "2.5M"
[expected]
usd_per_mtok = "0.0042"
usd_per_mtok_all_in = 0.0045
tokens_per_s = 65900
[halt]
checkpoint = "none"
grace = "0s"
term_grace = "1s"
kill_grace = "2s"
stop = "instance"
destroy = true
per_day_max = 7
wrong_max = 3
[run]
on_finish = "stop"
[node]
idle_stop = "15m"
[[rule]]
name = "a"
trigger = "nonfinite"
for = "3 of 5 steps"
response = "checkpoint"
mode = "observe"
checkpoint = "suspect"
skipped_streak = 9
[[rule]]
name = "b"
trigger = "budget"
response = "halt"
""").policies[0]
    assert policy.match == {"stage": ("stage1", "stage2"), "team": ("red",)}
    assert policy.budget.ceiling_usd_micros == 90.5 * MICROS_PER_USD
    assert (policy.budget.tokens, policy.budget.alert_at) == (20 * 10**9, (0.5, 0.8))
    assert (policy.budget.window_tokens, policy.expected) == (2_500_000, Expected(4_200, 65_900.0, 4_500))
    assert (policy.halt.checkpoint, policy.halt.stop, policy.halt.destroy) == ("none", "instance", True)
    assert (policy.halt.grace_ns, policy.halt.term_grace_ns, policy.halt.kill_grace_ns) == (0, NS_PER_S, 2 * NS_PER_S)
    assert (policy.run_on_finish, policy.node_idle_stop_ns, policy.halts_per_day_max) == ("stop", 900 * NS_PER_S, 7)
    assert policy.wrong_max == 3
    first, second, *alerts = policy.rules
    assert first.persistence == Persistence(PersistenceKind.STEPS, 3, 5)
    assert (first.response, first.mode, first.checkpoint) == (Response.CHECKPOINT, Mode.OBSERVE, "suspect")
    assert (first.params["skipped_streak"], first.params["vanished_records"]) == (9, 3)
    assert first.source == "p.toml:28"
    assert (second.persistence, second.checkpoint) == (AT_ONCE, "none")
    assert [(rule.name, rule.response) for rule in alerts] == [
        ("budget-50pct", Response.WARN),
        ("budget-80pct", Response.WARN),
    ]


@pytest.mark.parametrize(
    ("text", "hold"),
    [
        ("1 step", Persistence(PersistenceKind.STEPS, 1, 1)),
        ("3 steps", Persistence(PersistenceKind.STEPS, 3, 3)),
        ("3 of 5 steps", Persistence(PersistenceKind.STEPS, 3, 5)),
        ("90s", Persistence(PersistenceKind.DURATION, 90 * NS_PER_S)),
        ("2M tokens", Persistence(PersistenceKind.TOKENS, 2_000_000)),
        ("0s", AT_ONCE),
        ("0 tokens", AT_ONCE),
    ],
)
def test_holds(text: str, hold: Persistence) -> None:
    assert parse_for(text) == hold


@pytest.mark.parametrize(
    "text", ["0 steps", "5 of 3 steps", "20000 steps", "soon", "3", "٣ steps", "x tokens", 3, None]
)
def test_impossible_holds(text: object) -> None:
    with pytest.raises(ValueError, match=r"steps"):
        parse_for(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[policy]\nnome = "p"', 'p.toml:2: policy.nome: unknown key; did you mean "name"?'),
        ("[policy]\nname = 3", "p.toml:2: policy.name: 3 is not a name"),
        ("[polcy]\n", 'p.toml:1: polcy: unknown table; did you mean "policy"?'),
        (HEAD + 'mode = "watch"', "p.toml:3: policy.mode: 'watch' is not one of enforce, observe"),
        (HEAD + "[budget]\nceiling_usd = nan", "p.toml:4: budget.ceiling_usd: nan is not an amount in dollars"),
        (HEAD + "[budget]\nceiling_usd = 0", "p.toml:4: budget.ceiling_usd: a ceiling of $0"),
        (HEAD + "[budget]\nceiling_usd = 9\n" + RULE, "p.toml:4: budget.ceiling_usd: nothing watches it"),
        (HEAD + '[budget]\ntokens = "9B"\n' + RULE, "p.toml:4: budget.tokens: nothing watches it"),
        (HEAD + "[budget]\nalert_at = [0.5]", "p.toml:4: budget.alert_at: are parts of ceiling_usd"),
        (HEAD + "[budget]\nceiling_usd = 9\nalert_at = [1.5]", "p.toml:5: budget.alert_at: 1.5 is not a fraction"),
        (
            HEAD + '[budget]\nwindow = "99999"',
            "p.toml:4: budget.window: '99999' is no window: it takes 100,000 to 1,000",
        ),
        (HEAD + '[budget]\nwindow = "1.1B"', "p.toml:4: budget.window: '1.1B' is no window"),
        (HEAD + '[budget]\nwindow = "1M tokens"', 'p.toml:4: budget.window: "1M tokens" is not a count'),
        (HEAD + "[expected]\nusd_per_mtok = -1", "p.toml:4: expected.usd_per_mtok: -1 is not an amount in dollars"),
        (HEAD + "[expected]\nusd_per_mtok = 0.0000004", "p.toml:4: expected.usd_per_mtok: is below a millionth"),
        (
            HEAD + "[expected]\nusd_per_mtk = 1",
            'p.toml:4: expected.usd_per_mtk: unknown key; did you mean "usd_per_mtok"?',
        ),
        (HEAD + "[expected]\ntokens_per_s = 0", "p.toml:4: expected.tokens_per_s: 0 tokens a second are no training"),
        (HEAD + '[expected]\ntokens_per_s = "fast"', "p.toml:4: expected.tokens_per_s: 'fast' is not a number"),
        (
            HEAD + '[budget]\nceiling_usd = 9\ntokens = "10M"\n[expected]\nusd_per_mtok = 0.91\n' + BUDGET_RULE,
            "p.toml:7: expected.usd_per_mtok: 10,000,000 tokens at that price are $9.10, above ceiling_usd ($9.00)",
        ),
        (HEAD + "[expected]\nusd_per_mtok_all_in = 0", "p.toml:4: expected.usd_per_mtok_all_in: is below a millionth"),
        (
            HEAD + '[budget]\nceiling_usd = 9\ntokens = "10M"\n[expected]\nusd_per_mtok_all_in = 0.91\n' + BUDGET_RULE,
            "p.toml:7: expected.usd_per_mtok_all_in: 10,000,000 tokens at that price are $9.10, above ceiling_usd",
        ),
        (HEAD + '[halt]\ngrace = "10"', 'p.toml:4: halt.grace: "10" is not a duration'),
        (HEAD + "[halt]\ngrace = 10", "p.toml:4: halt.grace: 10 is not a duration; write it with its unit"),
        (HEAD + '[halt]\ngrace = "0s"', "p.toml:4: halt.grace: leaves no time for checkpoint"),
        (HEAD + '[halt]\nstop = "processes"\ndestroy = true', "p.toml:5: halt.destroy: contradicts stop"),
        (HEAD + "[halt]\nper_day_max = 0", "p.toml:4: halt.per_day_max: forbids every halt"),
        (HEAD + "[halt]\nwrong_max = 1001", "p.toml:4: halt.wrong_max: 1,001 is more than 1,000"),
        (HEAD + "[halt]\nwrong_max = -1", "p.toml:4: halt.wrong_max: "),
        (HEAD + '[node]\nidle_stop = "0s"', "p.toml:4: node.idle_stop: would stop the node at once"),
        (HEAD + RULE.replace("nonfinite", "nofinite"), 'did you mean "nonfinite"?'),
        (HEAD + RULE.replace('response = "halt"\n', ""), "p.toml:3: rule[1].response: is missing"),
        (
            HEAD + RULE + "skiped_streak = 3",
            'p.toml:7: rule[1].skiped_streak: unknown key for trigger "nonfinite"; did',
        ),
        ('mode = "observe"\n' + HEAD, "p.toml:1: mode: unknown key; it is a key of [policy] or [[rule]]"),
        (HEAD + '[budget]\ngrace = "1m"', "p.toml:4: budget.grace: unknown key; it is a key of [halt]"),
        (
            HEAD + RULE + 'grace = "1m"',
            'p.toml:7: rule[1].grace: unknown key for trigger "nonfinite"; it is a key of [halt]',
        ),
        (HEAD + RULE + 'include = ["x.toml"]', "; it stands above the first table"),
        (HEAD + "[[rules]]\nx = 1\n[[rules]]", 'p.toml:3: rules: unknown key; did you mean "rule"?'),
        (
            HEAD + RULE.replace('"nonfinite"', '["hang", "silence"]'),
            "p.toml:5: rule[1].trigger: is a list: several that",
        ),
        ('includ = ["x.toml"]\n' + HEAD, 'p.toml:1: includ: unknown key; did you mean "include"?'),
        (HEAD + RULE.replace("trigger", "tirgger"), 'p.toml:5: rule[1].tirgger: unknown key; did you mean "trigger"?'),
        (HEAD + "".join(RULE.replace('"r"', f'"r{n}"') for n in range(101)), "p.toml:403: rule[101]: is one more than"),
        (HEAD + RULE + "skipped_streak = 0", "p.toml:7: rule[1].skipped_streak: 0 is less than 1"),
        (HEAD + RULE + "skipped_streak = -3", "p.toml:7: rule[1].skipped_streak: -3 is negative"),
        (HEAD + RULE + f"skipped_streak = {10**18}", f"p.toml:7: rule[1].skipped_streak: {10**18} is not a count"),
        (HEAD + RULE + 'for = "5 minutes ago"', "p.toml:7: rule[1].for: "),
        (HEAD + RULE.replace("nonfinite", "hang") + 'for = "3 steps"', 'p.toml:7: rule[1].for: "3 steps" can never be'),
        (HEAD + RULE.replace("halt", "warn") + 'checkpoint = "good"', "p.toml:7: rule[1].checkpoint: has no effect"),
        (
            HEAD + RULE.replace("halt", "checkpoint") + 'checkpoint = "none"',
            "p.toml:7: rule[1].checkpoint: contradicts",
        ),
        (HEAD + 'mode = "observe"\n' + RULE + 'mode = "enforce"', "p.toml:8: rule[1].mode: cannot enforce"),
        (HEAD + RULE + RULE, 'p.toml:8: rule[2].name: "r" is the name of rule[1] too'),
        ("rule = 3\n" + HEAD, "p.toml:1: rule: is not a list of rules"),
        (HEAD + 'match = "stage1"', "p.toml:3: policy.match: is not a table of labels"),
        (HEAD + "match = { stage = 1 }", "p.toml:3: policy.match.stage: is not text"),
        ("[policy]\nname = ", "p.toml:2: not TOML: "),
        (HEAD + "[budget]\nceiling_usd = " + "9" * 5_000, "p.toml:4: a number of more than 300 digits"),
        (HEAD + "[budget]\nceiling_usd = 0x" + "F" * 5_000, "p.toml:4: a number of more than 300 digits"),
        (HEAD + "[budget]\nceiling_usd = -" + "9" * 99, "p.toml:4: budget.ceiling_usd: -" + "9" * 39 + " is not an"),
        (HEAD + '[halt]\ngrace = "' + "9" * 200 + 'd"', 'p.toml:4: halt.grace: "' + "9" * 40 + '" is not a duration'),
        ('[policy]\nname = "p"\nx = [1,\n', "p.toml:3: not TOML: "),
    ],
)
def test_each_mistake_names_its_line_and_key(text: str, error: str) -> None:
    errors = refused(text)
    assert any(error in line for line in errors), errors


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file() -> None:
    errors = refused(HEAD + 'modus = 1\n[halt]\ngrace = "x"\n' + RULE + 'for = "y"\n[node]\nidle_stop = 3\n')
    assert [int(line.split(":")[1]) for line in errors] == [3, 5, 10, 12]


def test_two_policies_of_one_name_or_for_the_same_runs_are_refused() -> None:
    policies, errors = load_policies([("a.toml", HEAD), ("b.toml", HEAD)])
    assert policies is None
    assert [str(error) for error in errors] == [
        "b.toml:1: policy.match: takes every run, as the policy in a.toml does already",
        'b.toml:2: policy.name: "p" is the name of the policy in a.toml too',
    ]


def test_a_rule_of_an_observing_policy_observes() -> None:
    policy = loaded(HEAD + 'mode = "observe"\n' + RULE).policies[0]
    assert policy.rules[0].mode is Mode.OBSERVE


def test_the_digest_names_the_texts() -> None:
    assert loaded(HEAD).digest == loaded(HEAD).digest
    assert loaded(HEAD).digest != loaded(HEAD + "# touched\n").digest


def test_the_shipped_policies_load_together() -> None:
    files = sorted(POLICIES.glob("*.toml"))
    policies, errors = load_policies([(file.name, file.read_text()) for file in files])
    assert policies is not None, [str(error) for error in errors]
    assert {policies.for_run({}, stage).name for stage in ("stage1", "stage2", "stage3", "stage4")} == {
        "stage1-1b-dense",
        "stage2-3b-moe-small",
        "stage3-8b-dense-deep",
        "stage4-70b-moe-large",
    }
    assert policies.for_run({"team": "red"}, None).name == "default"
    assert policies.for_run({}, "demo").name == "demo"


def test_the_default_enforces_what_is_certain_and_observes_what_is_statistical() -> None:
    policy = loaded((POLICIES / "default.toml").read_text()).policies[0]
    assert {rule.trigger: rule.mode for rule in policy.rules} == {
        "nonfinite": Mode.ENFORCE,
        "loss_spike": Mode.OBSERVE,
        "loss_divergence": Mode.OBSERVE,
        "loss_frozen": Mode.OBSERVE,
        "loss_vanished": Mode.OBSERVE,
        "overflow_storm": Mode.OBSERVE,
        "hang": Mode.ENFORCE,
        "log_stalled": Mode.OBSERVE,
        "budget": Mode.ENFORCE,
        "throughput_collapse": Mode.OBSERVE,
        "data_starvation": Mode.OBSERVE,
        "gpu_starvation": Mode.OBSERVE,
        "gpu_fault": Mode.OBSERVE,
        "gpu_throttled": Mode.OBSERVE,
        "restart_loop": Mode.OBSERVE,
        "straggler": Mode.ENFORCE,  # It warns.
        "memory_pressure": Mode.ENFORCE,  # It warns.
        "spot_notice": Mode.ENFORCE,
        "unsaved_work": Mode.OBSERVE,
        "silence": Mode.OBSERVE,
        "node_idle": Mode.ENFORCE,  # It warns.
    }


def test_a_plan_may_use_its_ceiling_to_the_cent() -> None:
    text = HEAD + '[budget]\nceiling_usd = 9\ntokens = "10M"\n[expected]\nusd_per_mtok = 0.9\n' + BUDGET_RULE
    assert loaded(text).policies[0].expected == Expected(900_000, None)


def test_a_policy_that_says_nothing_expects_nothing_and_counts_in_millions() -> None:
    policy = loaded(HEAD).policies[0]
    assert (policy.expected, policy.budget.window_tokens) == (Expected(None, None), MTOK)


@pytest.mark.parametrize(
    ("stage", "tokens"),
    [
        ("stage1-1b-dense", 20),
        ("stage2-3b-moe-small", 40),
        ("stage3-8b-dense-deep", 100),
        ("stage4-70b-moe-large", 240),
    ],
)
def test_stage_policies_have_their_budget_and_enforce_everything(stage: str, tokens: int) -> None:
    policy = loaded((POLICIES / f"{stage}.toml").read_text()).policies[0]
    assert policy.budget.tokens == tokens * 10**9
    assert policy.budget.ceiling_usd_micros
    assert all(rule.mode is Mode.ENFORCE for rule in policy.rules)
