"""A halt over several nodes, as a node reports it that did not decide. One node has died; another swept its machine."""

from __future__ import annotations

from typing import Any

from tests.golden.report_cases import MS, OPENED_MONO, OPENED_WALL, nan_halt

_NODE = {"cloud": "aws", "gone": True, "stopped": True, "verified": True, "silent": False, "may_stop": True}
_SILENT = {**_NODE, "stage": None, "gone": False, "verified": False, "silent": True}


def _entry(after_ms: int, what: str, **detail: Any) -> dict[str, Any]:
    return {
        "mono_ns": OPENED_MONO + after_ms * MS,
        "wall_ns": OPENED_WALL + after_ms * MS,
        "what": what,
        "detail": detail,
    }


def several_nodes() -> dict[str, Any]:
    """Three nodes. The second has decided; the third fell silent meanwhile."""
    snapshot = nan_halt()
    own = {**_NODE, "node": "gpu-17", "instance": "i-0abc", "stage": "HALTED"}
    timeline = [*snapshot["timeline"]]
    timeline[3:3] = [_entry(20, "called", incident="run7.gpu-16.4"), _entry(25, "node_silent", node="gpu-18")]
    timeline += [
        _entry(7_200, "node_stopped", node="gpu-18", state="stopping"),
        _entry(7_300, "node_back", node="gpu-18"),
    ]
    return snapshot | {
        "timeline": sorted(timeline, key=lambda entry: entry["mono_ns"]),
        "decided_by": "gpu-16",
        "called": "run7.gpu-16.4",
        "wanted": "suspect",
        "nodes": [
            own,
            {**_NODE, "node": "gpu-16", "instance": "i-0def", "stage": "VERIFYING", "verified": False},
            {**_SILENT, "node": "gpu-18", "instance": "i-0fed"},
            {**_SILENT, "node": "gpu-19", "instance": "i-0bad", "stopped": False},
        ],
    }  # fmt: skip


NODE_CASES = {case.__name__: case for case in (several_nodes,)}
