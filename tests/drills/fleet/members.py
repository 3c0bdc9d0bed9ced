"""Governors of a fleet on one machine, beside a real etcd, with ranks that do nothing but cost."""

from __future__ import annotations

from pathlib import Path

from tests.drills.halt.conftest import Service, policy_text
from tests.drills.halt.puppet import Puppet

TEAM = "label:team=nlp"
POLICY = policy_text("fleet", checkpoint="none", grace="2s", kill_grace="2s")


class Member(Service):
    """`ceiling_usd`: of the budget of TEAM, which every rank belongs to. None: no budget is shared."""

    def __init__(self, work: Path, name: str, endpoint: str, ceiling_usd: float | None = None) -> None:
        work.mkdir()
        budget = f'[[fleet.budget]]\nscope = "{TEAM}"\nceiling_usd = {ceiling_usd}\n' if ceiling_usd else ""
        super().__init__(work, policy=POLICY, cloud=f'[fleet]\netcd = ["{endpoint}"]\n{budget}')
        self.name, self.ranks = name, list[Puppet]()
        self.config.write_text(self.config.read_text().replace('"drill"', f'"{name}"'))

    def train(self, run: str = "") -> None:
        self.ranks.append(Puppet(self.work / "run" / "trainer.sock"))
        assert "error" not in self.ranks[-1].hello(run=run or f"run-{self.name}", labels={"team": "nlp"})

    def grants(self) -> list[dict[str, object]]:
        found = self.ask({"cmd": "status"}) or {}
        return list(found["governor"]["fleet"]["grants"])

    def spent_usd(self) -> float:
        return float(self.run(f"run-{self.name}")["spend_usd"])

    def end(self) -> None:
        super().end()
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.end()
