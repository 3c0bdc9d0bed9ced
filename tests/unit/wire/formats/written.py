"""Writes a run in each text format, as its framework's own code prints it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

LENGTH = 2048
BATCH = 64
GPUS = 8
BEGAN_S = 1_750_000_000.0


@dataclass(frozen=True)
class Did:
    """One step: what it took, and when it ended, in seconds since the run began."""

    step: int
    loss: float
    norm: float
    took_s: float
    ended_s: float
    began_s: float = BEGAN_S  # The run, by the wall clock.

    @property
    def samples(self) -> int:
        return self.step * BATCH

    @property
    def rate(self) -> float:
        """Tokens a second of one GPU."""
        return BATCH * LENGTH / GPUS / self.took_s

    def date(self, form: str = "%Y-%m-%d %H:%M:%S.%f") -> str:
        return datetime.fromtimestamp(self.began_s + self.ended_s, UTC).strftime(form)


Writer = Callable[[Sequence[Did]], Iterator[str]]


def run(steps: int, *, broken_from: int | None = None, slow_from: int | None = None, first: int = 1) -> list[Did]:
    """A run of 2 s a step, healthy but for what is asked."""
    random = Random(steps)
    found: list[Did] = []
    ended_s = 30.0
    for step in range(first, first + steps):
        is_broken = broken_from is not None and step >= broken_from
        took_s = 2.0 * random.uniform(0.97, 1.03) * (20 if slow_from is not None and step >= slow_from else 1)
        ended_s += took_s
        loss = math.nan if is_broken else 2.0 + 8.0 / math.sqrt(step) + random.uniform(-0.05, 0.05)
        norm = math.nan if is_broken else random.uniform(0.8, 1.4)
        found.append(Did(step, loss, norm, took_s, ended_s))
    return found


def megatron(did: Sequence[Did]) -> Iterator[str]:
    yield "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1"
    yield "------------------------ arguments ------------------------"
    yield f"  seq_length ...................................... {LENGTH}"
    yield "  train_iters ..................................... 1000"
    for one in did:
        loss = f" lm loss: {one.loss:.6E} |" if one.loss > 0 else ""
        yield (
            f" [{one.date()}] iteration {one.step:8d}/{1000:8d} | consumed samples: {one.samples:12d} | elapsed time "
            f"per iteration (ms): {one.took_s * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): 412.5 | learning rate: "
            f"{1e-4:.6E} | global batch size: {BATCH:5d} |{loss} loss scale: 1.0 | grad norm: {one.norm:.3f} | number "
            f"of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"
        )


def nemo(did: Sequence[Did]) -> Iterator[str]:
    yield "[NeMo W 2025-06-18 21:57:03 rerun_state_machine:239] RerunStateMachine initialized in mode DISABLED"
    for one in did:
        yield (
            f"Training epoch 0, iteration {one.step - 1}/999 | lr: 1e-04 | global_batch_size: {BATCH} | global_step: "
            f"{one.step - 1} | reduced_train_loss: {one.loss:.4} | train_step_timing in s: {one.took_s:.4} | "
            f"consumed_samples: {one.samples}"
        )


def torchtitan(did: Sequence[Did]) -> Iterator[str]:
    def said(one: Did, text: str) -> str:
        return f"[rank0]:[titan] {one.date('%Y-%m-%d %H:%M:%S,%f')[:-3]} - root - INFO - {text}"

    yield said(
        did[0],
        f"Training starts at step 1, with local batch size 8, global batch size {BATCH}, sequence length {LENGTH}, "
        "total steps 1000 (warmup 200)",
    )
    for one in did:
        yield said(
            one,
            f"\x1b[31mstep: {one.step:2}  \x1b[32mloss: {one.loss:8.5f}  "
            f"\x1b[38;2;180;60;0mgrad_norm: {one.norm:7.4f}  "
            f"\x1b[36mmemory: 42.11GiB(53.22%)  \x1b[34mtps: {round(one.rate):,}  \x1b[36mtflops: 419.40  "
            "\x1b[35mmfu: 42.41%\x1b[39m",
        )


def hugging_face(did: Sequence[Did]) -> Iterator[str]:
    for one in did:
        since = round(one.ended_s)
        bar = (
            f"{one.step // 10:3d}%|{'█' * 3:10s}| {one.step}/1000 [{since // 60:02d}:{since % 60:02d}<45:00,  2.00s/it]"
        )
        values = {"loss": round(one.loss, 4), "grad_norm": one.norm, "learning_rate": 1e-05, "epoch": one.step / 1000}
        yield f"\r{bar}\r{' ' * 60}\r{values}"
    yield str({"train_runtime": 100.0, "train_samples_per_second": 1.0, "train_loss": 2.0, "epoch": 1.0})


def nanogpt(did: Sequence[Did]) -> Iterator[str]:
    yield f"tokens per iteration will be: {BATCH * LENGTH:,}"
    yield "number of parameters: 123.59M"
    yield f"step 0: train loss {10.9:.4f}, val loss {10.9:.4f}"
    for one in did:
        yield f"iter {one.step}: loss {one.loss:.4f}, time {one.took_s * 1000:.2f}ms, mfu 38.12%"


def modded(did: Sequence[Did]) -> Iterator[str]:
    for one in did:
        yield (
            f"step:{one.step}/1750 train_loss:{one.loss:.4f} train_time:{one.ended_s * 1000:.0f}ms "
            f"step_avg:{one.ended_s * 1000 / one.step:.2f}ms"
        )


def llm_c(did: Sequence[Did]) -> Iterator[str]:
    yield "| max_sequence_length T  | 1024                                               |"
    yield f"batch_size B=8 * seq_len T={LENGTH} * num_processes={GPUS} and total_batch_size={BATCH * LENGTH}"
    yield "=> setting grad_accum_steps=1"
    yield "val loss 11.033154"
    for one in did:
        yield (
            f"step {one.step:4d}/1000 | loss {one.loss:7.6f} (+nanz)| norm {one.norm:6.4f} (+nanz)| lr 1.00e-04 | "
            f"{one.took_s * 1000:.2f} ms | 39.7% bf16 MFU | {one.rate * GPUS:.0f} tok/s"
        )


def torchtune(did: Sequence[Did]) -> Iterator[str]:
    for one in did:
        yield f"Step {one.step} | loss:{one.loss} lr:2e-05 tokens_per_second_per_gpu:{one.rate} grad_norm:{one.norm} "


def deepspeed(did: Sequence[Did]) -> Iterator[str]:
    for one in did:
        date = one.date("%Y-%m-%d %H:%M:%S,%f")[:-3]
        yield (
            f"[{date}] [INFO] [logging.py:96:log_dist] [Rank 0] step={one.step}, skipped=0, lr=[0.0001, 0.0001], "
            "mom=[(0.9, 0.95), (0.9, 0.95)]"
        )
        yield (
            f"steps: {one.step} loss: {one.loss:0.4f} iter time (s): {one.took_s:0.3f} "
            f"samples/sec: {BATCH / one.took_s:0.3f}"
        )


def lightning(did: Sequence[Did]) -> Iterator[str]:
    figures = ""
    yield "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:01<00:00,  1.50it/s]"
    for one in did:
        since = round(one.ended_s)
        bar = (
            f"\rEpoch 0: {one.step // 10:3d}%|{'█' * 4:10s}| {one.step}/1000 [{since // 60:02d}:{since % 60:02d}<45:00,"
        )
        # The count is drawn with the figures of the step before, and then again with its own ones.
        if figures:
            yield f"{bar}  2.00s/it, {figures}]"
        loss = f"{one.loss:.3f}"[:5] if math.isfinite(one.loss) else "nan.0"
        figures = f"v_num=0, train_loss={loss}"
        yield f"{bar}  2.00s/it, {figures}]"


def mllog(did: Sequence[Did]) -> Iterator[str]:
    def said(ended_s: float, key: str, value: object, **metadata: object) -> str:
        event = {
            "namespace": "", "time_ms": round((did[0].began_s + ended_s) * 1000), "event_type": "POINT_IN_TIME",
            "key": key, "value": value, "metadata": {"file": "train.py", "lineno": 1, **metadata},
        }  # fmt: skip
        return f"0: :::MLLOG {json.dumps(event)}"

    yield said(0, "global_batch_size", BATCH)
    yield said(0, "max_sequence_length", LENGTH)
    yield said(1, "run_start", None)
    for one in did:
        yield said(one.ended_s, "train_loss", one.loss, samples_count=one.samples, lr=1e-4)


WRITERS: dict[str, Writer] = {
    "megatron": megatron,
    "nemo": nemo,
    "torchtitan": torchtitan,
    "hf": hugging_face,
    "nanogpt": nanogpt,
    "modded-nanogpt": modded,
    "llm.c": llm_c,
    "torchtune": torchtune,
    "deepspeed": deepspeed,
    "lightning": lightning,
    "mllog": mllog,
}
