"""Inputs that are the same on every machine, made of raw random words with exact arithmetic.

1. The words are those of NumPy's PCG64, which NumPy promises not to change; its distributions it
   may change, and they call the mathematics of the machine.
2. A floating number is a 53-bit fraction times a power of two: no rounding but the one to its type.
3. The words depend on the name of the input alone: a smaller input is the beginning of a larger
   one, and two cases with an input `x` compute on the same numbers.

>>> draw("x", floats(3)).tolist() == draw("x", floats(5)).tolist()[:3]
True
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

SEED = 5
Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["float", "positive", "ties", "index", "order", "flag", "byte"]


@dataclass(frozen=True, slots=True)
class Input:
    """What an input is."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    kind: Kind = "float"
    below: int = 0
    """Of indices: all are smaller."""


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Input:
    """Numbers in (-8, 8), of both signs and eight orders of two."""
    return Input(shape, dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> Input:
    """The same without the sign."""
    return Input(shape, dtype, "positive")


def ties(*shape: int, dtype: torch.dtype = torch.float32) -> Input:
    """Whole numbers from 0 to 6: nearly all are there more than once."""
    return Input(shape, dtype, "ties")


def index(*shape: int, below: int) -> Input:
    """Indices, most of them more than once where `below` is smaller than their number."""
    return Input(shape, torch.int64, "index", below)


def order(count: int) -> Input:
    """A permutation: indices, each once."""
    return Input((count,), torch.int64, "order")


def flags(*shape: int) -> Input:
    """Booleans."""
    return Input(shape, torch.bool, "flag")


def octets(*shape: int) -> Input:
    """Whole numbers from -128 to 127."""
    return Input(shape, torch.int8, "byte")


def draw(name: str, wanted: Input) -> Tensor:
    """The input of that name, on the CPU."""
    seed = int.from_bytes(hashlib.blake2b(f"{SEED} {name}".encode(), digest_size=16).digest())
    words = np.random.PCG64(seed).random_raw(math.prod(wanted.shape)).reshape(wanted.shape)
    return torch.from_numpy(np.asarray(_numbers(words, wanted))).to(wanted.dtype)


def _numbers(words: Array, wanted: Input) -> Array:
    match wanted.kind:
        case "float" | "positive":
            fraction = (words >> 11).astype(np.float64) * 2.0**-52 - 1.0
            numbers = np.ldexp(fraction, (words & 7).astype(np.int32) - 4)
            return np.abs(numbers) + 2.0**-10 if wanted.kind == "positive" else numbers
        case "ties":
            return (words % 7).astype(np.float64)
        case "index":
            return (words % wanted.below).astype(np.int64)
        case "order":
            return np.argsort(words, kind="stable")
        case "flag":
            return (words & 1).astype(np.bool_)
        case "byte":
            return words.astype(np.uint8).view(np.int8)
