"""Choosing the device, the number format and the attention kernel, and refusing what cannot work."""

import contextlib
import os

import mindspore as ms
from mindspore import nn

from ms_eagle.attention import AttentionConfig
from ms_eagle.errors import UserError
from ms_eagle.kernels.eager import EagerAttention
from ms_eagle.kernels.fused import FusedAttention

DTYPES = {"float32": ms.float32, "float16": ms.float16, "bfloat16": ms.bfloat16}


def start(device: str, threads: int | None) -> str:
    """Set MindSpore's device for this process and graph mode; return the device's name.

    Args:
        device: ``auto`` (an Ascend NPU if MindSpore finds one, else the CPU), ``CPU`` or ``Ascend``.
        threads: CPU threads an operator may use; None takes the cores that the process may use.

    Raises:
        UserError: an Ascend device is asked for and there is none.
    """
    if device != "CPU":
        found = ms.hal.is_available("Ascend")
        if device == "Ascend" and not found:
            raise UserError(
                "execution.device is Ascend, but MindSpore finds no Ascend NPU here: set "
                "execution.device=CPU with model.dtype=float32, or check the driver and CANN (npu-smi info)."
            )
        device = "Ascend" if found else "CPU"
    ms.set_device(device)
    ms.set_context(mode=ms.GRAPH_MODE)
    if device == "CPU":
        # MindSpore takes this number once in a process: a second engine computes with the first one's.
        with contextlib.suppress(RuntimeError):
            ms.device_context.cpu.op_tuning.threads_num(threads or len(os.sched_getaffinity(0)))
    return device


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


def kernels(name: str, device: str, number: ms.Type) -> str:
    """Resolve ``execution.kernels`` to ``fused`` or ``eager``.

    Raises:
        UserError: fused kernels on the CPU, or in float32.
    """
    if name == "auto":
        return "fused" if device == "Ascend" and number != ms.float32 else "eager"
    if name == "fused" and device == "CPU":
        raise UserError(
            "execution.kernels is fused, but FlashAttentionScore runs on Ascend NPUs only: set "
            "execution.kernels=eager."
        )
    if name == "fused" and number == ms.float32:
        raise UserError(
            "execution.kernels is fused with model.dtype float32; FlashAttentionScore takes float16 "
            "or bfloat16."
        )
    return name


def attention(name: str, config: AttentionConfig) -> nn.Cell:
    """The attention kernel Cell of a resolved name."""
    if name == "fused":
        return FusedAttention(config.num_heads, config.head_dim)
    return EagerAttention(config.head_dim)
