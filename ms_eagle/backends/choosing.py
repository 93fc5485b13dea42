"""Choosing the number format and the kernels of a device, and refusing what cannot work.

``start``, which chooses the device, is that of ``context``.
"""

from collections.abc import Callable

import mindspore as ms

from ms_eagle.backends import parity as attention_parity
from ms_eagle.backends.native import NativeBackend
from ms_eagle.backends.stock import StockBackend
from ms_eagle.errors import UserError
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.models.backend import Backend
from ms_eagle.system.settings import start

DTYPES = {"float32": ms.float32, "float16": ms.float16, "bfloat16": ms.bfloat16}


def dtype(name: str, device: str) -> ms.Type:
    """The MindSpore dtype of ``model.dtype``.

    Raises:
        UserError: bfloat16 on the CPU, for which MindSpore has no matrix product, softmax or gather.
    """
    if device == "CPU" and name == "bfloat16":
        raise UserError(
            "model.dtype is bfloat16, for which MindSpore has no CPU kernels (MatMul, Softmax, Gather): "
            "set model.dtype=float32."
        )
    return DTYPES[name]


def backend(
    name: str,
    device: str,
    number: ms.Type,
    *,
    threads: int | None,
    strays: int,
    notice: Callable[[str], None],
) -> Backend:
    """What ``execution.kernels`` stands for here.

    Args:
        name: ``auto``, ``fused``, ``native`` or ``eager``.
        device: the device's name.
        number: the number format.
        threads, strays: see ``NativeBackend``.
        notice: is told in one line when ``auto`` has to do with less than the best, or a cache is not used.

    Raises:
        UserError: kernels that the device or the number format does not allow, or that cannot be built.
    """
    if name == "auto":
        if device == "Ascend" and number != ms.float32:
            name = "fused"
        elif device == "CPU" and number == ms.float32:
            try:
                return NativeBackend(threads, strays, notice)
            except NativeUnavailable as error:
                notice(f"native kernels are not available, eager ones compute instead: {error}")
                name = "eager"
        else:
            name = "eager"
    if name == "native":
        if device != "CPU" or number != ms.float32:
            raise UserError(
                "execution.kernels is native, which computes in float32 on the CPU only: set "
                "execution.kernels=auto."
            )
        try:
            return NativeBackend(threads, strays, notice)
        except NativeUnavailable as error:
            raise UserError(f"execution.kernels is native: {error}; set execution.kernels=eager.") from error
    if name == "fused" and device == "CPU":
        raise UserError(
            "execution.kernels is fused, but FlashAttentionScore runs on Ascend NPUs only: set "
            "execution.kernels=auto."
        )
    if name == "fused" and number == ms.float32:
        raise UserError(
            "execution.kernels is fused with model.dtype float32; FlashAttentionScore takes float16 "
            "or bfloat16."
        )
    return StockBackend(name, number)


def probed(
    chosen: Backend,
    heads: int,
    kv_heads: int,
    head_dim: int,
    notice: Callable[[str], None],
) -> Backend:
    """Fused kernels that have shown on this device that they are right, or eager ones in their place.

    Args:
        chosen: a backend; any but a fused one is returned as it is.
        heads, kv_heads, head_dim: of the model.
        notice: is told in one line when fused attention is wrong.
    """
    if chosen.name != "fused":
        return chosen
    found = attention_parity.probe(heads, kv_heads, head_dim, chosen.formats.activations)
    if found is None:
        return chosen
    notice(
        f"fused attention differs from eager by {found.difference:.3g} at {found.case.slots} keys (allowed "
        f"is {found.tolerance:.3g}): eager kernels compute instead; tools/selftest.py writes a report"
    )
    return StockBackend("eager", chosen.formats.activations)


__all__ = ["DTYPES", "backend", "dtype", "probed", "start"]
