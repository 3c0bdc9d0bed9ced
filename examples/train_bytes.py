"""Trains a small byte-level GPT on the Python standard library's own sources, with DeepSpeed ZeRO-2 on any machine.

    deepspeed --num_gpus 2 --no_local_rank examples/train_bytes.py --steps 200
    torchrun --nproc_per_node 2 examples/train_bytes.py --steps 200

Everything that costgov needs is one line: `shim = attach(engine, checkpoint_dir=...)`. The rest of what concerns it is
optional: the wrapped loader (exact data waits, data position in checkpoints), shim.resume(), and `--fault`, which
breaks this training on purpose so that a halt can be watched.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sysconfig
import threading
import time
from pathlib import Path

import deepspeed
import deepspeed.ops
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer_shim import attach, wrap_loader

CONTEXT = 128  # Bytes per sample.
BATCH = 8  # Samples per rank: about 70 ms per step on two slow cores.
SOURCE_BYTES = 4_000_000  # Enough not to repeat within a demonstration, little enough to read in a moment.
SLOWER_TIMES = 8  # Than the median of the steps before.
STARVED_FETCH_S_MIN = 0.5
FAULTS = (
    "none",
    "nan",
    "hang",
    "deaf",
    "collapse",
    "starve",
    "budget",
)  # budget: healthy, but dearer than its ceiling.


class Sources(Dataset):
    """Windows of CONTEXT + 1 bytes over the standard library's source text."""

    def __init__(self) -> None:
        text = bytearray()
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            text += path.read_bytes()
            if len(text) >= SOURCE_BYTES:
                break
        self.text = torch.frombuffer(text, dtype=torch.uint8)
        self.fetch_s = 0.0

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.fetch_s:
            time.sleep(self.fetch_s / BATCH)
        window = self.text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm_attention(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_mlp(x))))


class ByteGPT(nn.Module):
    """(bytes, next bytes) -> mean cross entropy in nats."""

    def __init__(self, width: int = 96, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.bytes(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


class Fault:
    """Breaks the training in one way from one step on. The last rank is the sick one where one is enough."""

    def __init__(self, kind: str, at_step: int, mark: str | None, engine: torch.nn.Module, sources: Sources) -> None:
        self.kind, self.at_step, self.mark = kind, at_step, mark
        self.engine, self.sources = engine, sources
        self.is_sick_rank = engine.global_rank == engine.world_size - 1
        self.begun = False
        self.step_began_s: float | None = None
        self.steps_s: list[float] = []  # Of the healthy ones; a single one says little on a busy machine.

    def before_forward(self) -> None:
        """Strike at the start of step `at_step`."""
        now_s = time.monotonic()
        step = self.engine.global_steps + 1  # The step that now begins.
        if step < self.at_step:
            if self.step_began_s is not None:
                self.steps_s.append(now_s - self.step_began_s)
            self.step_began_s = now_s
            return
        if step == self.at_step and not self.begun:
            self.begun = True
            self.strike()

    def strike(self) -> None:
        """What happens once."""
        if self.kind == "deaf":
            for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        if self.kind in ("nan", "deaf") and self.is_sick_rank:
            with torch.no_grad():
                self.engine.module.norm.weight[0] = float("nan")
        if self.kind == "starve":
            self.sources.fetch_s = max(STARVED_FETCH_S_MIN, self.lost_s())
        if self.mark and self.is_sick_rank and self.kind not in ("none", "budget"):
            Path(self.mark + ".tmp").write_text(f"{time.monotonic_ns()}\n")
            os.replace(self.mark + ".tmp", self.mark)

    def lost_s(self) -> float:
        """What a slow step takes beyond a healthy one."""
        return (SLOWER_TIMES - 1) * statistics.median(self.steps_s) if self.steps_s else 0.0

    def before_backward(self) -> None:
        """What happens inside every step from then on."""
        if not self.begun:
            return
        if self.kind == "collapse":
            work = torch.randn(128, 128)
            until_s = time.monotonic() + self.lost_s()
            while time.monotonic() < until_s:
                work = torch.tanh(work @ work)
        stuck = self.kind == "hang" or (self.kind == "deaf" and self.engine.global_steps >= self.at_step)
        if stuck and self.is_sick_rank:
            threading.Event().wait()  # The other ranks are already waiting for this one in a collective.


def build(args: argparse.Namespace) -> tuple[torch.nn.Module, DataLoader, Sources]:
    """Return engine, loader and data set, the same on every rank but for the samples."""
    # DeepSpeed would compile its shared-memory operator for half a minute; gloo does not need it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
    torch.manual_seed(args.seed)
    model = ByteGPT()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_clipping": 1.0,
            "steps_per_print": 10**9,
            "bf16": {"enabled": args.bf16},
            "zero_optimization": {"stage": args.zero_stage},
            # torch's AdamW: DeepSpeed's fused one is compiled first.
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        },
    )
    sources = Sources()
    sampler = DistributedSampler(sources, engine.world_size, engine.global_rank, seed=args.seed)
    return engine, DataLoader(sources, batch_size=BATCH, sampler=sampler, drop_last=True), sources


def train(args: argparse.Namespace) -> None:
    """Train to --steps, from the newest whole checkpoint where there is one."""
    engine, loader, sources = build(args)
    loader = wrap_loader(loader)
    shim = attach(engine, checkpoint_dir=args.checkpoint_dir, total_steps=args.steps)
    if not args.fresh:
        shim.resume()
    fault = Fault(args.fault, engine.global_steps + args.fault_at, args.fault_mark, engine, sources)
    while engine.global_steps < args.steps:
        loader.sampler.set_epoch(loader.epoch)
        for ids, targets in loader:
            fault.before_forward()
            loss = engine(ids.to(engine.device), targets.to(engine.device))
            fault.before_backward()
            engine.backward(loss)
            engine.step()
            if engine.global_rank == 0 and engine.global_steps % 10 == 0:
                print(f"step {engine.global_steps:4d}  loss {loss.item():.3f}", flush=True)
            if args.save_every and engine.global_steps % args.save_every == 0:
                shim.checkpoint()  # Durable, with data position: what resume() finds. DeepSpeed's own save works too.
            if engine.global_steps >= args.steps:
                break
    shim.finish()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def parse() -> argparse.Namespace:
    """Read the command line; launchers add --local_rank of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="train up to this step")
    parser.add_argument("--checkpoint-dir", default="checkpoints", help="where a checkpoint asked for is saved")
    parser.add_argument("--fresh", action="store_true", help="do not continue from the newest whole checkpoint")
    parser.add_argument("--save-every", type=int, default=25, help="steps between checkpoints; 0: only when asked")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--zero-stage", type=int, default=2, choices=(0, 1, 2, 3))
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fault", choices=FAULTS, default="none", help="break this training on purpose")
    parser.add_argument("--fault-at", type=int, default=30, help="at this step of this attempt")
    parser.add_argument("--fault-mark", help="file that receives the fault's CLOCK_MONOTONIC time in nanoseconds")
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    train(parse())
