"""A loop that prints what Megatron-LM's training_log() prints: nothing is imported, and no line is costgov's.

costgov run --ceiling 300 --price 22 --log-format megatron - -- python examples/trainers/megatron_log.py

Megatron-LM itself needs CUDA. Watch it with the same options: costgov run … -- torchrun … pretrain_gpt.py …
"""

import datetime
import math
import os
import time

STEPS = int(os.environ.get("STEPS", "60"))
GLOBAL_BATCH, LENGTH = 16, 64

print("------------------------ arguments ------------------------", flush=True)
print(f"  seq_length ...................................... {LENGTH}")
for iteration in range(1, STEPS + 1):
    began = time.monotonic()
    loss = sum(math.exp(-number / 1e6) for number in range(200_000)) / 200_000 * 4 / (1 + iteration / 50)
    took_ms = (time.monotonic() - began) * 1000
    print(
        f" [{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S.%f}] iteration {iteration:8d}/{STEPS:8d} |"
        f" consumed samples: {iteration * GLOBAL_BATCH:12d} | elapsed time per iteration (ms): {took_ms:.1f} |"
        f" throughput per GPU (TFLOP/s/GPU): 0.1 | learning rate: {1e-3:.6E} | global batch size: {GLOBAL_BATCH:5d} |"
        f" lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.000 |"
        f" number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |",
        flush=True,
    )
