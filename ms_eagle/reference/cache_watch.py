"""Watching a cache from the host: bit-for-bit copies of its buffers, compared after every stage."""

from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from ms_eagle.models.kv_cache import KVCache
from ms_eagle.reference.invariants import check_cache_equal, check_cache_kept, check_cache_writes

Image = list[np.ndarray]
"""Copies of all buffers, keys first, each ``[B, H_kv, S, d]``; bfloat16 as float32, which is exact."""

# Largest difference of two computations of one cache, relative to the largest value in the buffer. Stock
# kernels round differently for different numbers of rows; a misplaced row differs in its first digits.
TOLERANCE = {ms.float32: 1e-3, ms.float16: 3e-2, ms.bfloat16: 1e-1}


class CacheWatch:
    """Remembers what a cache held and finds what changed.

    Attributes:
        name: of the model, for messages.
        cache: the cache.
        image: what it held when last looked at.
    """

    def __init__(self, name: str, cache: KVCache) -> None:
        self.name, self.cache = name, cache
        self.image: Image = []

    @property
    def slots(self) -> int:
        """S, the trash slot included."""
        return self.cache.shape[2]

    def _buffers(self) -> Iterator[tuple[str, Parameter]]:
        for kind, buffers in (("key", self.cache.keys), ("value", self.cache.values)):
            for layer, buffer in enumerate(buffers):
                yield f"{self.name} {kind} {layer}", buffer

    def look(self) -> Image:
        """Copy the cache as it is now; the copy is also kept as ``image``."""
        self.image = [_copy(buffer).reshape(self.cache.shape) for _, buffer in self._buffers()]
        return self.image

    def check_writes(self, start: np.ndarray, written: np.ndarray) -> None:
        """Look again: nothing below ``start`` and nothing outside ``written`` may have changed.

        Args:
            start: ``[B]`` integers, the committed length.
            written: ``[B, W]`` integers, the slots that a stage was given.

        Raises:
            InvariantError: ``cache.kept`` or ``cache.writes``.
        """
        before, committed = self.image, int(np.max(start))
        for (name, _), old, new in zip(self._buffers(), before, self.look(), strict=True):
            check_cache_kept(name, old[:, :, :committed], new[:, :, :committed], start)
            check_cache_writes(name, old, new, written)

    def check_moves(self, sources: np.ndarray, targets: np.ndarray, count: np.ndarray) -> None:
        """Look again after a commit: rows arrived bit for bit, and nothing else changed.

        Args:
            sources, targets: ``[B, T]`` integers, slots moved from and to.
            count: ``[B]`` integers, how many of them count.

        Raises:
            InvariantError: ``cache.writes`` or ``cache.equal``.
        """
        before = self.image
        for (name, _), old, new in zip(self._buffers(), before, self.look(), strict=True):
            check_cache_writes(name, old, new, targets)
            check_cache_equal(f"{name}, committed rows", _rows(new, targets), _rows(old, sources), count)

    def check_equal(self, wanted: Image, length: np.ndarray) -> float:
        """Look again: the first ``length`` slots hold what ``wanted`` holds, within ``TOLERANCE``.

        Returns:
            the largest difference found, relative to the largest value of its buffer.

        Raises:
            InvariantError: ``cache.equal``; found and expected are ``wanted`` and the cache now.
        """
        share = TOLERANCE[self.cache.keys[0].dtype]
        largest = 0.0
        for (name, _), old, new in zip(self._buffers(), wanted, self.look(), strict=True):
            used = np.arange(self.slots) < np.asarray(length)[:, None]  # [B, S]
            used = used[:, None, :, None]
            scale = max(1e-6, float(np.max(np.abs(new), where=used, initial=0.0)))
            check_cache_equal(name, old, new, length, share * scale)
            difference = np.max(np.abs(old - new), where=used, initial=0.0)
            largest = max(largest, float(difference) / scale)
        return largest

    def restore(self, image: Image) -> None:
        """Put back what was copied by ``look``."""
        for (_, buffer), array in zip(self._buffers(), image, strict=True):
            buffer.set_data(Tensor(array.reshape(buffer.shape)).astype(buffer.dtype))
        self.image = image

    def facts(self) -> dict[str, object]:
        """Layers, shape, dtype and trash slot, for an error record."""
        return {
            "layers": len(self.cache.keys),
            "shape": list(self.cache.shape),
            "dtype": str(self.cache.keys[0].dtype).lower(),
            "trash": self.cache.trash,
        }


def _copy(buffer: Parameter) -> np.ndarray:
    # `asnumpy` may be a view of the live buffer: it must be copied.
    exact = buffer.astype(ms.float32) if buffer.dtype == ms.bfloat16 else buffer
    return np.array(exact.asnumpy())


def _rows(buffer: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Slots ``[B, T]`` of a buffer: ``[B, H_kv, T, d]``."""
    return np.take_along_axis(buffer, slots[:, None, :, None].astype(np.int64), 2)
