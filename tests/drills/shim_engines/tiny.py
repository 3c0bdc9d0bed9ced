"""What the child scripts of these drills share: a tiny model, toy data, and a watch that keeps what it is told."""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import nn
from torch.nn import functional

from trainer_shim.interfaces import NoWatch
from trainer_shim.saving import checkpoint, publish

VOCAB, WIDTH, LENGTH = 256, 32, 16


class TinyModel(nn.Module):
    """Embedding, one hidden layer, cross entropy: (ids, labels) -> loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, input_ids, labels):
        logits = self.head(torch.tanh(self.hidden(self.embed(input_ids))))
        return functional.cross_entropy(logits.float().view(-1, VOCAB), labels.reshape(-1))


FETCHES = {"inside": 0, "outside": 0}  # Samples that the training thread asked for while attached, and what it showed.


def note_fetch():
    """Called for each sample."""
    phases = sys.modules.get("trainer_shim.phases")
    if phases is not None and phases.CURRENT.meter is not None:
        FETCHES["inside" if phases.CURRENT.meter.progress.fetch_ns else "outside"] += 1


class Toy(torch.utils.data.Dataset):
    """Deterministic sequences."""

    def __init__(self, size=512):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        note_fetch()
        ids = (torch.arange(LENGTH + 1) * 3 + index) % VOCAB
        return ids[:-1], ids[1:]


class KeptWatch(NoWatch):
    """Implements interfaces.Watch by keeping everything. `save_at` = the step at which a checkpoint is asked for."""

    save_at = None
    kind = "good"
    tag = "cg_drill"

    def __init__(self, hello, progress, saver, *, environ):
        self.hello, self.progress, self.saver = dict(hello), progress, saver
        self.frames, self.phases, self.boundaries, self.delegated, self.finished = [], [], [], [], []

    def start(self):
        pass

    def hello_field(self, name, value):
        self.hello[name] = value

    def step_frame(self, fields):
        self.frames.append(dict(fields))

    def phase_changed(self):
        self.phases.append(self.progress.phase)

    def at_boundary(self, step):
        self.boundaries.append(step)
        if step == self.save_at:
            self.position = self.saver.position()
            self.saver.save(self.saver.directory, self.tag, {"note": "drill"})

    def wants_save(self, step):
        self.boundaries.append(step)
        return self.kind if step == self.save_at else None

    def delegate_saved(self, path, error):
        self.delegated.append([path, error])
        rank = int(os.environ.get("RANK", "0"))
        checkpoint.write_rank_file(path, rank, {"v": 1, "rng": None, "position": self.saver.position()})
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if rank == 0:
            publish.publish(path, self.saver.final_path(path, self.progress.step, self.kind))

    def finish(self, reason, completed):
        self.finished.append([reason, completed])

    def report(self):
        kept = ("hello", "frames", "phases", "boundaries", "delegated", "finished")
        report = {name: getattr(self, name) for name in kept}
        report["progress_seq"] = self.progress.progress_seq
        report["collectives_total"] = self.progress.collectives_total
        report["collective"] = self.progress.collective
        report["fetches"] = FETCHES
        return report


def init_deepspeed():
    """Initialise one gloo rank (of WORLD_SIZE) without launcher and without compiling the shm operator."""
    import deepspeed
    import deepspeed.ops

    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend="gloo",
        auto_mpi_discovery=False,
        init_method="file://" + os.environ["DRILL_RENDEZVOUS"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        verbose=False,
    )
    return deepspeed


def write_report(report):
    """Write this rank's report where the test reads it, and leave together. Does not return."""
    with open(os.environ["DRILL_REPORT"] + "." + os.environ.get("RANK", "0"), "w", encoding="utf-8") as stream:
        json.dump(report, stream)
    sys.stdout.flush()
    if torch.distributed.is_initialized():
        # A rank that leaves while another still talks to it aborts that one inside gloo.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    # DeepSpeed's own groups stand on, and gloo's threads with them: an interpreter that ends under these may abort
    # ("terminate called without an active exception", pytorch/pytorch#179291, #190489). How it ends is not asked here.
    sys.stderr.flush()
    os._exit(0)
