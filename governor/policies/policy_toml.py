"""TOML text -> Policy. Every error names file, line and key path, and all of them are reported at once.

Pure: the caller reads the files. The tables with more than a few keys have files of their own (policy_budget,
policy_rules); what they share is in policy_reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from governor.core.base.policy import HALTS_PER_DAY_MAX, HaltSettings, Mode, Policy, PolicySet
from governor.core.base.units import DurationNs
from governor.policies.policy_budget import check_expected, check_watched, read_budget, read_expected
from governor.policies.policy_keys import HALT_KEYS, INCLUDE, NODE_KEYS, POLICY_KEYS, RUN_KEYS, TABLES, hint
from governor.policies.policy_layers import PolicyText, alone
from governor.policies.policy_reader import Reader
from governor.policies.policy_rules import check_reached, read_rules
from governor.policies.policy_values import CHECKPOINTS, COUNT, DURATION, PolicyError, alert_rules

STOPS: Final = ("auto", "processes", "job", "instance")


def load_policies(texts: Sequence[PolicyText | tuple[str, str]]) -> tuple[PolicySet | None, list[PolicyError]]:
    """Read policies, given with their layers or as (file name, text). None with an error when anything is wrong."""
    read = read_policies(texts)
    readers = [reader for _, reader in read]
    policies = [policy for policy, _ in read if policy is not None]
    # A file that several of them include is wrong once.
    errors = list(dict.fromkeys(error for reader in readers for error in reader.sorted_errors))
    if errors:
        return None, errors
    return PolicySet(tuple(policies), _digest(texts)), []


def read_policies(texts: Sequence[PolicyText | tuple[str, str]]) -> list[tuple[Policy | None, Reader]]:
    """Each policy with its reader; None where that has errors."""
    readers = [Reader(text if isinstance(text, PolicyText) else alone(*text)) for text in texts]
    read = [(_policy(reader), reader) for reader in readers]
    _check_together([(policy, reader) for policy, reader in read if policy is not None])
    return read


def _digest(texts: Sequence[PolicyText | tuple[str, str]]) -> str:
    """Of every text that was read, includes and drop-ins too."""
    layers = [text.layers if isinstance(text, PolicyText) else (text,) for text in texts]
    return hashlib.sha256("\0".join(text for policy in layers for _, text in policy).encode()).hexdigest()


def _check_together(policies: Sequence[tuple[Policy, Reader]]) -> None:
    """Two policies of one name, or for exactly the same runs: one of them would never apply."""
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
    """The policy, or None with the reader's `errors` filled."""
    if reader.errors:
        return None
    for name in reader.doc:
        if name not in TABLES:
            kind = "table" if isinstance(reader.doc[name], dict) else "key"
            reader.fail((name,), f"unknown {kind}{hint(name, (*TABLES, INCLUDE))}")
    head = reader.table("policy", POLICY_KEYS)
    name = reader.name(("policy",), head)
    mode = Mode(reader.choice(("policy", "mode"), head.get("mode", "enforce"), [mode.value for mode in Mode]))
    match = reader.labels(("policy", "match"), head.get("match", {}))
    budget = read_budget(reader)
    expected = read_expected(reader)
    halt, per_day_max = _halt(reader)
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
        source=reader.file,
    )
    return None if reader.errors else policy


def _halt(reader: Reader) -> tuple[HaltSettings, int]:
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
    settings = HaltSettings(
        checkpoint=checkpoint,
        grace_ns=durations["grace"],
        term_grace_ns=durations["term_grace"],
        kill_grace_ns=durations["kill_grace"],
        stop=stop,
        destroy=destroy is True,
    )
    return settings, per_day_max


def _idle_stop(reader: Reader, value: object) -> DurationNs | None:
    if value == "off":
        return None
    idle_ns = DurationNs(reader.value(("node", "idle_stop"), DURATION, value))
    if idle_ns == 0:
        reader.fail(("node", "idle_stop"), 'would stop the node at once; write "off" or a time')
    return idle_ns
