"""The architecture of a plan: by name, from a config.json, from sizes, or from sizes over one of the former."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from governor.planner.hf_config import shape_of_file
from governor.planner.model.shape import SIZE_MAX, Experts, Shape, divisors_near
from governor.planner.plan_catalog import UnknownNameError, shape_named
from governor.planner.plan_keys import PlanUnreadableError
from governor.text.cli_rows import plain

NAME_CHARS_MAX: Final = 60
SIZE_NAMES: Final = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied", "gated"),
    *("experts", "topk", "moe_ffn", "shared_ffn", "first_dense"),
)
NEVER_ZERO: Final = frozenset({*SIZE_NAMES[:7], "topk", "moe_ffn"})


def stated_shape(values: Mapping[str, str]) -> Shape:
    """Of the values model, config and shape. PlanUnreadableError where they name none."""
    sizes = _sizes(values)
    if config := values.get("config"):
        shape = shape_of_file(Path(config))
        return _resized(replace(shape, name=plain(shape.name)[:NAME_CHARS_MAX]), sizes)  # Somebody else's file.
    if model := values.get("model"):
        try:
            return _resized(shape_named(model), sizes)
        except UnknownNameError as error:
            raise UnknownNameError(f"{error}; else give its config.json, or its shape") from error
    for key in ("layers", "hidden", "heads", "vocab"):
        if not sizes.get(key):
            raise PlanUnreadableError(
                f"no model: name one (llama3-8b), or give a config.json, or shape with {key} in it"
            )
    hidden, heads = sizes["hidden"], sizes["heads"]
    blank = Shape("custom", sizes["layers"], hidden, heads, heads, 1, 4 * hidden, sizes["vocab"])
    return _resized(blank, sizes)


def _resized(shape: Shape, sizes: Mapping[str, int]) -> Shape:
    if not sizes:
        return shape
    if shape.hybrid is not None and "layers" in sizes:
        raise PlanUnreadableError(f"shape: {shape.name} has layers of several kinds: layers cannot say which")
    plain = {key: sizes[key] for key in SIZE_NAMES[:7] if key in sizes}
    if ("hidden" in sizes or "heads" in sizes) and "head_dim" not in sizes:
        plain["head_dim"] = _head_dim(sizes.get("hidden", shape.hidden), sizes.get("heads", shape.heads))
    if "heads" in sizes and "kv_heads" not in sizes and shape.kv_heads == shape.heads:
        plain["kv_heads"] = sizes["heads"]
    experts = shape.experts
    if sizes.get("experts"):
        ffn = sizes.get("moe_ffn") or sizes.get("ffn") or (experts.ffn if experts else shape.ffn)
        experts = Experts(sizes["experts"], sizes.get("topk") or (experts.topk if experts else 2), ffn)
    if experts is not None:
        named = {"topk": "topk", "moe_ffn": "ffn", "shared_ffn": "shared_ffn", "first_dense": "first_dense"}
        experts = replace(experts, **{field: sizes[key] for key, field in named.items() if key in sizes})
    flags = {key: bool(sizes[key]) for key in ("tied", "gated") if key in sizes}
    changes: dict[str, Any] = {**plain, **flags}
    return replace(shape, **changes, experts=experts, stated_params=None, stated_active=None)


def _head_dim(hidden: int, heads: int) -> int:
    if hidden % heads == 0:
        return hidden // heads
    near = divisors_near(hidden, heads)
    raise PlanUnreadableError(f"shape: {heads} heads do not divide hidden {hidden}: {near} do; or state head_dim")


def _sizes(values: Mapping[str, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pair in filter(None, (part.strip() for part in values.get("shape", "").split(","))):
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if name not in SIZE_NAMES or not equals or not value.strip().isdecimal() or len(value) > 9:
            raise PlanUnreadableError(
                f"shape: {pair!r}: write for example layers=24; there are {', '.join(SIZE_NAMES)}"
            )
        sizes[name] = int(value)
        if sizes[name] > SIZE_MAX:
            raise PlanUnreadableError(f"shape: {name} {value}: at most {SIZE_MAX:,}")
        if not sizes[name] and name in NEVER_ZERO:
            raise PlanUnreadableError(f"shape: {name} must be at least 1")
    return sizes
