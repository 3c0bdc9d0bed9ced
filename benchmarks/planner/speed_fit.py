"""The fit of the step-time model's constants: least squares of log errors, each constant held by a physical guess.

A guess and its spread (standard deviation of the logarithm) say what is known before any row is seen; rows move a
constant as far as they speak about it, within what it means (`Constants`: a share is at most 1). A row weighs less
where its source has many, and one that is far off counts by its distance, not its square: tables hold errors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.planner.measured_speeds import Measured
from governor.planner.model.compute import Constants
from governor.planner.model.step_time import step_time_of

Vector = NDArray[np.float64]

# constant: (guess, spread of its logarithm). What is not here is known, and not fitted.
GUESSES: dict[str, tuple[float, float]] = {
    "matmul_share": (0.9, 0.08),
    "matmul_share_fp8": (0.85, 0.1),
    "matmul_share_mx": (0.7, 0.15),
    "matmul_share_fp4": (0.5, 0.15),
    "grouped_share": (0.8, 0.2),
    "operand_traffic": (0.8, 0.3),
    "weight_traffic": (14.0, 0.25),
    "attention_early": (0.36, 0.4),
    "attention_early_hopper": (0.18, 0.4),
    "attention_flash2": (0.65, 0.15),
    "attention_flash2_hopper": (0.38, 0.25),
    "attention_amd": (0.35, 0.3),
    "attention_cudnn": (0.68, 0.12),
    "attention_unfused": (12.0, 0.4),
    "ragged": (1.1, 0.3),
    "misaligned": (2.0, 0.5),
    "passes_hidden": (24.0, 0.4),
    "passes_hugging_face": (140.0, 0.2),
    "passes_ffn": (8.0, 0.4),
    "passes_routing": (10.0, 0.4),
    "passes_logits": (12.0, 0.4),
    "passes_quantise": (5.0, 0.4),
    "passes_state_space": (60.0, 0.7),
    "eager": (2.0, 0.25),
    "compiled": (1.2, 0.15),
    "layer_sync_ms": (4.0, 0.7),
    "kernels_fused": (60.0, 0.3),
    "kernels_eager": (250.0, 0.4),
    "kernels_moe": (150.0, 0.4),
    "hop_us": (5.0, 0.5),
    "all_to_all_share": (0.6, 0.3),
    "tensor_exposed": (0.7, 0.25),
    "experts_exposed": (0.7, 0.3),
    "context_exposed": (0.4, 0.4),
    "stages_exposed": (0.3, 0.4),
    "gather_overlap": (0.8, 0.15),
    "contention": (0.2, 0.4),
    "reduce_overlap": (0.5, 0.3),
    "bookkeeping_traffic": (60.0, 0.4),
    "cpu_adam_per_s": (0.26e9, 0.3),
    "step_overhead_s": (0.02, 0.4),
    "jitter": (0.008, 0.4),
    "selective": (0.35, 0.1),
    "yearly": (0.05, 0.5),
    "yearly_moe": (0.4, 0.5),
}
HOLD = 0.03  # weight of a guess beside a row's squared error: rows vary by some 15 % about any model of this kind
ROBUST = 0.15  # log error beyond which a row counts by its distance
CROWD = -0.5  # power of a source's rows by which each of them weighs
STEP = 0.02  # of a logarithm, to take derivatives
STRIDE_MAX = 0.5
ROUNDS = 15
TINY = 1e-12  # stands for 0, whose logarithm there is none
ENOUGH = 1e-3  # relative gain of a round below which the fit ends


def speed(setup_row: Measured, constants: Constants) -> float:
    return step_time_of(setup_row.setup, constants).tokens_per_gpu_s


def errors(rows: Sequence[Measured], constants: Constants) -> list[float]:
    """Predicted over measured, less one."""
    return [speed(row, constants) / row.tokens_per_gpu_s - 1 for row in rows]


def fit(rows: Sequence[Measured], rounds: int = ROUNDS, start: Constants | None = None) -> Constants:
    """Levenberg-Marquardt, from the guesses or from `start`, which is held by the guesses all the same."""
    problem = _Problem(rows)
    at = problem.within(problem.guess if start is None else np.log([getattr(start, name) for name in GUESSES]))
    residual, cost, damping = *problem.at(at), 1e-2
    for _ in range(rounds):
        slope = problem.slope(at, residual)
        pull = np.where(np.abs(residual) < ROBUST, 1, ROBUST / np.maximum(np.abs(residual), 1e-9)) * problem.weight
        matrix = slope.T @ (slope * pull[:, None]) + np.diag(problem.hold)
        downhill = slope.T @ (pull * residual) + problem.hold * (at - problem.guess)
        before = cost
        is_free = problem.is_free(at, downhill)
        for _ in range(6):
            stride = np.zeros_like(at)
            damped = (matrix + damping * np.diag(np.diag(matrix)))[np.ix_(is_free, is_free)]
            stride[is_free] = -np.linalg.solve(damped, downhill[is_free])
            there = problem.within(at + np.clip(stride, -STRIDE_MAX, STRIDE_MAX))
            new_residual, new_cost = problem.at(there)
            if new_cost < cost:
                at, residual, cost, damping = there, new_residual, new_cost, max(damping / 3, 1e-4)
                break
            damping *= 4
        if before - cost < ENOUGH * before:
            break
    return problem.constants(at)


class _Problem:
    def __init__(self, rows: Sequence[Measured]) -> None:
        self._rows = rows
        self._measured = np.log([row.tokens_per_gpu_s for row in rows])
        self.guess: Vector = np.log([guess for guess, _ in GUESSES.values()])
        self.hold: Vector = HOLD / np.array([spread for _, spread in GUESSES.values()]) ** 2
        crowd = Counter(row.source for row in rows)
        weight: Vector = np.array([crowd[row.source] ** CROWD for row in rows])
        self.weight: Vector = weight / weight.mean()
        meant = {one.name: one.metadata for one in fields(Constants)}
        self._least: Vector = np.array([math.log(max(meant[name]["least"], TINY)) for name in GUESSES])
        self._most: Vector = np.array([math.log(meant[name]["most"]) for name in GUESSES])

    def within(self, at: Vector) -> Vector:
        return np.clip(at, self._least, self._most)

    def is_free(self, at: Vector, downhill: Vector) -> NDArray[np.bool_]:
        """Not at an end of its range with the rows pulling outwards."""
        return ~((at <= self._least) & (downhill > 0) | (at >= self._most) & (downhill < 0))

    def constants(self, at: Vector) -> Constants:
        return replace(Constants(), **{name: math.exp(value) for name, value in zip(GUESSES, at, strict=True)})

    def at(self, at: Vector) -> tuple[Vector, float]:
        constants = self.constants(at)
        residual: Vector = np.log([speed(row, constants) for row in self._rows]) - self._measured
        far = np.abs(residual)
        losses = np.where(far < ROBUST, 0.5 * far**2, ROBUST * (far - 0.5 * ROBUST))
        return residual, float((self.weight * losses).sum() + 0.5 * (self.hold * (at - self.guess) ** 2).sum())

    def slope(self, at: Vector, residual: Vector) -> Vector:
        columns = []
        for index in range(len(at)):
            there = at.copy()
            there[index] += STEP
            columns.append((self.at(there)[0] - residual) / STEP)
        return np.stack(columns, axis=1)
