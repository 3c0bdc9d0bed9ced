"""`costgov evidence`: what the ranks of a live run are doing, from outside. It changes nothing and halts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from governor.cli.common import (
    ExitCode,
    Failed,
    ask,
    control_option,
    exits,
    json_option,
    print_json,
    remark,
    show_line,
    told_of,
)
from governor.text.table import plain
from trainer_shim.wire import PROFILE_STEPS_MAX

FRAMES_SHOWN = 12
SHOWN_AGE_S = 2.0
PROFILE_COST = (
    "profiling {steps} step{s} of rank {rank}: they take two to three times as long, the first up to half a second more"
)


@click.command(
    short_help="Show what the ranks of a run are doing: stacks, collectives, a profile.",
    epilog=exits(ExitCode.FAILED, ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN),
)
@click.argument("run")
@click.option("--stacks", is_flag=True, help="Stacks of every thread, by py-spy (pip install 'costgov[evidence]').")
@click.option(
    "--collectives",
    is_flag=True,
    help="The last collective of each rank, and who is behind. It "
    "stops the steps for some 50 ms; so ranks are asked once in 10 s, and in between their last answer is shown.",
)
@click.option("--ras", is_flag=True, help="NCCL's own view of the job (NCCL 2.24 and newer; $NCCL_RAS_ADDR).")
@click.option(
    "--profile", "steps", type=click.IntRange(1, PROFILE_STEPS_MAX), metavar="STEPS",
    help=f"Profile so many steps of one rank, at most {PROFILE_STEPS_MAX}. They are slower. "
    "A run that stands still has none: code 1.",
)  # fmt: skip
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Whose steps --profile looks at.")
@control_option
@json_option
def evidence(
    run: str, stacks: bool, collectives: bool, ras: bool, steps: int | None, rank: int, control: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show what the ranks of the live RUN are doing now. Without an option: --stacks and --collectives.

    A run that hangs: `costgov evidence RUN` names the rank that has not entered a collective in which the others wait,
    and the line of its script where it stands. Nothing is stopped, and no step is lost.

    \b
    A run that is slow:
      costgov evidence RUN --profile 3     which operators and kernels take the
                                           time, and how much communication
                                           hides behind computing

    Stacks hold no arguments and no variables. They are taken with your own rights: as the run's user or as root.
    After a halt, `costgov incident show` has the last stack of each rank's main thread.
    """
    from governor.app.evidence import Wanted, gather

    has_default = not (stacks or collectives or ras or steps)
    wanted = Wanted(stacks or has_default, collectives or has_default, ras, steps or 0, rank)
    if steps:
        remark(PROFILE_COST.format(steps=steps, s="" if steps == 1 else "s", rank=rank))
    with told_of("the governor's answer"):
        document = gather(lambda request: ask(control, request), run, wanted, remark)
    if as_json:
        print_json(document)
    for part, show in (
        ("collectives", _show_collectives), ("stacks", _show_stacks), ("ras", _show_ras), ("profile", _show_profile),
    ):  # fmt: skip
        if part in document and not as_json:
            show(document[part])
    problem = document.get("profile", {}).get("problem")
    if problem is not None:
        raise Failed(f"no profile: {problem}")


def _show_collectives(found: Mapping[str, Any]) -> None:
    age = f", as they were {found['age_s']:.0f} s ago" if found["age_s"] >= SHOWN_AGE_S else ""
    show_line(f"Collectives{age}", "bold")
    for group in found["groups"]:
        show_line(f"  {plain(group['text'])}", "yellow" if group["behind"] else "")
    if len({row["number"] for group in found["groups"] for row in group["ranks"].values()}) > 1:
        show_line("  Ranks are asked one after another: while a run trains, they may differ by a few.", "dim")
    for rank, why in found["problems"].items():
        show_line(f"  rank {rank}: {plain(why)}")


def _show_stacks(found: list[Mapping[str, Any]]) -> None:
    for row in found:
        show_line(f"Rank {row['rank']}, pid {row['pid']}", "bold")
        if row["problem"] is not None:
            show_line(f"  {plain(row['problem'])}")
            for frame in row["last_beat"][:FRAMES_SHOWN]:
                show_line(f"    {plain(frame)}")
            if row["last_beat"]:
                show_line("  (its main thread, as the rank itself said with its last beat)", "dim")
        for thread in row["threads"]:
            if not thread["frames"]:
                continue
            state = ", holds the interpreter" if thread["gil"] else ""
            show_line(f"  {plain(thread['name'])}{state}")
            for frame in thread["frames"][:FRAMES_SHOWN]:
                show_line(f"    {plain(frame)}")
            if len(thread["frames"]) > FRAMES_SHOWN:
                show_line(f"    and {len(thread['frames']) - FRAMES_SHOWN} more (--json has them)", "dim")


def _show_ras(found: Mapping[str, Any]) -> None:
    show_line(f"NCCL RAS at {plain(found['address'])}", "bold")
    for line in [found["problem"]] if found["problem"] is not None else found["lines"]:
        show_line(f"  {plain(line)}")


def _show_profile(found: Mapping[str, Any]) -> None:
    if "wall_s" in found:
        show_line(f"Profile of {found['steps']} steps of rank {found['rank']}", "bold")
    else:
        return
    where = "on the device" if found["on_device"] else "on the CPU: no kernel was seen"
    show_line(f"  {found['wall_s']:.3f} s from the first event to the last, {where}")
    if found["communication_s"]:
        share = found["hidden_s"] / found["communication_s"]
        hidden = f", {share:.0%} of it behind computing" if found["on_device"] else ""
        show_line(f"  communication {found['communication_s']:.3f} s{hidden}")
    for title, items in (("kernels", found["kernels"]), ("operators, own time", found["operators"])):
        if items:
            show_line(f"  {title}")
        for item in items:
            show_line(f"    {item['s']:9.4f} s  {item['calls']:6} x  {plain(item['name'])}")
    show_line(f"  trace: {plain(found['path'])} (chrome://tracing, Perfetto)")
