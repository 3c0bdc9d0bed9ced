"""Starts ranks as torchrun does, but imports once: `ranks.py COUNT MODULE,… SCRIPT [ARGUMENT…]`.

torchrun and each rank of it import torch and the framework for themselves, in two to seven seconds of processor. Here
every rank is a fork of the launcher. The store is the launcher's, as torchrun's is. The first rank that fails ends the
others. The table of trainers itself is played with torchrun, and drills of a launcher with that launcher.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path

from tests.drills.shim_engines.warm import await_ranks, load


def main() -> None:
    count, modules, argv = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    load(modules)
    if count > 1:
        fork(count)
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")


def fork(count: int) -> None:
    """Returns in each rank; the launcher waits for them, and ends."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    os.environ.update(
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="none",
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    pids = set()
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            listening.close()
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            return
        pids.add(pid)
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listening.detach())
    failed = await_ranks(pids)
    del store
    sys.exit(failed)


if __name__ == "__main__":
    main()
