"""What costgov tells of a bottleneck that was put in. `python -m tests.drills.attribution.inject [NAME…]`.

Each run is a real training of two gloo ranks under a real `costgov run`. The ranks' own timers are the truth; the run's
account is read from its journal afterwards. Without a name all of them are played, with each engine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.drills.attribution.compare import EXPECTED, Row, row_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = Path(sys.executable).parent
ENGINES = ("ddp", "deepspeed", "fsdp2", "pipeline")
# What a loop can be given: two stages of a pipeline, and an optimizer that is offloaded, are an engine's own.
OF_STAGES = ("none", "bubble", "slow")
OF_ENGINE: dict[str, tuple[str, ...]] = {"bubble": ("pipeline",), "offload": ("deepspeed",)}
STEPS, RUN_MAX_S = 40, 180.0
# Other processes on whose core. With one on each, a rank that waits for data is no straggler.
HOGS: dict[str, tuple[int, ...]] = {"neighbour": (1,), "uneven": (0, 1)}
PRICE = 3600  # Dollars an hour: a microsecond is a micro-dollar.
AMOUNT = 0.15  # Seconds of a step, which takes about as long without it.
# Those that come every fifth step take so much more.
TIMES = {"eval": 2.0, "saves": 5.0, "offload": 4.0}
# Bits a second of the loopback interface, in a network namespace of its own.
WIRE = "400mbit"


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.drills.attribution.inject", description=__doc__)
    asked.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPECTED))
    asked.add_argument("--engine", choices=ENGINES, action="append", help="only this one; may be repeated")
    asked.add_argument("--repeat", type=int, default=1, metavar="N", help="each with another amount")
    asked.add_argument("--steps", type=int, default=STEPS)
    asked.add_argument("--json", action="store_true", help="one object a run instead of the table")
    asked.add_argument("--keep", type=Path, metavar="DIR", help="keep what each run leaves there")
    told = asked.parse_args()
    if unknown := [name for name in told.names if name not in EXPECTED]:
        asked.error(f"no such bottleneck: {', '.join(unknown)}")
    rows: list[Row] = []
    failed = 0
    if not told.json:
        print(Row.titles(), flush=True)
    for nth in range(told.repeat):
        for engine in told.engine or ENGINES:
            for name in told.names or EXPECTED:
                if not may_play(name, engine):
                    continue
                amount = AMOUNT * TIMES.get(name, 1.0) * (1.0 + 0.5 * nth)
                try:
                    row = play(name, engine, amount, told.steps, told.keep)
                except RuntimeError as error:
                    failed += 1
                    print(error, file=sys.stderr, flush=True)
                    continue
                rows.append(row)
                print(json.dumps(row.as_json()) if told.json else row.line(), flush=True)
    if not told.json:
        print("\n".join(["", *matrix(rows)]))
    return 0 if not failed and all(row.ok for row in rows) else 1


def may_play(name: str, engine: str) -> bool:
    if engine == "pipeline":
        return name in OF_STAGES
    return engine in OF_ENGINE.get(name, ENGINES) and (name != "wire" or has_wire())


def play(name: str, engine: str, amount: float = AMOUNT, steps: int = STEPS, keep: Path | None = None) -> Row:
    """One run. RuntimeError where it does not train."""
    with tempfile.TemporaryDirectory(prefix="inject-") as directory:  # A short path: sockets lie in it.
        work = Path(directory)
        out = work / "out"
        out.mkdir()
        with contextlib.ExitStack() as hogs:
            for place in HOGS.get(name, ()):
                hogs.enter_context(hog(place))
            code, output = run(_command(name, engine, amount, steps, out), work)
        if code != 0:
            raise RuntimeError(f"{name}, {engine}: exit code {code}\n{output[-4000:]}")
        row = row_of(name, engine, amount, out, next(work.glob("state/**/costgov.db")))
        if keep is not None:
            kept = keep / f"{name}-{engine}-{amount:.2f}"
            kept.mkdir(parents=True, exist_ok=True)
            (kept / "row.json").write_text(json.dumps(row.as_json(), indent=1))
            for told in (*out.glob("truth.*"), *work.glob("state/**/costgov.db*")):
                (kept / told.name).write_bytes(told.read_bytes())
        return row


@contextlib.contextmanager
def hog(place: int) -> Iterator[None]:
    """Another process, outside the run, on the core of the rank with this number."""
    cores = sorted(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, {{{cores[min(place, len(cores) - 1)]}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as process:
        try:
            yield
        finally:
            process.kill()


def run(argv: Sequence[str], work: Path) -> tuple[int, str]:
    """The exit code and what was printed. All of it is ended if it takes too long, or when this is interrupted."""
    environ = {
        **{name: value for name, value in os.environ.items() if name != "COSTGOV_SOCKET"},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "COSTGOV_PATHS__STATE_DIR": str(work / "state"),
        "COSTGOV_PATHS__RUNTIME_DIR": str(work / "run"),
    }
    with subprocess.Popen(
        argv, cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=RUN_MAX_S)
        except BaseException:  # costgov ends what it has started.
            process.send_signal(signal.SIGTERM)
            process.communicate()
            raise
        return process.returncode, output


def _command(name: str, engine: str, amount: float, steps: int, out: Path) -> list[str]:
    modules = "torch,deepspeed" if engine in ("deepspeed", "pipeline") else "torch"
    script = "stages.py" if engine == "pipeline" else "loop.py"
    train = [
        sys.executable, str(HERE.parent / "ranks.py"), "2", modules, str(HERE / script), engine, name,
        "--amount", str(amount), "--steps", str(steps), "--out", str(out),
    ]  # fmt: skip
    if name == "restart":  # As a scheduler requeues what has failed.
        train = ["bash", "-c", '"$@" || "$@"', "again", *train]
    governed = [str(BIN / "costgov"), "run", "--name", "inject", "--price", str(PRICE), "--", *train]
    if name != "wire":
        return governed
    narrow = f"ip link set lo up && tc qdisc add dev lo root tbf rate {WIRE} burst 1mb latency 1s"
    return ["unshare", "--net", "bash", "-c", f'{narrow} && exec "$@"', "wire", *governed]


def has_wire() -> bool:
    """Whether this user may make a network namespace with a narrow interface in it."""
    made = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 1mb latency 1s"
    try:
        return subprocess.run(["unshare", "--net", "bash", "-c", made], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def matrix(rows: Sequence[Row]) -> list[str]:
    """What was injected against what was told, and how many of them were right."""
    counted = Counter((row.injected, row.told_top) for row in rows)
    lines = [f"{injected:<12} told as {told:<24} {count:>3}" for (injected, told), count in sorted(counted.items())]
    right, near = sum(row.is_right for row in rows), sum(row.is_near for row in rows)
    larger = sum(row.is_right and row.is_outweighed for row in rows)
    last = f"{len(rows)} runs: {right} with the right cause, {near} within 15 %"
    return [*lines, "", f"{last}; of the right ones {larger} where another cause was larger, by the timers as well"]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # As Ctrl-C: what runs is ended.
    sys.exit(main())
