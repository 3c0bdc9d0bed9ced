"""Policy TOML to Policy: [budget] and [expected], then the policy as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from governor.core.base.policy import (
    HALTS_PER_DAY_MAX,
    WRONG_MAX,
    Budget,
    Expected,
    HaltSettings,
    Mode,
    Policy,
    PolicySet,
    Rule,
)
from governor.core.base.units import AMOUNT_CHARS_MAX, MTOK, DurationNs, UsdMicros, format_usd, usd, why_no_amount
from governor.core.rules.trigger import Key
from governor.policies.keys import (
    BUDGET_KEYS,
    CHECKPOINTS,
    COUNT,
    DURATION,
    EXPECTED_KEYS,
    HALT_KEYS,
    INCLUDE,
    MODES,
    NODE_KEYS,
    POLICY_KEYS,
    RUN_KEYS,
    TABLES,
    PolicyError,
    alert_rules,
    hint,
)
from governor.policies.reader import PolicyText, Reader, alone
from governor.policies.rules import check_reached, read_rules
from governor.wire.toml_file import KeyPath

# Each window is a row in the journal. Below the minimum, a node with a million tokens a second would write ten rows a
# second, each about one step. Above the maximum, a run of 20B tokens would show its price fewer than twenty times.
WINDOW_TOKENS_MIN: Final = 100_000
WINDOW_TOKENS_MAX: Final = 1_000_000_000
WRONG_MOST: Final = 1_000  # As many halts as a journal keeps.
TOKENS_PER_S: Final = Key("", "number", 1.0, "")


def read_budget(reader: Reader) -> Budget:
    table = reader.table("budget", BUDGET_KEYS)
    ceiling = None
    if "ceiling_usd" in table:
        ceiling = _ceiling(reader, table["ceiling_usd"])
    tokens = reader.value(("budget", "tokens"), COUNT, table["tokens"]) if "tokens" in table else None
    if tokens == 0:
        reader.fail(("budget", "tokens"), "0 tokens are no training run")
    window = _window(reader, table["window"]) if "window" in table else MTOK
    return Budget(ceiling, tokens, _alert_at(reader, table.get("alert_at", []), ceiling), window)


def read_expected(reader: Reader) -> Expected:
    table = reader.table("expected", EXPECTED_KEYS)
    price, all_in = (_expected_price(reader, table, key) for key in ("usd_per_mtok", "usd_per_mtok_all_in"))
    speed = None
    if "tokens_per_s" in table:
        speed = reader.value(("expected", "tokens_per_s"), TOKENS_PER_S, table["tokens_per_s"])
        if speed == 0:
            reader.fail(("expected", "tokens_per_s"), "0 tokens a second are no training run; leave it out")
    return Expected(price, speed, all_in)


def _expected_price(reader: Reader, table: Mapping[str, Any], key: str) -> UsdMicros | None:
    price = _dollars(reader, ("expected", key), table[key]) if key in table else None
    if price == 0:
        reader.fail(("expected", key), "is below a millionth of a dollar, the smallest amount that we count")
    return price


def check_expected(reader: Reader, budget: Budget, expected: Expected) -> None:
    """Refuse a plan that costs more than its own ceiling: the run would be halted on plan."""
    ceiling, tokens = budget.ceiling_usd_micros, budget.tokens
    if reader.errors or ceiling is None or tokens is None:
        return
    prices = {"usd_per_mtok": expected.usd_micros_per_mtok, "usd_per_mtok_all_in": expected.usd_micros_per_mtok_all_in}
    for key, price in prices.items():
        planned = (price or 0) * tokens // MTOK
        if planned > ceiling:
            above = f"{format_usd(planned)}, above ceiling_usd ({format_usd(ceiling)})"
            reader.fail(("expected", key), f"{tokens:,} tokens at that price are {above}")


def check_watched(reader: Reader, budget: Budget, rules: Sequence[Rule]) -> None:
    if reader.errors or (budget.ceiling_usd_micros is None and budget.tokens is None):
        return
    if not any(rule.trigger == "budget" for rule in rules):
        key = "ceiling_usd" if budget.ceiling_usd_micros is not None else "tokens"
        reader.fail(("budget", key), 'nothing watches it; add a [[rule]] with trigger = "budget"')


def _ceiling(reader: Reader, value: object) -> UsdMicros | None:
    path: KeyPath = ("budget", "ceiling_usd")
    ceiling = _dollars(reader, path, value)
    if ceiling == 0:
        reader.fail(path, "a ceiling of $0 halts every run at its first step")
    return ceiling


def _dollars(reader: Reader, path: KeyPath, value: object) -> UsdMicros | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        reader.fail(path, f"{value!r:.40} is not an amount in dollars")
        return None
    try:
        return usd(value)
    except ValueError as error:
        told = (
            str(error) if isinstance(value, str) else f"{value!r:.40} {why_no_amount(repr(value)[:AMOUNT_CHARS_MAX])}"
        )
        reader.fail(path, told)
    return None


def _window(reader: Reader, value: object) -> int:
    path: KeyPath = ("budget", "window")
    errors = len(reader.errors)
    tokens: int = reader.value(path, COUNT, value)
    if len(reader.errors) == errors and not WINDOW_TOKENS_MIN <= tokens <= WINDOW_TOKENS_MAX:
        text = f"{value!r:.40} is no window: it takes {WINDOW_TOKENS_MIN:,} to {WINDOW_TOKENS_MAX:,} tokens"
        reader.fail(path, text)
    return tokens


def _alert_at(reader: Reader, value: object, ceiling: UsdMicros | None) -> tuple[float, ...]:
    path: KeyPath = ("budget", "alert_at")
    if not isinstance(value, list):
        reader.fail(path, "is not a list of fractions; write [0.5, 0.8, 0.95]")
        return ()
    if value and ceiling is None:
        reader.fail(path, "are parts of ceiling_usd, which is not given")
    for frac in value:
        if isinstance(frac, bool) or not isinstance(frac, int | float) or not 0 < frac < 1:
            reader.fail(path, f"{frac!r:.40} is not a fraction between 0 and 1")
            return ()
    return tuple(sorted({float(frac) for frac in value}))


# TOML text to Policy. Every error names file, line and key path. All are reported at once. The caller reads the files.


STOPS: Final = ("auto", "processes", "job", "instance")


def load_policies(texts: Sequence[PolicyText | tuple[str, str]]) -> tuple[PolicySet | None, list[PolicyError]]:
    """Read policies, given with their layers or as (file name, text). Returns None when there are errors."""
    return policy_set(texts, read_policies(texts))


def policy_set(
    texts: Sequence[PolicyText | tuple[str, str]], read: Sequence[tuple[Policy | None, Reader]]
) -> tuple[PolicySet | None, list[PolicyError]]:
    """The set of what `read_policies` has read from these texts. None when there are errors."""
    readers = [reader for _, reader in read]
    policies = [policy for policy, _ in read if policy is not None]
    # An error in a file that several policies include is reported once.
    errors = list(dict.fromkeys(error for reader in readers for error in reader.sorted_errors))
    if errors:
        return None, errors
    return PolicySet(tuple(policies), _digest(texts)), []


def read_policies(texts: Sequence[PolicyText | tuple[str, str]]) -> list[tuple[Policy | None, Reader]]:
    """Each policy with its reader. The policy is None when it has errors."""
    readers = [Reader(text if isinstance(text, PolicyText) else alone(*text)) for text in texts]
    read = [(_policy(reader), reader) for reader in readers]
    _check_together([(policy, reader) for policy, reader in read if policy is not None])
    return read


def _digest(texts: Sequence[PolicyText | tuple[str, str]]) -> str:
    """SHA-256 of every text that was read, includes and drop-ins too."""
    layers = [text.layers if isinstance(text, PolicyText) else (text,) for text in texts]
    return hashlib.sha256("\0".join(text for policy in layers for _, text in policy).encode()).hexdigest()


def _check_together(policies: Sequence[tuple[Policy, Reader]]) -> None:
    """Refuse two policies with the same name or for exactly the same runs: one of them would never apply."""
    names: dict[str, str] = {}
    matches: dict[tuple[tuple[str, tuple[str, ...]], ...], str] = {}
    for policy, reader in policies:
        if policy.name in names:
            reader.fail(("policy", "name"), f'"{policy.name}" is the name of the policy in {names[policy.name]} too')
        names.setdefault(policy.name, policy.source)
        match = tuple(sorted((label, tuple(sorted(values))) for label, values in policy.match.items()))
        if match in matches:
            which = "every run" if not match else "exactly the same runs"
            reader.fail(("policy", "match"), f"takes {which}, as the policy in {matches[match]} does already")
        matches.setdefault(match, policy.source)


def _policy(reader: Reader) -> Policy | None:
    """The policy, or None with the errors in `reader.errors`."""
    if reader.errors:
        return None
    for name in reader.doc:
        if name not in TABLES:
            kind = "table" if isinstance(reader.doc[name], dict) else "key"
            reader.fail((name,), f"unknown {kind}{hint(name, (*TABLES, INCLUDE))}")
    head = reader.table("policy", POLICY_KEYS)
    name = reader.name(("policy",), head)
    mode = Mode(reader.choice(("policy", "mode"), head.get("mode", "enforce"), MODES))
    match = reader.labels(("policy", "match"), head.get("match", {}))
    budget = read_budget(reader)
    expected = read_expected(reader)
    halt, per_day_max, wrong_max = _halt(reader)
    run = reader.table("run", RUN_KEYS)
    on_finish = reader.choice(("run", "on_finish"), run.get("on_finish", "keep"), ["keep", "stop"])
    node = reader.table("node", NODE_KEYS)
    rules = read_rules(reader, mode, halt)
    check_watched(reader, budget, rules)
    check_reached(reader, match, budget, rules)
    check_expected(reader, budget, expected)
    policy = Policy(
        name=name,
        mode=mode,
        match=match,
        budget=budget,
        expected=expected,
        halt=halt,
        run_on_finish=on_finish,
        node_idle_stop_ns=_idle_stop(reader, node.get("idle_stop", "off")),
        rules=(*rules, *alert_rules(budget, rules, reader.source(("budget", "alert_at")))),
        halts_per_day_max=per_day_max,
        wrong_max=wrong_max,
        source=reader.file,
    )
    return None if reader.errors else policy


def _halt(reader: Reader) -> tuple[HaltSettings, int, int]:
    table = reader.table("halt", HALT_KEYS)
    plain = HaltSettings()
    checkpoint = reader.choice(("halt", "checkpoint"), table.get("checkpoint", plain.checkpoint), CHECKPOINTS)
    stop = reader.choice(("halt", "stop"), table.get("stop", plain.stop), STOPS)
    destroy = table.get("destroy", False)
    if not isinstance(destroy, bool):
        reader.fail(("halt", "destroy"), f"{destroy!r} is not true or false")
    elif destroy and stop in ("processes", "job"):
        reader.fail(("halt", "destroy"), f'contradicts stop = "{stop}": there is no instance to destroy')
    durations = {
        key: DurationNs(reader.value(("halt", key), DURATION, table[key]) if key in table else default)
        for key, default in (
            ("grace", plain.grace_ns),
            ("term_grace", plain.term_grace_ns),
            ("kill_grace", plain.kill_grace_ns),
        )
    }
    if durations["grace"] == 0 and checkpoint != "none":
        reader.fail(("halt", "grace"), f'leaves no time for checkpoint = "{checkpoint}"; write checkpoint = "none"')
    per_day_max = reader.value(("halt", "per_day_max"), COUNT, table.get("per_day_max", HALTS_PER_DAY_MAX))
    if per_day_max == 0:
        reader.fail(("halt", "per_day_max"), 'forbids every halt; write mode = "observe" in [policy] for that')
    wrong_max: int = reader.value(("halt", "wrong_max"), COUNT, table.get("wrong_max", WRONG_MAX))
    if isinstance(wrong_max, int) and wrong_max > WRONG_MOST:
        reader.fail(("halt", "wrong_max"), f"{wrong_max:,} is more than {WRONG_MOST:,}; 0 lets no rule fall back")
    settings = HaltSettings(
        checkpoint=checkpoint,
        grace_ns=durations["grace"],
        term_grace_ns=durations["term_grace"],
        kill_grace_ns=durations["kill_grace"],
        stop=stop,
        destroy=destroy is True,
    )
    return settings, per_day_max, wrong_max


def _idle_stop(reader: Reader, value: object) -> DurationNs | None:
    if value == "off":
        return None
    idle_ns = DurationNs(reader.value(("node", "idle_stop"), DURATION, value))
    if idle_ns == 0:
        reader.fail(("node", "idle_stop"), 'would stop the node at once; write "off" or a time')
    return idle_ns
