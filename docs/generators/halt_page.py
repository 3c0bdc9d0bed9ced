"""docs/reference/halt.md: the halt as a diagram and as its whole table, both from governor.core.halt.table."""

from __future__ import annotations

from collections.abc import Iterable

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.effects import HaltEffect
from governor.core.halt.table import LIVE_STATES, TRANSITIONS, Cell, Fact, Halt, HaltPlan, HaltState, StopTarget

_HEAD = """# The halt

<!-- Drawn from governor/core/halt/table.py by `make docs`: change it there. -->

One complete table decides every halt. For each state but the last, and for each fact that may become known, it says
which state comes next and which effects follow. There is no default row, and a missing cell stops the import.

- **Escalation never goes back.** The one exception is `verifying`, which may return to `stopping` on a harsher rung.
- **`halted` means observed.** Where processes were all there was to end, they are gone. Otherwise the provider was asked
  again, and bills no more.
- **In `needs_human`** a person has been called, and the governor goes on trying.
- **After a restart** the governor repeats the state's effects. Each is idempotent per incident. What is repeated gets its
  time again, a few times at most. The grace of the checkpoint request is never extended.
- **The stop of an unused node** (`idle_stop`, `on_finish = "stop"`) is a halt of the pseudo-run `@node`. It begins at
  `stopping`, because there is nothing to save and no process to end. It climbs to the forced stop at most. Each stop in it waits until
  nobody has been seen for the whole idle time; after a restart that time begins anew. Whoever comes before the provider
  has accepted closes it as `abandoned` ([why](../adr/0014-stopping-a-node-nobody-uses.md)).

## Which processes a halt ends

The run's launcher, its ranks and all below them; and what has left that tree, by two forks, `setsid`, `nohup`, tmux, another name or an empty
environment. A process belongs to the run, whoever its parent is now, if one of these holds:

| sign | since when | under |
|---|---|---|
| It carries the mark of the launch: a soft limit (RLIMIT_LOCKS, which the kernel does not enforce) that everything inherits. | the command's start | `costgov run` |
| The same, set by the rank itself. | `attach()` | the service |
| It is in the control group that was made for the command, by root or where a systemd unit is the user's (`Delegate=yes`, or one of the user's own manager). | the command's start | `costgov run` |
| It is in a control group that began with the run: a systemd scope or service, a Slurm step. Not a login's or a container's. This and a mark count while no other run lives there. | the first hello | the service |
| It is in a session or process group that the run began. | always | both |

`costgov run` is also the parent of every orphan of its command (a subreaper). A shell in a tmux session that the run started is the run's. Whatever stands
below `costgov run` is its command's, even without one of these signs, but for what costgov started itself: that has a limit of its own. The orphans of others
do not come to it: where they would, as pid 1 of a container (`docker exec`) and where it had children before it became costgov (`server & exec costgov run`),
it goes on as a child of a small process that takes its place, reaps, passes signals on and ends with its exit code.

What a server from before starts for the run (a window of an older tmux, a unit of the user's systemd, a job of `at`) inherits nothing from it. Under
`costgov run` it is ended if it is the same user's and has the launch's mark in its environment (`COSTGOV_MARK`; `at` hands it over, tmux with
`new-window -e COSTGOV_MARK=$COSTGOV_MARK`, `systemd-run -E COSTGOV_MARK`). A window without it that began in the command's directory while the run was going on
is named as `not ended` and lives: the run's user may have opened it for something else. The service looks into nobody's environment.

Nothing else is ended. What may be the run's and shows none of these signs is named in the incident as `not ended`, at most 16 of them: orphans of
the same user and control group that began between the launch and the first hello, and processes of the run that became another user's (`sudo`).
Under `costgov run` as root (with CAP_KILL) such processes end with the command, whose entry point may have become another user (`gosu`, `su-exec`, `setpriv`,
`runuser`), and so does a command of root whose rank is another user's: but for root's managers (`sshd`, a container's) and their children, and for a user with
another run below the command. Root's own run ends such a manager, unless another user's process stands below it.
Exit code 86 and "no process of the run is left" say that nothing with a sign is left.

A command's own control group (version 2) is made beside `costgov run`, below the group in which that is: limits and the end of a unit, a container or a
login hold for it as before, and `costgov run` stays where it is. No process leaves it by anything that it does to itself. It is looked at besides the
process table: a halt is complete only when the kernel says that it is empty. After SIGKILL to each process it is ended as a whole (`cgroup.kill`), with
processes that became another user's, and with forks under way; not while one of root's managers (`sshd`, `slurmstepd`, a container's) is in it: that is
left alone with what it has begun, and named, and the halt is complete when nothing else is left there. The group is removed at the end; what a killed `costgov run` leaves, the next start removes. Where none may be made (a read-only
`/sys/fs/cgroup`, version 1, a Slurm step) the other signs hold. What other services begin for the run is in their groups, and not in this one: `at`, cron,
`systemd-run`, `docker run`, a tmux server from before.

Tried by hand on 23 November 2026, in a container with a booted systemd 252 (Linux 6.18): a halt of a run that had started what drops its mark, and what
forks from process to process. In a `Delegate=yes` unit, one of the user's manager and both kinds of Slurm job, what leaves by `setsid` and double forks, too.

| Where `costgov run` was | Its own group | What lived on after the halt |
|---|---|---|
| a service or a scope of root's | yes | nothing |
| a service with `User=` and `Delegate=yes` | yes | nothing |
| a scope or a service of the user's own manager (`systemd-run --user`), with and without `Delegate=yes` | yes | nothing |
| a service with `User=`, without `Delegate=yes` | no | what had dropped its mark, until the unit ended |
| Slurm 22.05.8 (`proctrack/cgroup`, `cgroup/v2`, `task/none`): `srun costgov run -- CMD`, and a batch script | no | what had dropped its mark, until the step or job ended |
| the same, a batch script: `costgov run -- srun CMD` | no; the step's is the run's | nothing |

So under Slurm `costgov run -- srun CMD` is the better one. Where it is inside a step, let `costgov run` be the step's own process: `srun costgov run …`, or
`exec costgov run …` in a script. A shell around it died of `scancel`'s SIGTERM, and the step was over before the command's end was noted. A group that is made
inside a step hides its processes from Slurm: they outlived `scancel` and the job, or kept the step from ending. (The machine's kernel had control groups
of version 1 as well, with which Slurm's `cgroup/v2` does not start: their lines were hidden from /proc/PID/cgroup.)

"""

_STAGES = {
    HaltState.ARMED: "An incident is open. Nothing has been done yet.",
    HaltState.ASKED: "The trainer was asked to save, then to exit. Lasts for the grace at most.",
    HaltState.SAVING: "The trainer says that it saves. Still within the same grace.",
    HaltState.WAITING: "Of several nodes, that of rank 0 goes last: it hosts the store of the others. A bounded wait.",
    HaltState.TERMED: "SIGTERM was sent to the launcher, the ranks, and whatever else is the run's.",
    HaltState.KILLED: "SIGKILL was sent.",
    HaltState.STOPPING: "The provider or scheduler was asked to end the spending. Rungs: 0 stop, 1 force, 2 destroy.",
    HaltState.VERIFYING: "The provider accepted. Billing is read back until it has ended.",
    HaltState.NEEDS_HUMAN: "The halt cannot be finished from here. A person was called. Everything is tried again, without end.",
    HaltState.HALTED: "Observed: the halt is complete. Final.",
}


def render() -> str:
    stages = "".join(f"| `{stage.value}` | {_STAGES[stage]} |\n" for stage in HaltState)
    tables = "".join(_table(stage) for stage in LIVE_STATES)
    return f"{_HEAD}{_diagram()}\n| state | meaning |\n|---|---|\n{stages}{tables}"


def _diagram() -> str:
    edges: dict[tuple[HaltState, HaltState], list[str]] = {}
    for (stage, fact), cell in TRANSITIONS.items():
        for to in cell.to:
            if to is not stage:
                edges.setdefault((stage, to), []).append(fact.value)
    lines = [f"    {stage.value} --> {to.value}: {', '.join(facts)}" for (stage, to), facts in edges.items()]
    begin = f"    [*] --> {HaltState.ARMED.value}"
    end = f"    {HaltState.HALTED.value} --> [*]"
    return "\n".join(["```mermaid", "stateDiagram-v2", begin, *lines, end, "```", ""])


def _table(stage: HaltState) -> str:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for fact in Fact:
        cell = TRANSITIONS[stage, fact]
        to = ", ".join("stay" if target is stage else f"→ `{target.value}`" for target in cell.to)
        rows.setdefault((to, _effects(stage, cell), cell.why), []).append(f"`{fact.value}`")
    body = "".join(f"| {', '.join(facts)} | {to} | {effects} | {why} |\n" for (to, effects, why), facts in rows.items())
    return f"\n## In `{stage.value}`\n\n| fact | next | effects | why |\n|---|---|---|---|\n{body}"


def _effects(stage: HaltState, cell: Cell) -> str:
    """Every kind of effect that the cell may order, over the plans that it distinguishes."""
    ordered: dict[str, None] = {}
    for halt, plan in _samples(stage):
        _, effects = cell.act(halt, _LATER, plan)
        ordered.update(dict.fromkeys(_names(effects)))
    return ", ".join(ordered) or "–"


def _names(effects: Iterable[HaltEffect]) -> Iterable[str]:
    return (f"`{type(effect).__name__}`" for effect in effects)


_LATER = MonoNs(600 * NS_PER_S)


def _samples(stage: HaltState) -> Iterable[tuple[Halt, HaltPlan]]:
    """A halt in this stage under each target, with rungs left and without, before its first stop and after it."""
    second = DurationNs(NS_PER_S)
    for target in (StopTarget.INSTANCE, StopTarget.PROCESSES):
        if target is StopTarget.PROCESSES and stage in (HaltState.STOPPING, HaltState.VERIFYING):
            continue  # Never reached: there is nothing to stop at a provider.
        for rung_max in (0, 1):
            plan = HaltPlan("good", second, second, second, second, target, second, second, rung_max)
            stops = int(stage in (HaltState.STOPPING, HaltState.VERIFYING, HaltState.NEEDS_HUMAN))
            yield (
                Halt(
                    "i", "r", "", MonoNs(0), stage, MonoNs(0), _LATER, _LATER, rung_attempts=stops, stop_attempts=stops
                ),
                plan,
            )
