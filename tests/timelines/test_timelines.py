"""Every [[case]] of the TOML files here: a series in, verdicts and last readings out.

The language of a series: governor/timeline/series.py.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from governor.core.policy import Policy
from governor.timeline.player import Decided, Player
from governor.timeline.series import play
from governor.wire.policy_toml import load_policies

HERE = Path(__file__).parent
POLICIES = HERE.parents[1] / "policies"
CASES = [
    pytest.param(file, case, id=f"{file.stem}-{case['name'].replace(' ', '-')}")
    for file in sorted(HERE.glob("*.toml"))
    for case in tomllib.loads(file.read_text())["case"]
]


def policy_of(file: Path, case: dict[str, Any]) -> Policy:
    """The case's own rules, else the shipped policy it names."""
    if "shipped" in case:
        text = (POLICIES / f"{case['shipped']}.toml").read_text()
    else:
        text = '[policy]\nname = "timeline"\n' + case.get("rules", tomllib.loads(file.read_text()).get("rules", ""))
    policies, errors = load_policies([(file.name, text)])
    assert policies is not None, [str(error) for error in errors]
    return policies.policies[0]


@pytest.mark.parametrize(("file", "case"), CASES)
def test_timeline(file: Path, case: dict[str, Any]) -> None:
    ranks = case.get("ranks", 2)
    player = Player(policy_of(file, case), ranks, case.get("world_size", ranks), log=case.get("log", False))
    for line in case["series"]:
        play(player, line)
    assert player.verdicts == [Decided.read(text) for text in case["verdicts"]]
    readings = {rule: finding.reading.value for rule, finding in player.findings().items()}
    assert {name: readings[name] for name in case.get("readings", {})} == case.get("readings", {})
