"""Lets MindFormers' own inference models run eagerly on a CPU: tests only.

Their cells use kernels that exist on Ascend NPUs alone. Here a few methods of the real classes compute the
same with stock operators and numpy. `kernels.lowest` is the smallest slot or block that attention was given.
"""

import contextlib
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindformers.generation.text_generator import GenerationMixin
from mindformers.parallel_core.inference.base_models.common.embeddings.rotary_pos_embedding import (
    RotaryEmbedding,
)
from mindformers.parallel_core.inference.base_models.gpt.gpt_model import GPTModel
from mindformers.parallel_core.inference.transformer.flash_attention import FlashAttention
from mindformers.parallel_core.inference.transformer.norm import RMSNorm
from mindspore import Tensor, ops

FORBIDDEN = -1e30


@contextlib.contextmanager
def eager():
    """PYNATIVE mode with the replaced kernels; what it replaced is put back."""
    kernels = SimpleNamespace(lowest=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENFORCE_EAGER", "True")
        patch.setenv("RUN_MODE", "predict")
        patch.setattr(RMSNorm, "construct", _norm)
        patch.setattr(RotaryEmbedding, "construct", _rotate)
        patch.setattr(FlashAttention, "__init__", _with_scale(FlashAttention.__init__))
        patch.setattr(FlashAttention, "construct", _attention(kernels))
        patch.setattr(GPTModel, "__init__", _after(GPTModel.__init__, move_lens_to_cpu=False))
        patch.setattr(GPTModel, "pre_gather_func", _last_rows)
        argmax = _after(GenerationMixin.__init__, argmax=lambda x, axis: ops.argmax(x, axis))
        patch.setattr(GenerationMixin, "__init__", argmax)
        # Without this a second generate() of a process runs its prompt as if it were decoding.
        infer = _before(GenerationMixin._incremental_infer_mcore, _exec_add_flags=True)
        patch.setattr(GenerationMixin, "_incremental_infer_mcore", infer)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        try:
            yield kernels
        finally:
            ms.set_context(mode=ms.GRAPH_MODE)


def _after(method, **attributes):
    def changed(self, *arguments, **named):
        method(self, *arguments, **named)
        for name, value in attributes.items():
            setattr(self, name, value)

    return changed


def _before(method, **attributes):
    def changed(self, *arguments, **named):
        for name, value in attributes.items():
            setattr(self, name, value)
        return method(self, *arguments, **named)

    return changed


def _with_scale(method):
    def changed(self, *arguments, scale_value=1.0, **named):
        method(self, *arguments, scale_value=scale_value, **named)
        self.scale = float(scale_value)

    return changed


def _norm(self, x):
    wide = x.astype(ms.float32)
    normed = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, True) + self.eps)
    return (normed * self.weight.astype(ms.float32)).astype(x.dtype)


def _rotate(self, query, key, cos, sin, lengths):
    rows = query.shape[0]
    if cos is self.cos_cache:  # a prefill gets the whole table: every sequence starts at position 0
        places = np.concatenate([np.arange(length) for length in lengths.asnumpy()]).astype(np.int32)
        cos, sin = ops.gather(cos, Tensor(places), 0), ops.gather(sin, Tensor(places), 0)

    def turned(x):
        heads, half = x.reshape(rows, -1, self.dim), self.dim // 2
        swapped = ops.cat((-heads[..., half:], heads[..., :half]), -1)
        return (heads * cos[:, None] + swapped * sin[:, None]).reshape(rows, -1)

    return turned(query), turned(key)


def _last_rows(self, output, context, lengths):
    if not self.is_prefill:
        return output
    last = np.cumsum(lengths.asnumpy() - context.asnumpy()) - 1
    return ops.gather(output, Tensor(last.astype(np.int32)), 0)


def _attention(kernels):
    def construct(self, query, key, value, **named):
        caches = [named["key_cache"], named["value_cache"]]
        blocks, size, heads, d = caches[0].shape
        slots, tables = named["slot_mapping"].asnumpy(), named["block_tables"].asnumpy()
        kernels.lowest = min(kernels.lowest, slots.min(), tables.min())
        stores = [cache.asnumpy().reshape(blocks * size, heads, d).copy() for cache in caches]
        for cache, store, new in zip(caches, stores, (key, value), strict=True):
            store[slots] = new.asnumpy().reshape(-1, heads, d)
            cache.assign_value(Tensor(store.reshape(cache.shape)))
        mask = named["attn_mask"].asnumpy()
        rows = query.asnumpy().reshape(query.shape[0], -1, d)
        out, start = np.zeros_like(rows), 0
        lengths = named["q_seq_lens"].asnumpy(), named["batch_valid_length"].asnumpy()
        for count, total, table in zip(*lengths, tables, strict=True):
            here = slice(start, start + count)
            places = table[np.arange(total) // size] * size + np.arange(total) % size
            k, v = (store[places].repeat(rows.shape[1] // heads, 1) for store in stores)
            hidden = np.arange(total) > (total - count + np.arange(count))[:, None]
            if not self.is_prefill and mask.shape[0] == rows.shape[0]:
                hidden = mask[here, :total] != 0
            scores = np.where(hidden, FORBIDDEN, np.einsum("qhd,khd->hqk", rows[here], k) * self.scale)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[here] = np.einsum("hqk,khd->qhd", weights, v)
            start += count
        return Tensor(out.reshape(query.shape[0], -1))

    return construct
