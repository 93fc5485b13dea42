"""Choosing the device of the process and MindSpore's settings for it."""

import contextlib
import os
from typing import Protocol

import mindspore as ms

from ms_eagle.errors import UserError


class Settings(Protocol):
    """MindSpore's own settings, as a configuration's section ``execution`` has them; None is its default."""

    @property
    def device_id(self) -> int | None: ...  # noqa: D102

    @property
    def jit_level(self) -> str | None: ...  # noqa: D102

    @property
    def memory_limit(self) -> float | None: ...  # noqa: D102

    @property
    def deterministic(self) -> bool: ...  # noqa: D102


def start(device: str, threads: int | None, settings: Settings | None = None) -> str:
    """Set MindSpore's device for this process and graph mode; return the device's name.

    Args:
        device: ``auto`` (an Ascend NPU if MindSpore finds one, else the CPU), ``CPU`` or ``Ascend``.
        threads: CPU threads an operator may use; None takes the cores that the process may use.
        settings: further ones; None leaves MindSpore's defaults.

    Raises:
        UserError: an Ascend device is asked for and there is none, or the process computes on another device.
    """
    if device != "CPU":
        has_npu = ms.hal.is_available("Ascend")
        if device == "Ascend" and not has_npu:
            raise UserError(
                "execution.device is Ascend, but MindSpore finds no Ascend NPU here: set "
                "execution.device=CPU with model.dtype=float32, or check the driver and CANN (npu-smi info)."
            )
        device = "Ascend" if has_npu else "CPU"
    before = ms.get_context("device_target")
    try:
        _set_device(device, settings)
    except RuntimeError as error:  # too late to choose, as where MindFormers has set a device of several
        if before != device:
            raise UserError(
                f"execution.device is {device}, but this process computes on {before} already: set "
                f"execution.device={before}, or load the model first."
            ) from error
    ms.set_context(mode=ms.GRAPH_MODE)
    if settings is not None and settings.jit_level is not None:
        ms.set_context(jit_config={"jit_level": settings.jit_level})
    if device == "CPU":
        # MindSpore takes this number once in a process: a second engine computes with the first one's.
        with contextlib.suppress(RuntimeError):
            ms.device_context.cpu.op_tuning.threads_num(threads or len(os.sched_getaffinity(0)))
    return device


def _set_device(device: str, settings: Settings | None) -> None:
    if settings is None or settings.device_id is None:
        ms.set_device(device)
    else:
        ms.set_device(device, settings.device_id)
    if settings is None:
        return
    if settings.memory_limit is not None:
        ms.runtime.set_memory(max_size=f"{settings.memory_limit:g}GB")
    if settings.deterministic:
        ms.set_deterministic(True)
