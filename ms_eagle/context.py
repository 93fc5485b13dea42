"""Choosing the device of the process and MindSpore's settings for it."""

import contextlib
import os

import mindspore as ms

from ms_eagle.errors import UserError


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
