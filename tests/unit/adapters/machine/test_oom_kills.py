"""Which kills are a run's: those that its group counts from the first look on, for a while after its end too."""

from __future__ import annotations

from pathlib import Path

from governor.adapters.machine.oom_kills import LOOKS_AFTER_END, OomKillWatch


class Groups:
    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"

    def put(self, pid: int, group: str, kills: int) -> None:
        (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::{group}\n")
        self.count(group, kills)

    def count(self, group: str, kills: int) -> None:
        directory = self.cgroups / group.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "memory.events").write_text(f"oom 9\noom_kill {kills}\noom_group_kill 0\n")


def test_only_what_came_after_the_first_look_counts(tmp_path: Path) -> None:
    groups, live = Groups(tmp_path), {"llama": 7, "no group": 8}
    groups.put(7, "/job", 3)
    watch = OomKillWatch(dict, groups.proc, groups.cgroups)
    assert watch.look(live) is None
    groups.count("/job", 5)
    assert watch.look(live) == {"llama": 2}
    (groups.cgroups / "job" / "memory.events").unlink()
    assert watch.look(live) == {"llama": 2}, "the group has gone, and what was seen stays"
    groups.put(17, "/next", 8)
    live["llama"] = 17
    assert watch.look(live) is None, "of another attempt"


def test_an_ended_run_is_looked_at_a_few_times_more(tmp_path: Path) -> None:
    groups, live = Groups(tmp_path), {"llama": 7}
    groups.put(7, "/job", 0)
    watch = OomKillWatch(dict, groups.proc, groups.cgroups)
    assert watch.look(live) is None
    live.clear()
    groups.count("/job", 1)
    looks = [watch.look(live) for _ in range(LOOKS_AFTER_END)]
    assert looks == [{"llama": 1}] * (LOOKS_AFTER_END - 1) + [None]
