"""Reading policies, at the start and at every reload: what cannot be right is refused in one line."""

from __future__ import annotations

from pathlib import Path

from governor.core.base.units import NS_PER_S, DurationNs, UsdMicros, usd
from governor.core.engine.node import NodeFacts
from governor.core.money.budgets import ScopedBudget, parse_scope
from governor.policies import files
from governor.policies.loading import policy_loader

POLICY = """
[policy]
name = "p"
[budget]
ceiling_usd = {ceiling}
[[rule]]
name = "b"
trigger = "budget"
response = "halt"
"""
PRICE = UsdMicros(100_000_000)
FACTS = NodeFacts("node-a", "boot-1", PRICE, "test", stop_bound_ns=DurationNs(360 * NS_PER_S))


def test_a_reload_to_a_ceiling_that_the_halt_itself_would_exceed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    load = policy_loader(lambda: [file], None, lambda: True, FACTS)
    file.write_text(POLICY.format(ceiling=100.0))
    policies, problems = load()
    assert (policies is not None, problems) == (True, [])
    file.write_text(POLICY.format(ceiling=9.0))  # The stop alone takes six minutes, ten dollars.
    policies, problems = load()
    assert policies is None
    assert len(problems) == 1
    assert "ceiling $9.00 is below" in problems[0]


def test_a_node_without_a_policies_directory_is_judged_by_the_packaged_policy(tmp_path: Path) -> None:
    directory = tmp_path / "policies.d"
    load = policy_loader(lambda: files.of_node(directory), None, lambda: False)
    policies, problems = load()
    assert problems == []
    assert policies is not None
    assert [policy.name for policy in policies.policies] == ["default"]
    directory.mkdir()  # An operator's own: the next reload takes it, and an empty one is a choice.
    policies, _ = load()
    assert policies is not None
    assert policies.policies == ()


def test_a_ceiling_that_was_typed_is_named_as_it_was_typed(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(POLICY.format(ceiling=100.0))
    _, [problem] = policy_loader(lambda: [file], usd(60), lambda: False)()
    assert problem.startswith("--ceiling $60.00 needs a price")
    assert "--price USD_PER_HOUR" in problem
    _, [problem] = policy_loader(lambda: [file], None, lambda: False)()
    assert problem.startswith("policy p has a ceiling")


def test_a_configured_budget_needs_a_price_and_room_for_its_own_halt(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(POLICY.format(ceiling=100.0))
    small, large = (ScopedBudget(parse_scope("stage:s1"), usd(amount), "costgov.toml") for amount in (10, 11))
    loads = policy_loader(lambda: [file], None, lambda: True, FACTS, [large])
    assert loads()[1] == []
    _, [problem] = policy_loader(lambda: [file], None, lambda: True, FACTS, [small])()
    assert problem.startswith("budget stage:s1: the ceiling $10.00 is not above $10.61, which its halt may itself cost")
    bare = '[policy]\nname = "p"\n[[rule]]\nname = "n"\ntrigger = "nonfinite"\nresponse = "halt"\n'
    file.write_text(bare)
    _, [problem] = policy_loader(lambda: [file], None, lambda: False, None, [large])()
    assert problem.startswith("costgov.toml has a budget for stage:s1, but the price of this node is unknown")
