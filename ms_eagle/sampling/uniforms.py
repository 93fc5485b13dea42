"""The uniform number that decides the token at one absolute position.

It depends on the request's seed and the position alone, so that a token comes out the same whether it was
sampled by plain decoding, in a tree row, or after a rejected branch. The generator is counter-based:
Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

Definition, to be reproduced anywhere: let `block` be Philox4x64 with 10 rounds, key `(seed, 0)` and counter
`(position // 4 + 1, 0, 0, 0)`; take its 64-bit word number `position % 4` and keep the highest 24 bits as an
integer `j`. The uniform is `j * 2**-24`: exact in float32 and always below 1. (The `+ 1` is numpy's: its
generator steps the counter before it produces the first block.)
"""

import numpy as np

from ms_eagle.errors import UserError

UNIFORM_BITS = 24
"""Resolution of a uniform: an integer below `2**24`, scaled by `2**-24`."""

_MAX_SEED = 2**64 - 1
_WORDS = 4  # 64-bit words in one Philox block


def check_seed(seed: int) -> int:
    """Return `seed` when it is an integer in `[0, 2**64)`, else raise UserError."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _MAX_SEED:
        raise UserError(f"seed: found {seed!r}, expected an integer from 0 to {_MAX_SEED}")
    return int(seed)


def _words(seed: int, first_block: int, blocks: int) -> np.ndarray:  # uint64 [blocks * 4]
    key = np.array([check_seed(seed), 0], dtype=np.uint64)
    return np.random.Philox(key=key, counter=first_block).random_raw(blocks * _WORDS)


def _to_unit(words: np.ndarray) -> np.ndarray:  # uint64 -> float32 in [0, 1)
    return (words >> np.uint64(64 - UNIFORM_BITS)).astype(np.float32) * np.float32(2.0**-UNIFORM_BITS)


def uniform_table(seed: int, count: int) -> np.ndarray:  # float32 [count]
    """Uniforms of positions `0 .. count-1`; entry `p` does not depend on `count`.

    Raises UserError for a seed out of range and ValueError for a negative count.
    """
    if count < 0:
        raise ValueError(f"count must not be negative, found {count}")
    blocks = (count + _WORDS - 1) // _WORDS
    return _to_unit(_words(seed, 0, blocks)[:count])


def uniform(seed: int, position: int) -> float:
    """Return the uniform of one absolute position, equal to `uniform_table(seed, position + 1)[position]`.

    Raises UserError for a seed out of range and ValueError for a negative position.
    """
    if position < 0:
        raise ValueError(f"position must not be negative, found {position}")
    block, word = divmod(position, _WORDS)
    return float(_to_unit(_words(seed, block, 1)[word : word + 1])[0])
