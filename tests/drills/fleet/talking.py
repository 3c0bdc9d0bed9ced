"""Governors that tell each other, beside one training: how a drill begins, what each node did by when, what all know.

`costgov.toml` of each node names a secret and no address: a governor learns of the others from MASTER_ADDR alone.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.drills.fleet.governors import Governor
from tests.drills.fleet.nodes import Fleet, Node, until
from tests.drills.fleet.training import Training
from tests.drills.halt.conftest import BIN, policy_text

BAD_RANK = 3  # The second one of node 2.
# Where a node is lost, no rank can save: nobody's work is worth 30 s there.
HASTY = policy_text("fleet", grace="4s", term_grace="2s")
# What the table shows, in the order in which a halt notes it.
SHOWN = ("verdict", "asked", "saved", "rank_saved", "term", "exited", "stop_requested", "verified", "halted")


class Talk:
    """A fleet whose governors talk, and its training. `governors` has one for each node, in their order."""

    def __init__(self, made: Fleet, training: Training) -> None:
        self.made, self.training = made, training
        self.governors: list[Governor] = []
        self.secret = secrets.token_hex(32)

    def govern(
        self, *, addresses: Sequence[str] = (), toml: str = "", each: dict[int, dict[str, Any]] | None = None,
        **all_: Any,
    ) -> None:  # fmt: skip
        """A governor on each node. `each`: options of Governor for the nodes with these numbers, beside `all_`."""
        for node in self.made:
            path = node.place / "peers.secret"
            path.write_text(self.secret)
            path.chmod(0o600)
            peers = f'[peers]\nsecret_file = "{path}"\naddresses = {json.dumps(list(addresses))}\n'
            self.governors.append(node.new_governor(toml=peers + toml, **all_, **(each or {}).get(node.number, {})))
        for governor in self.governors:
            governor.begin()
        for governor in self.governors:
            governor.await_answer()

    def begin(self, **options: Any) -> None:
        """Govern with these options, launch, and wait until all train and all governors know each other."""
        self.govern(**options)
        self.training.launch()
        self.training.know()
        self.until_all_talk()

    def until_all_talk(self, beyond: int = 3) -> None:
        """Wait until every rank trains, and every governor has heard all others of this launch."""
        for governor in self.governors:
            governor.until(lambda one=governor: self._talks(one, beyond), "it trains, and hears every other node")

    def _talks(self, governor: Governor, beyond: int) -> bool:
        run = governor.run()
        heard = (run.get("over_nodes") or {"nodes": []})["nodes"]
        ranks = sum(row["ranks"] for row in heard) + self.training.ranks_per_node
        return bool((run.get("step") or 0) > beyond and len(heard) == len(self.made) - 1) and ranks == len(
            self.training.ranks
        )

    def on(self, number: int) -> Governor:
        return self.governors[number - 1]

    def until_halted(self, *numbers: int) -> None:
        """Wait for the end of the halt on these nodes, or on all."""
        for governor in self._chosen(numbers):
            governor.until_stage("HALTED", "NEEDS_HUMAN")

    def _chosen(self, numbers: Iterable[int]) -> list[Governor]:
        chosen = list(numbers)
        return [one for one in self.governors if not chosen or one.node.number in chosen]

    # What each node says of it.

    def shown(self, governor: Governor) -> Any:
        """What `costgov incident show last --json` says there, as a person would ask."""
        assert governor.incident()
        return json.loads(governor.node.run([str(BIN / "costgov"), "incident", "show", "last", "--json"]))

    def until_all_know(self, *numbers: int, what: str = "verified") -> None:
        """Wait until each of these nodes knows of each of them (or of all) that its part is over."""
        names = {governor.node.name for governor in self._chosen(numbers)}
        for governor in self._chosen(numbers):

            def look(one: Governor = governor) -> bool:
                rows = one.incident()["nodes"]
                return names <= {row["node"] for row in rows if row["gone"] and row[what]}

            governor.until(look, f"{what} of {sorted(names)}")

    def until_spend_adds_up(self, *numbers: int) -> int:
        """Wait until each node's sum over all nodes is what their ledgers have, in micro-dollars; returns that."""
        chosen = self._chosen(numbers)

        def look() -> int | None:
            said = [governor.run() for governor in chosen]
            whole = sum(_micros(run["spend_usd"]) for run in said)
            sums = {_micros(run["over_nodes"]["spend_usd"]) for run in said}
            return whole if sums == {whole} else None

        return int(until(look, f"one sum on {[one.node.name for one in chosen]}"))

    def ids(self) -> set[str]:
        """By which ids the halt is called, by all governors that answer or have left their reports."""
        return {row["called"] for governor in self.governors for row in governor.reports()}

    def stops(self, node: Node) -> tuple[int, int]:
        """How often a stop of its instance was asked for, and how often it really ended."""
        return self.made.stops(node), node.cloud.times_ended

    def when(self, governor: Governor, what: str) -> int | None:
        """When its incident has noted this first, on the clock that all nodes share. None: never."""
        entries = [one for report in governor.reports() for one in report["timeline"] if one["what"] == what]
        return min((int(entry["mono_ns"]) for entry in entries), default=None)

    def figures(self) -> str:
        """A row for each node: seconds from the first verdict until it noted each step of its halt."""
        seen = {one.node.name: {what: self.when(one, what) for what in SHOWN} for one in self.governors}
        first = min((row["verdict"] for row in seen.values() if row["verdict"] is not None), default=0)
        lines = ["node     " + " ".join(f"{what:>14}" for what in SHOWN)]
        for name, row in seen.items():
            cells = ["-" if at is None else f"{(at - first) / 1e9:.2f}" for at in row.values()]
            lines.append(f"{name:<9}" + " ".join(f"{cell:>14}" for cell in cells))
        return "\n".join(lines)


def _micros(usd: float) -> int:
    return round(usd * 1_000_000)


@contextlib.contextmanager
def talking(made: Fleet, **training: Any) -> Iterator[Talk]:
    """A training that is not launched yet, on these nodes. What runs ends with the nodes."""
    with Training(made, **training) as trains:
        yield Talk(made, trains)
