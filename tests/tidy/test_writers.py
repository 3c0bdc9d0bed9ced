"""The finder of foreign writes sees each planted one, and nothing where everybody keeps to his own."""

from __future__ import annotations

import pytest

from tests.paths import ROOT
from tests.tidy.writers import Violation, foreign, package, writes

HOME = """
from dataclasses import dataclass, field

@dataclass
class Base:
    step: int = 0

@dataclass
class Run(Base):
    spent: int = 0
    saves: list[int] = field(default_factory=list)
    by_rank: dict[int, list[int]] = field(default_factory=dict)
    inner: "Run | None" = None

    def advance(self) -> None:
        self.spent += 1
        self.saves.append(self.spent)

def end(run: Run) -> None:
    run.spent = 0
    run.by_rank.clear()
"""
READER = """
from app.state.run import Run, end

class Heir(Run):
    def advance(self) -> None:
        self.spent += 2

def total(run: Run) -> int:
    end(run)
    made = Run(spent=1)
    saves = list(made.saves)
    saves.append(run.spent)
    return sum(saves) + len(run.by_rank.get(0, ()))
"""
HEAD = """
from collections.abc import Iterator
from app.state.run import Run

def all_of(runs: dict[str, Run]) -> Iterator[Run]:
    yield from runs.values()

def tamper(run: Run, other: Run | None, runs: dict[str, Run]) -> None:
    """
PLANTED = {
    "run.spent = 1": "Run.spent assigned",
    "run.spent += 1": "Run.spent assigned",
    "run.step, _ = 1, 2": "Base.step assigned",
    "for run.spent in range(3): pass": "Run.spent assigned",
    "del run.spent": "Run.spent deleted",
    "setattr(run, 'spent', 1)": "Run.spent assigned",
    "run.saves.append(1)": "Run.saves append",
    "run.by_rank[0] = []": "Run.by_rank […] =",
    "del run.by_rank[0]": "Run.by_rank del […]",
    "run.by_rank[0].append(1)": "Run.by_rank append",
    "run.by_rank.setdefault(0, []).append(1)": "Run.by_rank setdefault",
    "if other is not None: other.spent = 1": "Run.spent assigned",
    "if run.inner: run.inner.spent = 1": "Run.spent assigned",
    "runs['a'].spent = 1": "Run.spent assigned",
    "[one for one in all_of(runs)][0].spent = 1": "Run.spent assigned",
    "next(all_of(runs)).saves.clear()": "Run.saves clear",
    "Run.spent = 1": "Run.spent assigned",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[Violation]:
    """Every write in a package that has a reader, each planted write in another room, and one in the field's own.

    All at once: one reading of types.
    """
    top = tmp_path_factory.mktemp("planted")
    text = HEAD + "\n    ".join(PLANTED) + "\n"
    files = {
        "state/run.py": HOME,
        "state/near.py": HEAD + "run.spent = 1\n",
        "report/reader.py": READER,
        "report/writer.py": text,
    }
    for name, content in files.items():
        path = top / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        (path.parent / "__init__.py").touch()
    (top / "app" / "__init__.py").touch()
    return writes(top, ("app",))


@pytest.fixture(scope="module")
def found(planted: list[Violation]) -> list[Violation]:
    return foreign(planted)


def test_who_reads_who_inherits_and_who_calls_the_owner_writes_nothing(found: list[Violation]) -> None:
    assert [str(one) for one in found if one.module != "app.report.writer"] == []


def test_each_planted_write_is_found_where_it_stands(found: list[Violation]) -> None:
    first = HEAD.count("\n") + 1
    wanted = {f"app.report.writer:{first + row} {what}" for row, what in enumerate(PLANTED.values())}
    assert {str(one) for one in found} == wanted


# A room inside a room: an idle node is a part of the engine's node, and the state of a trigger is its own, whose first
# fields one_rank declares.
TOGETHER = {
    "governor.core.engine.idle": "governor.core.engine",
    "governor.core.rules.triggers": "governor.core.rules",
}


CACHE = ROOT / ".mypy_cache/writes"

# Fields that one module writes, for everybody else too. Each stands with the class that declares it; the module is its
# own, or the one that has the rules.
ONLY_WRITER = {
    "governor.core.runs.state.Run.life": "governor.core.runs.state",
    "governor.core.runs.state.Run.ended_at": "governor.core.runs.state",
    "governor.core.runs.state.Run.last_good": "governor.core.runs.state",
    "governor.core.runs.state.Run.last_good_at": "governor.core.runs.state",
    "governor.core.runs.state.Run.named_before": "governor.core.runs.state",
    "governor.core.halt.incident.Incident.last_good": "governor.core.halt.incident",
    "governor.core.runs.state.Run.spend_usd_micros": "governor.core.runs.state",
    "governor.core.engine.node.Node.persisted_at": "governor.core.engine.node",
    "governor.core.engine.node.Node.incidents": "governor.core.engine.node",
    "governor.core.engine.node.Node.launched": "governor.core.engine.launched_command",
    "governor.core.engine.node.Node.command": "governor.core.engine.launched_command",
    "governor.core.engine.managed_run.ManagedRun.is_separate": "governor.core.engine.launched_command",
    "governor.core.engine.managed_run.ManagedRun.follows_command": "governor.core.engine.launched_command",
    "governor.core.engine.managed_run.Launch.named": "governor.core.engine.launched_command",
    "governor.core.engine.managed_run.ManagedRun.incident": "governor.core.engine.managed_run",
    "governor.core.engine.managed_run.ManagedRun.policy": "governor.core.engine.managed_run",
    "governor.core.engine.managed_run.ManagedRun.rules": "governor.core.engine.managed_run",
    "governor.core.halt.incident.Incident.halt": "governor.core.halt.incident",
    "governor.core.money.command_account.CommandAccount.owner": "governor.core.money.command_account",
}


def strangers(found: list[Violation], only: dict[str, str]) -> list[str]:
    """The writes by another module than the field's one writer, and the fields that nobody writes."""
    told = [one for one in found if f"{one.owner}.{one.field}" in only]
    unwritten = only.keys() - {f"{one.owner}.{one.field}" for one in told}
    wrong = [str(one) for one in told if one.module != only[f"{one.owner}.{one.field}"]]
    return wrong + [f"nobody writes {name}" for name in sorted(unwritten)]


def test_a_second_writer_in_the_fields_own_package_is_found_too(planted: list[Violation]) -> None:
    only = {f"app.state.run.Run.{field}": "app.state.run" for field in ("spent", "saves", "inner")}
    line = HEAD.count("\n") + 1
    assert strangers([one for one in planted if package(one.module) == "app.state"], only) == [
        f"app.state.near:{line} Run.spent assigned",
        "nobody writes app.state.run.Run.inner",
    ]


@pytest.fixture(scope="module")
def ours() -> list[Violation]:
    return writes(ROOT, ("governor", "trainer_shim"), CACHE)


def test_a_field_with_one_writer_has_no_other(ours: list[Violation]) -> None:
    assert not strangers(ours, ONLY_WRITER)


def test_a_field_is_written_in_the_package_of_its_class_alone(ours: list[Violation]) -> None:
    def room(module: str) -> str:
        return TOGETHER.get(package(module), package(module))

    found = foreign(ours, room)
    assert not found, "give the class a method that says what is meant:\n" + "\n".join(map(str, found))
