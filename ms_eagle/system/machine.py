"""How busy the machine is, so that figures of a disturbed run are recognised."""

import os
import time
from pathlib import Path

_STAT, _MEMORY = Path("/proc/stat"), Path("/proc/meminfo")
_IDLE_COLUMNS = (3, 4)  # idle and iowait; see proc(5)
_COUNTED = 8  # user to steal: guest time is contained in user
IDLE = 0.05  # share of all cores that others may use on an idle machine


def load_average() -> list[float]:
    """Mean number of runnable processes over the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not tell."""
    try:
        fields = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines())
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


class Watch:
    """Measures how much of the machine other processes use from its making on."""

    def __init__(self) -> None:
        self._begin = self._now()

    def elsewhere(self) -> float | None:
        """Share of all cores, 0 to 1, that went neither to this process nor to children it has waited for.

        None where the system does not tell.
        """
        now = self._now()
        if self._begin is None or now is None or now[0] <= self._begin[0]:
            return None
        wall, busy, own = (after - before for after, before in zip(now, self._begin, strict=True))
        return min(1.0, max(0.0, (busy - own) / wall))

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """CPU seconds of the whole machine, those not idle, and those of this process and its children."""
        try:
            fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        except OSError:
            return None
        counts = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[:_COUNTED]]
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return sum(counts), sum(counts) - sum(counts[i] for i in _IDLE_COLUMNS), own


def busy(seconds: float = 0.5) -> float | None:
    """Share of all cores that others use right now, looked at for some seconds; None if it is not told."""
    watch = Watch()
    time.sleep(seconds)
    return watch.elsewhere()


def has_npu() -> bool:
    """Whether the Ascend driver shows a device of this machine."""
    return any(Path("/dev").glob("davinci[0-9]*"))
