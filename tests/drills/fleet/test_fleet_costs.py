"""Three real governors and a real etcd: what the fleet has cost is what their three ledgers have charged."""

from __future__ import annotations

import contextlib
import json
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

from governor.core.fleet.cost_rows import COST_ROWS, found_in
from tests.contract.fleet.etcd_server import Member as Etcd
from tests.drills.fleet.conftest import MakeMember
from tests.drills.fleet.shared import opened
from tests.drills.halt.conftest import BIN, SAFETY_S, configuration


def cost(config: Path, *words: str) -> dict[str, Any]:
    argv = [str(BIN / "costgov"), "cost", "--config", str(config), "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SAFETY_S)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def by_key(*documents: dict[str, Any]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for group in (group for document in documents for group in document["groups"]):
        found[group["key"]] = found.get(group["key"], Decimal(0)) + Decimal(group["usd"])
    return found


def nodes_seen(server: Etcd) -> set[str]:
    with contextlib.closing(opened(server.url)) as store:
        found = [found_in(kept) for kept in store.range(COST_ROWS, 1_000).rows]
    return {one.holder.node for one in found if one is not None}


def test_the_fleets_costs_are_the_sum_of_its_ledgers_also_behind_a_restart(
    etcd: Etcd, short_tmp: Path, member: MakeMember
) -> None:
    elsewhere = configuration(short_tmp, f'[fleet]\netcd = ["{etcd.url}"]\n')
    a, b, c = members = [member(name) for name in "abc"]
    a.train("llama")
    b.train("llama")
    c.train("qwen")
    c.until(lambda: c.run("qwen").get("spend_usd", 0) > 0.1, "it has spent something")
    c.kill9()
    c.start()
    # Half a minute after its start each has written: nobody has ended yet.
    a.until(lambda: nodes_seen(etcd) == {"a", "b", "c"}, "all three have written")
    alive = cost(elsewhere, "--fleet")
    assert alive["as_of"] is not None
    for one in members:
        one.end()
    whole, parts = cost(elsewhere, "--fleet"), [cost(one.config) for one in members]
    assert set(by_key(whole)) == {"llama", "qwen", "(unallocated)"}
    assert by_key(whole) == by_key(*parts)
    assert Decimal(whole["total"]["usd"]) == sum(Decimal(part["total"]["usd"]) for part in parts)
    assert whole["total"]["node_time_ns"] == sum(part["total"]["node_time_ns"] for part in parts)
    assert (whole["nodes"], whole["as_of"], whole["unreadable"]) == (3, None, 0)
    assert Decimal(alive["total"]["usd"]) < Decimal(whole["total"]["usd"])
