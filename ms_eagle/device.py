"""Choosing the device, the number format and the kernels, and refusing what cannot work."""

import contextlib
import os
from collections.abc import Callable

import mindspore as ms

from ms_eagle.backend import StockBackend
from ms_eagle.errors import UserError
from ms_eagle.kernels.build import NativeUnavailable
from ms_eagle.native_backend import NativeBackend

DTYPES = {"float32": ms.float32, "float16": ms.float16, "bfloat16": ms.bfloat16}


def start(device: str, threads: int | None) -> str:
    """Set MindSpore's device for this process and graph mode; return the device's name.

    Args:
        device: ``auto`` (an Ascend NPU if MindSpore finds one, else the CPU), ``CPU`` or ``Ascend``.
        threads: CPU threads an operator may use; None takes the cores that the process may use.

    Raises:
        UserError: an Ascend device is asked for and there is none, or the process computes on another device.
    """
    if device != "CPU":
        found = ms.hal.is_available("Ascend")
        if device == "Ascend" and not found:
            raise UserError(
                "execution.device is Ascend, but MindSpore finds no Ascend NPU here: set "
                "execution.device=CPU with model.dtype=float32, or check the driver and CANN (npu-smi info)."
            )
        device = "Ascend" if found else "CPU"
    before = ms.get_context("device_target")
    try:
        ms.set_device(device)
    except RuntimeError as error:  # too late to choose, as where MindFormers has set a device of several
        if before != device:
            raise UserError(
                f"execution.device is {device}, but this process computes on {before} already: set "
                f"execution.device={before}, or load the model first."
            ) from error
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


def backend(
    name: str,
    device: str,
    number: ms.Type,
    *,
    threads: int | None,
    strays: int,
    notice: Callable[[str], None],
) -> StockBackend | NativeBackend:
    """What ``execution.kernels`` stands for here.

    Args:
        name: ``auto``, ``fused``, ``native`` or ``eager``.
        device: the device's name.
        number: the number format.
        threads, strays: see ``NativeBackend``.
        notice: is told in one line when ``auto`` has to do with less than the best.

    Raises:
        UserError: kernels that the device or the number format does not allow, or that cannot be built.
    """
    if name == "auto":
        if device == "Ascend" and number != ms.float32:
            name = "fused"
        elif device == "CPU" and number == ms.float32:
            try:
                return NativeBackend(threads, strays)
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
            return NativeBackend(threads, strays)
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
