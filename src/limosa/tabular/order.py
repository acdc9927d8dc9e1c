"""In which order do rows lie? By token; rows with equal tokens keep their order.

Flushes, merges, copies and comparisons spend most of their time on sorting. Tokens are hashes and
therefore spread evenly, so their upper bits nearly determine the order.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.signedinteger[Any]]

SMALL_ROWS = 1_024
FEW_PARTS = 8
"""Tokens of fewer sorted parts than this are faster to merge than to sort anew."""
_BITS = 32


def order_of(tokens: NDArray[np.int64]) -> Indices:
    """Indices that sort the tokens: like NumPy's stable argsort, in a quarter of the time."""
    if len(tokens) < SMALL_ROWS or np.count_nonzero(tokens[1:] < tokens[:-1]) < FEW_PARTS:
        return np.argsort(tokens, kind="stable")
    lower, upper = _upper_bits(tokens)
    order = np.argsort(lower, kind="stable")  # NumPy sorts 16-bit numbers by radix
    order = order[np.argsort(upper[order], kind="stable")]
    nearly = tokens[order]
    if (nearly[1:] < nearly[:-1]).any():
        order = order[np.argsort(nearly, kind="stable")]
    return order


def _upper_bits(tokens: NDArray[np.int64]) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """The 32 highest of the bits in which tokens differ, in two halves."""
    least = int(tokens.min())
    shift = max(0, (int(tokens.max()) - least).bit_length() - _BITS)
    # A difference of two 64-bit numbers fits into 64 bits only if unsigned.
    above = tokens.view(np.uint64) - np.uint64(least % 2**64)
    bits = (above >> np.uint64(shift)).astype(np.uint32)
    return bits.astype(np.uint16), (bits >> np.uint32(16)).astype(np.uint16)
