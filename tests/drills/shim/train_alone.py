"""A training of one process without torch: steps, frames and boundaries, told by DRILL (JSON) how to behave."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from trainer_shim.progress import Progress
from trainer_shim.watcher import Watcher

options = json.loads(os.environ["DRILL"])
place = Path(options["place"])


class FileSaver:
    """interfaces.Saver over one small file."""

    loaded_from = cannot_load = None

    def __init__(self, directory):
        self.directory = directory
        self.state = 0

    def save(self, directory, tag, client_state):
        if options.get("save_fails"):
            raise OSError("the array is degraded")
        (Path(directory) / tag).mkdir(parents=True, exist_ok=True)
        (Path(directory) / tag / "model.json").write_text(json.dumps({"state": self.state, "client": client_state}))

    def pending(self):
        return False

    def load(self, directory, tag):
        content = json.loads((Path(directory) / tag / "model.json").read_text())
        self.state = content["state"]
        return content["client"]

    def position(self):
        return {"batches": self.state}

    def restore_position(self, position):
        assert position["batches"] == self.state

    def contents(self):
        return {}

    def look_at_start(self):
        pass

    def harmed(self):
        return None

    def homes(self):
        return [self.directory]

    def join_ranks(self):
        pass


saver = FileSaver(str(place / "checkpoints"))
progress = Progress(threading.get_ident())
watcher = Watcher({"run": "alone", "attempt": "a"}, progress, saver if options.get("saves", True) else None)
watcher.start()
resumed = watcher.resume() if options.get("resume") else None
if resumed is not None:
    print(f"resumed at {resumed.step}, {resumed.tokens_total} tokens", flush=True)
if options.get("steal"):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
if options.get("keeps_term"):
    signal.signal(signal.SIGTERM, lambda number, _: print("received", number, flush=True))  # As Lightning does.
progress.set_phase("train")
pause = threading.Event()
for step in range(progress.step + 1, options["steps"] + 1):
    saver.state = progress.step = step
    progress.bump("step")
    watcher.step_frame({"step": step, "attempt_step": step, "tokens_total": 10 * step, "loss": 1.0})
    if options.get("stuck_at") == step:
        os.read(0, 1)  # As in a collective: nothing of Python runs on this thread.
    if options.get("delegate"):
        if watcher.wants_save(step):
            saver.save(str(place / "theirs"), f"checkpoint-{step}", {})
            watcher.delegate_saved(str(place / "theirs" / f"checkpoint-{step}"), None)
    else:
        watcher.at_boundary(step)
    pause.wait(0.01)
watcher.finish("done", True)
if options.get("again"):
    watcher.step_frame({"step": options["steps"] + 1, "attempt_step": 1})
    watcher.at_boundary(options["steps"] + 1)
    watcher.finish("done again", True)
if options.get("close"):
    watcher.close()
    assert signal.getsignal(signal.SIGUSR1) is not watcher._signal_wakeup._handler
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
sys.exit(0)
