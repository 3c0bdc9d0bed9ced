"""One halt, for real, on this machine: `python examples/demo.py --fault nan|hang|deaf|collapse|starve|budget|none`.

Starts a cloud of the demo's own on loopback, then runs the one command that a user would type: `costgov run` around a
DeepSpeed training with two ranks. The training breaks on purpose; what follows is observed, never assumed. Exits 0 only
if everything that the fault calls for was seen, by the governor and by this program's own look at processes and cloud.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BIN = Path(sys.executable).parent
FAULTS = ("nan", "hang", "deaf", "collapse", "starve", "budget", "none")
HALTED = 86  # docs/reference/cli.md: the exit code of a command that costgov halted.
CLOUD_READY_S = 30.0
RUN_S = 180.0  # A demonstration takes about a minute; after this something is wrong, and it says so.
PRICE_USD_PER_HOUR = 55.04  # An 8×H100 node on demand, as the built-in table has it.
CEILING_USD = (
    4.65  # FAULT=budget: the price of the stop itself, some $3.90, and three quarters of a minute of training.
)
STEPS = {"none": 120}
PROGRESS_S = {"budget": "12", "none": "6"}  # Those train longest; the whole has to fit on one screen.
# What must have been seen, in this order. A hung or deaf training cannot save: there the work since the last good
# checkpoint is lost, and the report says so.
POLITE = ("verdict", "asked", "agreed", "saved", "exited", "stop_accepted", "verified", "halted")
STUCK = ("verdict", "asked", "exited", "stop_accepted", "verified", "halted")
EXPECTED = {"nan": POLITE, "collapse": POLITE, "starve": POLITE, "budget": POLITE, "hang": STUCK, "deaf": STUCK}


@contextlib.contextmanager
def cloud(work: Path) -> Iterator[dict[str, Any]]:
    """The demo's cloud for as long as the block lasts."""
    ready = work / "cloud.json"
    argv = [sys.executable, str(HERE / "demo_cloud.py"), "--ready-file", str(ready), "--stopping-s", "2"]
    with open(work / "cloud.log", "wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + CLOUD_READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"demo: the demo's cloud did not start; see {work / 'cloud.log'}")
            time.sleep(0.05)
        yield json.loads(ready.read_text())
    finally:
        process.terminate()
        process.wait(10)


def configure(work: Path, facts: dict[str, Any]) -> Path:
    """Write the costgov.toml that a user would have: a price and a cloud."""
    config = work / "costgov.toml"
    config.write_text(
        f"""[node]
name = "demo"
price_usd_per_hour = {PRICE_USD_PER_HOUR}
price_source = "list price, 8xH100"

[paths]
state_dir = "{work}/state"
runtime_dir = "{work}/run"

[metrics]
port = 0

[cloud]
provider = "aws"

[cloud.aws]
endpoint = "{facts["endpoint"]}"
metadata_endpoint = "{facts["metadata_endpoint"]}"
survives_stop = true
"""
    )
    return config


def command(fault: str, work: Path, config: Path) -> list[str]:
    train = [
        "deepspeed", "--num_gpus", "2", "--no_local_rank", "--master_port", str(free_port()),
        str(HERE / "train_bytes.py"), "--steps", str(STEPS.get(fault, 2000)),
        "--checkpoint-dir", str(work / "checkpoints"),
        "--fault", fault, "--fault-at", "60", "--fault-mark", str(work / "fault"),
    ]  # fmt: skip
    return [
        "costgov", "run", "--config", str(config), "--policy", str(ROOT / "policies" / "demo.toml"),
        *(["--ceiling", str(CEILING_USD)] if fault == "budget" else []),
        "--name", f"demo-{fault}", "--log", str(work / "train.log"), "--progress", PROGRESS_S.get(fault, "3"),
        "--fault-mark", str(work / "fault"), "--", *train,
    ]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def state_of_instance(facts: dict[str, Any]) -> str:
    """Ask the cloud ourselves, past the governor."""
    with urllib.request.urlopen(facts["control"], timeout=10) as reply:
        return str(json.load(reply)["state"])


def faults_of(fault: str, work: Path, code: int, facts: dict[str, Any]) -> list[str]:
    """Everything that should have been seen and was not."""
    reports = sorted((work / "state" / "incidents").glob("*.json"))
    if fault == "none":
        wrong = [f"the command ended with {code} instead of 0"] if code else []
        return [*wrong, *(f"a healthy run was halted: {report.name}" for report in reports)]
    if code != HALTED:
        return [f"the command ended with {code} instead of {HALTED}; see {work / 'train.log'}"]
    if len(reports) != 1:
        return [f"{len(reports)} incident reports instead of one"]
    incident = json.loads(reports[0].read_text())
    seen = [entry["what"] for entry in incident["timeline"]]
    wrong = [f"not observed: {what}" for what in EXPECTED[fault] if what not in seen]
    first = [seen.index(what) for what in EXPECTED[fault] if what in seen]
    wrong += ["out of order: " + ", ".join(seen)] if first != sorted(first) else []
    if "saved" in EXPECTED[fault]:
        checkpoint = incident["checkpoint"] or {}
        if checkpoint.get("verified_by") != "governor":
            wrong.append(f"the checkpoint was not verified by the governor: {checkpoint}")
    for target in incident["targets"]:
        if is_running(target["pid"], target["start_ticks"]):
            wrong.append(f"process {target['pid']} still runs")
    state = state_of_instance(facts)
    return [*wrong, *([f"the instance is {state}"] if state not in ("stopped", "terminated") else [])]


def is_running(pid: int, start_ticks: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z" and int(fields[19]) == start_ticks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fault", choices=FAULTS, default="nan")
    fault = parser.parse_args().fault
    work = Path(tempfile.mkdtemp(prefix=f"costgov-demo-{fault}-"))
    began = time.monotonic()
    with cloud(work) as facts:
        config = configure(work, facts)
        argv = command(fault, work, config)
        print(f"demo: EC2 (moto) and its metadata on loopback; instance {facts['instance_id']}; files in {work}")
        train = shlex.join(argv[argv.index("--") + 1 :][:4])
        print(f"$ COSTGOV_STAGE=demo {shlex.join(argv[:8])} … -- {train} … --fault {fault}")
        environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        environ["COSTGOV_STAGE"] = "demo"  # What policies/demo.toml is for: its limits would halt a real run.
        environ.pop("COSTGOV_SOCKET", None)
        process = subprocess.Popen(argv, env=environ)
        try:
            code = process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # Goes on to the training: nothing is left behind.
            process.wait(RUN_S)
            print(f"demo: FAILED: nothing came of it in {RUN_S:.0f} s; see {work}")
            return 1
        wrong = faults_of(fault, work, code, facts)
    for line in wrong:
        print(f"demo: FAILED: {line}")
    if not wrong:
        what = "trained to its end, not halted" if fault == "none" else "every step of the halt was observed"
        print(f"demo: ok: {what} ({time.monotonic() - began:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
