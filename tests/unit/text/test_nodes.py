"""A run over several nodes in the table of `costgov status`."""

from __future__ import annotations

from typing import Any

from governor.text.nodes import decided_text, live_nodes_text, nodes_text


def row(node: str, **changes: Any) -> dict[str, Any]:
    return {
        "node": node, "cloud": "aws", "instance": f"i-{node}", "alive": True, "step": 7, "silent": False,
        "spoke_s_ago": 0.5,
    } | changes  # fmt: skip


def test_a_run_of_one_node_says_nothing_of_nodes() -> None:
    assert live_nodes_text({"over_nodes": None}) == []
    assert nodes_text({"incident_id": "a.n.1", "nodes": [{"node": "n"}]}) == []
    assert decided_text({"incident_id": "a.n.1", "node": "n", "decided_by": "n", "called": "a.n.1"}) is None


def test_it_counts_every_node_and_names_those_that_are_silent() -> None:
    nodes = [row("b"), row("c", silent=True, spoke_s_ago=12.4), row("d", silent=True, alive=False)]
    over = {"spend_usd": 12.5, "spend_rate_usd_per_hour": 300.0, "nodes": nodes, "left": [{"node": "e"}]}
    told = live_nodes_text({"over_nodes": over})
    assert len(told) == 2, "of one that had ended its part nothing is missed"
    assert "5 nodes" in told[0]
    assert "$12.50" in told[0]
    assert "node c (aws i-c)" in told[1]


def test_names_of_others_steer_no_terminal() -> None:
    over = {"spend_usd": None, "spend_rate_usd_per_hour": None, "nodes": [row("\x1b[2J", silent=True)], "left": []}
    assert "\x1b" not in "".join(live_nodes_text({"over_nodes": over}))
