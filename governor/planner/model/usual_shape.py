"""A dense model of any size, of the proportions that Llama models have: for plans that begin with money."""

from __future__ import annotations

from governor.planner.model.shape import Shape

HEAD_DIM = 128
VOCAB = 128_256  # Llama 3's.
TIED_BELOW = 2.5e9  # Llama 3.2's: of smaller models the embedding is too large a share to have it twice.
FFN_STEP = 256
HEADS = (*range(1, 8), *range(8, 24, 4), *range(24, 200, 8))  # Tensor parallelism wants eighths.
NEAR = 0.03


def usual_shape(params: float) -> Shape:
    """The nearest to so many parameters: about as many layers as heads of 128 (Llama 3: 32 and 32, 80 and 64), three
    and a half times the width in the MLP, 8 key/value heads where they divide. At least some 20M."""
    tied = params < TIED_BELOW
    near = [_nearest(heads, params, tied) for heads in HEADS]
    return min(near, key=lambda shape: (abs(shape.params / params - 1) > NEAR, _distance(shape, params)))


def _nearest(heads: int, params: float, tied: bool) -> Shape:
    one, two = _shape(heads, 1, tied).params, _shape(heads, 2, tied).params
    layers = round(1 + (params - one) / (two - one))
    return _shape(heads, min(max(layers, round(0.75 * heads), 1), max(round(1.35 * heads), 1)), tied)


def _distance(shape: Shape, params: float) -> float:
    """Of those near enough, the one of the usual depth; of the others, the nearest."""
    missed = abs(shape.params / params - 1)
    return abs(shape.layers / shape.heads - 1.1) if missed <= NEAR else missed


def _shape(heads: int, layers: int, tied: bool) -> Shape:
    hidden = heads * HEAD_DIM
    ffn = FFN_STEP * max(round(3.5 * hidden / FFN_STEP), 1)
    kv_heads = 8 if heads % 8 == 0 else heads
    shape = Shape("dense", layers, hidden, heads, kv_heads, HEAD_DIM, ffn, VOCAB, tied=tied)
    return Shape(_name(shape.params), layers, hidden, heads, kv_heads, HEAD_DIM, ffn, VOCAB, tied=tied)


def _name(params: float) -> str:
    return f"dense {params / 1e9:.3g}B" if params >= 1e9 else f"dense {params / 1e6:.3g}M"
