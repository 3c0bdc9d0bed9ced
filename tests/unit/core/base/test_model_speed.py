"""MFU: of a run by hand, and why there is none where one of its figures is missing."""

from __future__ import annotations

import pytest

from governor.core.base.model_speed import (
    IMPOSSIBLE,
    NO_GPU,
    NO_NAME,
    NO_PARAMETERS,
    NO_TOKENS,
    ModelSpeed,
    Peak,
    model_speed,
    peak_of_names,
)
from governor.planner.catalog import DRIVER_NAMES, catalogue_gpus, driver_peaks

H100 = Peak("H100-SXM-80GB", 989e12)


def test_a_run_by_hand() -> None:
    """8e9 parameters at 100,000 tokens a second on 8 GPUs: 4.8 PFLOP/s of 7.912."""
    told = model_speed(100_000.0, 8_000_000_000, 8, H100)
    assert told == ModelSpeed(4.8e15, pytest.approx(4.8e15 / 7.912e15), 12_500.0, None)


@pytest.mark.parametrize(
    ("told", "absent"),
    [
        (model_speed(1e5, 8 * 10**9, None, H100), NO_GPU),
        (model_speed(1e5, None, 8, H100), NO_PARAMETERS),
        (model_speed(1e5, 0, 8, H100), NO_PARAMETERS),
        (model_speed(1e5, 8 * 10**9, 8, "why not"), "why not"),
        (model_speed(None, 8 * 10**9, 8, H100), NO_TOKENS),
        (model_speed(1e6, 8 * 10**9, 8, H100), IMPOSSIBLE),
    ],
)
def test_what_is_missing_is_named_and_is_no_zero(told: ModelSpeed, absent: str) -> None:
    assert (told.mfu, told.mfu_absent) == (None, absent)


def test_the_models_work_needs_no_gpu_and_a_gpus_tokens_need_no_model() -> None:
    assert model_speed(10.0, 5, None, NO_NAME).model_flops_per_s == 300.0
    assert model_speed(10.0, None, 2, NO_NAME).tokens_per_s_per_gpu == 5.0


def test_a_name_has_one_peak_or_a_reason() -> None:
    peaks = driver_peaks()
    assert peak_of_names(frozenset({"NVIDIA H100 80GB HBM3"}), peaks) == H100
    assert peak_of_names(frozenset({"A100-SXM4-80GB"}), peaks) == Peak("A100-SXM-80GB", 312e12), "of an old driver"
    assert peak_of_names(frozenset(), peaks) == NO_NAME
    two = frozenset({"NVIDIA H100 80GB HBM3", "NVIDIA L4"})
    for names in (two, frozenset({"NVIDIA H100 NVL"}), two | {"NVIDIA H100 NVL"}, frozenset({"\x1b[2J" * 100})):
        why = peak_of_names(names, peaks)
        assert isinstance(why, str)
        assert why.isprintable()
        assert len(why) < 100


def test_drivers_names_are_of_the_table() -> None:
    assert set(DRIVER_NAMES) <= set(catalogue_gpus())
    assert len(set(DRIVER_NAMES.values())) == len(DRIVER_NAMES)
