"""What the loops of these drills share: data whose samples are known by name, and a count that the shim has no part in.

A rank notes what it feeds to its model: which part of which sample, how many tokens that is, and how many of them are
no padding. Ranks that are fed the same part note the same name. The union over all ranks is what a step trained.
"""

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(1, str(Path(__file__).parents[1] / "shim_engines"))
from tiny import VOCAB, WIDTH, KeptWatch, TinyModel, write_report

STEPS, BATCH, LENGTH = 4, 2, 8
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
EATEN = []  # One a step: {name of the part: [tokens, no padding]}.
KEPT = []
__all__ = ["VOCAB", "WIDTH", "TinyModel"]


def init():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    # Asked for by frameworks, and never used: the group exists.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    method = "file://" + os.environ["DRILL_RENDEZVOUS"]
    torch.distributed.init_process_group("gloo", init_method=method, rank=RANK, world_size=WORLD)


def make_watch(*args, **kwargs):
    KEPT.append(KeptWatch(*args, **kwargs))
    return KEPT[0]


def sample(number, length=LENGTH):
    return (torch.arange(length + 1) * 3 + number) % VOCAB


def batch(step, place, length=LENGTH):
    """The batch of data-parallel place `place`: (ids, labels, names)."""
    numbers = [(step * 16 + place) * BATCH + each for each in range(BATCH)]
    rows = torch.stack([sample(number, length) for number in numbers])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), numbers


def eat(step, names, ids, part=0, real=None):
    """Note that this rank's model was fed `ids` at optimizer step `step`, counted from 0."""
    while len(EATEN) <= step:
        EATEN.append({})
    for row, name in enumerate(names):
        tokens = int(ids.shape[1])
        EATEN[step][f"{name}/{part}"] = [tokens, tokens if real is None else real[row]]


def train(model, optimizer, place, module=None, after=lambda: None, length_of=lambda _step: LENGTH):
    """Four steps of a loop of one's own."""
    for step in range(STEPS):
        ids, labels, names = batch(step, place, length_of(step))
        eat(step, names, ids)
        (module or model)(ids, labels).backward()
        after()
        optimizer.step()
        optimizer.zero_grad()


def end():
    kept = KEPT[0]
    frames = [
        {key: value for key, value in frame.items() if "token" in key or "nonpad" in key} for frame in kept.frames
    ]
    hello = {key: value for key, value in kept.hello.items() if "data_parallel" in key}
    write_report({"eaten": EATEN, "frames": frames, "hello": hello, "rank": RANK, "world": WORLD})


def told():
    return sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
