"""Block-scaled number formats, emulated: a tensor in, the values that the format can hold out, in float32.

NVFP4 (arXiv 2509.25149 §2, Transformer Engine's NVFP4BlockScaling): E2M1 values in blocks of 16, an E4M3 scale a block,
an FP32 scale a tensor. MXFP4 and MXFP8 (OCP MX 1.0): blocks of 32 with a power of two as scale, rounded up so that
nothing saturates, as Transformer Engine does (arXiv 2506.08027 found OCP's rounding down to cost loss).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

E2M1_MAX = 6.0  # 0, 0.5, 1, 1.5, 2, 3, 4, 6
E4M3_MAX = 448.0
NV_BLOCK = 16
MX_BLOCK = 32
BITS = {"nvfp4": 4 + 8 / NV_BLOCK, "mxfp4": 4 + 8 / MX_BLOCK, "mxfp8": 8 + 8 / MX_BLOCK}  # The tensor's scale is 0.


def round_e2m1(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """To the nearest of E2M1's values, ties to the even code; with a generator stochastically, by the distance.

    What lies beyond 6 becomes 6.
    """
    size = x.abs().clamp(max=E2M1_MAX)
    gap = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    steps = size / gap
    # Half to even: as it happens, the even multiples of a gap are the even codes.
    rounded = steps.round() if generator is None else (steps + torch.rand(x.shape, generator=generator)).floor()
    return torch.copysign((rounded * gap).clamp(max=E2M1_MAX), x)


def round_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)


def nvfp4(x: Tensor, *, square: bool = False, generator: torch.Generator | None = None) -> Tensor:
    """A matrix in NVFP4, in blocks of 1 x 16 along its rows, or of 16 x 16 where `square`."""
    blocks, shape = _blocks(x, NV_BLOCK, square)
    tensor_amax = x.abs().max()
    encode = torch.where(tensor_amax > 0, E4M3_MAX * E2M1_MAX / tensor_amax, 1.0)
    scale = round_e4m3(blocks.abs().amax(-1, keepdim=True) / E2M1_MAX * encode)
    # A block so small that its scale is 0 becomes 0; what is not a number stays so.
    ratio = torch.where(scale == 0, 0.0, encode / scale)
    return _whole(round_e2m1(blocks * ratio, generator) * scale / encode, shape, NV_BLOCK, square)


def mxfp4(x: Tensor) -> Tensor:
    return _mx(x, E2M1_MAX, round_e2m1)


def mxfp8(x: Tensor) -> Tensor:
    return _mx(x, E4M3_MAX, round_e4m3)


def _mx(x: Tensor, largest: float, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    blocks, shape = _blocks(x, MX_BLOCK, square=False)
    amax = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.ceil(torch.log2(torch.where(amax == 0, 1.0, amax) / largest))
    scale = torch.exp2(exponent.clamp(-127, 127))
    return _whole(rounded(blocks / scale) * scale, shape, MX_BLOCK, square=False)


def _blocks(x: Tensor, size: int, square: bool) -> tuple[Tensor, torch.Size]:
    """One block a row of the last dimension."""
    if x.dim() != 2 or x.shape[1] % size or (square and x.shape[0] % size):
        wanted = f"both sides multiples of {size}" if square else f"rows that are a multiple of {size} long"
        raise ValueError(f"a matrix of {tuple(x.shape)} has no whole blocks; it takes {wanted}")
    rows, columns = x.shape
    if square:
        tiles = x.reshape(rows // size, size, columns // size, size).transpose(1, 2)
        return tiles.reshape(rows // size, columns // size, size * size), x.shape
    return x.reshape(rows, columns // size, size), x.shape


def _whole(blocks: Tensor, shape: torch.Size, size: int, square: bool) -> Tensor:
    if square:
        tiles = blocks.reshape(shape[0] // size, shape[1] // size, size, size)
        return tiles.transpose(1, 2).reshape(shape)
    return blocks.reshape(shape)


def hadamard(signs: Tensor) -> Tensor:
    """The orthogonal 16 x 16 matrix of a random Hadamard transform: Sylvester's, its rows with these signs."""
    matrix = torch.ones(1, 1, dtype=signs.dtype)
    while len(matrix) < len(signs):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return signs[:, None] * matrix / len(signs) ** 0.5


def rotated(x: Tensor, matrix: Tensor) -> Tensor:
    """Every block of a row times the matrix."""
    size = len(matrix)
    if x.shape[1] % size:
        raise ValueError(f"rows of {x.shape[1]} are no multiple of {size}: they have no whole blocks to rotate")
    return (x.reshape(x.shape[0], -1, size) @ matrix).reshape(x.shape)


def relative_error(x: Tensor, held: Tensor) -> float:
    """Root mean square of the error over that of the values."""
    return float((held - x).norm() / x.norm())
