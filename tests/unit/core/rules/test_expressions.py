"""CEL expressions in policies: what is refused when a policy is read, and what the others say of a run."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.findings import Reading
from governor.core.base.units import MTOK, NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.events.machine import GpuSample, HostMemory
from governor.core.money.paid_tokens import Bought, PaidTokens
from governor.core.money.token_windows import TokenMeter, Window
from governor.core.rules.expression_variables import DOUBLE, INT, VARIABLES, Value
from governor.core.rules.expressions import CHARS_MAX, check, compiled, variables_of
from governor.core.rules.triggers.expression import Expression
from governor.core.runs.state import Run
from governor.policies.parse import load_policies
from governor.timeline.player import Player
from governor.timeline.series import play
from tests.paths import ROOT
from tests.sweeps import share_of

RULE = '[policy]\nname = "p"\n[[rule]]\nname = "r"\nresponse = "halt"\ntrigger = "expression"\n'
QUIET, FIRING, UNKNOWN = Reading.QUIET, Reading.FIRING, Reading.UNKNOWN


def refused(text: str) -> list[str]:
    policies, errors = load_policies([("p.toml", text)])
    assert policies is None
    return [str(error) for error in errors]


def a_run() -> Run:
    return Run("r", 0, MonoNs(0), jsonl_only=True)


def finding(when: str, run: Run, at_s: float = 0.0) -> tuple[Reading, str]:
    said = Expression({"when": check(when)}).judge(MonoNs(int(at_s * NS_PER_S)), run)
    return said.reading, said.reason


# --- what is accepted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "loss > 5.0 && step > 1000",
        "loss > 5",  # CEL compares an int with a double; it does not add them.
        "double(step) / 2.0 > 5.0",
        "phase == 'eval' && since_step_s > 3600.0",
        "phase in ['train', \"eval\"] && !(loss < 1.0 || step % 100 != 0)",
        "step > 5 ? loss > 1.0 : step > 2 ? grad_norm > 2.0 : false",
        "stage.startsWith('s1') && (step > 5 ? loss : grad_norm) > 3.0",
        "phase != 'a && b ? c : d'",
    ],
)
def test_is_accepted(text: str) -> None:
    assert check(text) == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (" ", "is empty"),
        ("lss > 1.0", 'variable "lss" is not known; did you mean "loss"?'),
        ("accuracy > 1.0", 'variable "accuracy" is not known; known: step, attempt_step'),
        ("loss > 1.0 and step > 9", 'variable "and" is not known; here it is written &&'),
        ("not (loss > 1.0)", 'function "not" is not known; here it is written !'),
        ("loss > 1.0 and (step > 9)", 'function "and" is not known; here it is written &&'),
        ("loss > 1.0 || True", 'variable "True" is not known; here it is written true'),
        ("true || lss > 1.0", 'variable "lss" is not known'),
        ("loss", "comes to a double, not to true or false"),
        ("phase", "comes to a string, not to true or false"),
        ("1 < 2", "names no variable"),
        ("loss > ", "is no CEL expression: at character 8"),
        ("(loss > 1.0", "is no CEL expression: at character 12: missing ')'"),
        ("loss > 1.0 ? true", "is no CEL expression"),
        ("loss = 1.0", "'=' at character 6 is nothing that an expression is made of here"),
        ("{'a': loss}", "'{' at character 1 is nothing"),
        ("loss > 'a'", "types do not go together in \"loss > 'a'\" (loss is a double)"),
        ("step + loss > 1.0", "(step is an int, loss is a double)"),
        # What never runs today is a mistake all the same: the step at which it does may be hours away.
        ("step > 1000000 && loss + 1 > 2.0", 'types do not go together in "loss + 1 > 2.0"'),
        ("true || phase > 3", 'types do not go together in "phase > 3"'),
        ("step > 9 ? loss > 1.0 : phase > 1", 'types do not go together in "phase > 1"'),
        ("!(step > 1 && (loss > 1.0 || stage > 2))", 'types do not go together in "stage > 2"'),
        ("step > 1 || loss", '"loss" is a double: || takes true and false'),
        ("loss ? true : false", '"loss" stands before "?"'),
        ("(step > 5 ? 1 : 2.0) > 1", '"1" is an int and "2.0" a double'),
        ("phase == 3", '"phase == 3" compares an int with a string'),  # To CEL this is only never true.
        ("phase in ['train', 3]", "compares an int with a string"),
        ("step / 0 > 1", "cannot be computed: division by zero"),
        ("[1][step] == 1", "cannot be computed: index out of bounds"),
        ("[1, 2].all(i, i > step)", '".all" is not known'),
        ("phase.matches('(a+)+$')", '".matches" is not known'),
        ("size(phase) > 1", 'function "size" is not known; known: double, int'),
        ("loss > 1.0 || " * 40 + "true", f"has 564 characters; {CHARS_MAX} are the most"),
        ("(" * 17 + "loss > 1.0" + ")" * 17, "is nested deeper than 16 brackets"),
    ],
)
def test_is_refused_with_its_reason(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        check(text)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


ATOMS = st.sampled_from(["loss", "step", "1", "0", "2.0", "double(step)", "int(loss)", "phase", "'train'"])
SUMS = st.one_of(ATOMS, st.builds("{} {} {}".format, ATOMS, st.sampled_from(list("-+*/%")), ATOMS))
COMPARED = st.builds("{} {} {}".format, SUMS, st.sampled_from(["==", "!=", "<", ">="]), SUMS)
TEXTS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["&&", "||", "=="]), inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("({} ? {} : {}) < 2".format, inner, SUMS, SUMS),
        st.builds("!({})".format, inner),
        st.builds("phase in [{}, {}]".format, ATOMS, ATOMS),
    ),
    max_leaves=4,
)
NUMBERS = st.floats(allow_nan=False)


@settings(max_examples=share_of(400))
@given(TEXTS, st.integers(-(2**62), 2**62), NUMBERS, st.text(max_size=5))
def test_what_is_accepted_never_comes_to_anything_but_true_or_false(
    text: str, step: int, loss: float, phase: str
) -> None:
    try:
        check(text)
    except ValueError:
        return
    values: dict[str, Value] = {"step": step, "loss": loss, "phase": phase}
    try:
        assert isinstance(compiled(text).execute({name: values[name] for name in variables_of(text)}), bool)
    except (ArithmeticError, ValueError, RuntimeError):
        pass  # A division by zero, an overflow: UNKNOWN when it is judged.
    except TypeError:
        # 0 / 0 and inf - inf are NaN, which the library refuses to compare: UNKNOWN as well. No other values make one.
        assert {abs(step), abs(loss)} & {0, math.inf}, "types that do not go together were accepted"


def test_a_rule_without_an_expression_is_refused() -> None:
    for text in (RULE, RULE + 'when = ""'):
        assert any("rule[1].when: is missing" in line for line in refused(text))


def test_a_mistake_names_file_line_and_key() -> None:
    (error,) = refused(RULE + "# Why.\nwhen = 'lss > 1.0'")
    assert error.startswith('p.toml:8: rule[1].when: variable "lss" is not known')
    (error,) = refused(RULE.replace('trigger = "expression"\n', "") + "all = [\n{ trigger = 'hang' },\n"
                       "{ trigger = 'expression', when = 'loss' },\n]")  # fmt: skip
    assert error.startswith("p.toml:8: rule[1].all[2].when: comes to a double")


def test_without_the_library_the_policy_is_refused_with_what_to_install() -> None:
    """A Python of its own that sees none of the installed packages."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom governor.core.rules import expressions\n"
    program += "expressions.check('loss > 1.0')"
    found = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env={})
    said = found.stderr.splitlines()[-1]
    assert said == ("ValueError: needs the CEL library, which is not installed: pip install 'costgov[cel]'")


# --- what it says of a run ------------------------------------------------------------------------------------


def test_fires_quiet_and_unknown() -> None:
    run = a_run()
    assert finding("loss > 5.0", run) == (UNKNOWN, "no_loss")
    run.loss, run.step = 6.0, 7
    assert finding("loss > 5.0 && step > 6", run) == (FIRING, "expression_true")
    assert finding("loss > 5.0 && step > 7", run) == (QUIET, "")
    run.loss = float("nan")
    assert finding("loss > 5.0", run) == (UNKNOWN, "loss_nan")
    assert finding("step > 6 || loss > 5.0", run) == (UNKNOWN, "loss_nan"), "also where CEL would not look at it"
    run.loss = float("inf")
    assert finding("loss > 5.0", run) == (FIRING, "expression_true")
    assert finding("10 / (step - 7) > 1", run) == (UNKNOWN, "cannot_be_computed")
    assert finding("[1, 2, 3, 4, 5, 6, 7, 8][step] > 1", run) == (FIRING, "expression_true")
    run.step = 8
    assert finding("[1, 2, 3, 4, 5, 6, 7, 8][step] > 1", run) == (UNKNOWN, "cannot_be_computed")
    run.jsonl_only = False
    assert finding("loss > 5.0", run) == (UNKNOWN, "no_connection")


def test_the_evidence_is_what_it_speaks_of() -> None:
    run = a_run()
    run.loss, run.step = float("inf"), 7
    said = Expression({"when": "loss > 5.0 && step > 6"}).judge(MonoNs(0), run)
    assert said.evidence == {"loss": "inf", "step": 7}
    assert said.text == "loss > 5.0 && step > 6 (loss inf, step 7)"


def test_every_variable_has_a_value_of_its_type_or_none() -> None:
    run, at = a_run(), MonoNs(100 * NS_PER_S)
    unknown = {name for name, variable in VARIABLES.items() if variable.read(run, at) is None}
    assert set(VARIABLES) - unknown == {"phase", "world_size", "age_s", "attempt_age_s"}
    run.step = run.attempt_step = run.skipped_steps = run.tokens_total = 3
    run.loss = run.grad_norm = run.lr = run.loss_scale = run.tokens_per_s = 2.0
    run.stage, run.attempt = "s1", "a"
    run.step_times.add(1.0)
    run.step_at = run.working_since = MonoNs(40 * NS_PER_S)
    run.last_good_at = MonoNs(90 * NS_PER_S)
    run.spend_usd_micros, run.spend_rate_usd_micros_per_hour = map(UsdMicros, (MTOK,) * 2)
    meter = TokenMeter(progress_tokens=MTOK // 2, wasted_tokens=MTOK // 2, last_tokens=MTOK, last_usd_micros=MTOK)
    bought = Bought(meter=meter)
    run.paid_tokens = PaidTokens(bought, [Window(0, MTOK, DurationNs(1), UsdMicros(7), 0)])
    run.gpus = GpuSample(MonoNs(80 * NS_PER_S), "r", (0.9, 0.2), (), (1, 3), (4, 4))
    run.host_memory = HostMemory(at, 3, 4)
    run.group_memory = HostMemory(at, 1, 4, "r", "/g")
    values = {name: variable.read(run, at) for name, variable in VARIABLES.items() if name != "ranks"}
    for name, value in values.items():
        assert type(value) is {INT: int, DOUBLE: float}.get(VARIABLES[name].kind, str), name
    assert (values["since_step_s"], values["unsaved_s"], values["since_save_s"]) == (60.0, 10.0, 10.0)
    assert (values["gpu_busy_min"], values["gpu_memory_max"], values["host_memory_left"]) == (0.2, 0.75, 0.25)
    prices = {"usd_per_mtok": 1.0, "usd_per_mtok_all_in": 1.0, "usd_per_mtok_useful": 2.0, "usd_per_mtok_steady": 7e-6}
    assert {name: values[name] for name in ("spend_usd", *prices)} == {"spend_usd": 1.0, **prices}
    run.spend_rate_usd_micros_per_hour = None
    found = {name: VARIABLES[name].read(run, at) for name in values if "usd" in name}
    assert found == {"spend_usd": 1.0, "spend_rate_usd_per_hour": None, **prices}, "what was spent by then"
    bought.unpriced_ns = 1
    found = {name: VARIABLES[name].read(run, at) for name in prices}
    assert found == {**prices, "usd_per_mtok_all_in": None, "usd_per_mtok_useful": None}, "a part of its time has none"
    run.spend_usd_micros = UsdMicros(0)
    assert VARIABLES["spend_usd"].read(run, at) is None, "an unknown price is not nothing spent"
    run.gpus = GpuSample(at, "r", (0.9, None))
    assert VARIABLES["gpu_busy_min"].read(run, at) is None, "the one that is not known may be the least busy"
    run.gpus = GpuSample(MonoNs(60 * NS_PER_S), "r", (0.9,))
    assert VARIABLES["gpu_busy_min"].read(run, at) is None, "40 s old"


def test_a_rule_of_one_holds_for_steps_and_for_a_time() -> None:
    rules = RULE + "when = 'loss > 5.0'\nfor = '3 steps'\n" + (
        '[[rule]]\nname = "t"\nresponse = "warn"\ntrigger = "expression"\n'
        "when = \"since_step_s >= 20.0 && phase == 'train'\"\nfor = '10s'\n"
    )  # fmt: skip
    policies, errors = load_policies([("p.toml", rules)])
    assert policies is not None, errors
    player = Player(policies.policies[0], 2, 2)
    for line in ("hello", "steps 9 every 2s loss=2.0", "steps 4 every 2s loss=6.0", "quiet 60s"):
        play(player, line)
    told = [str(decided._replace(acts="")) for decided in player.verdicts]
    assert told == ["24s r expression_true", "56s t expression_true"]
