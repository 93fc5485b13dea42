"""The processes that train together, each with the same weights and other rows."""

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init

from ms_eagle.system.distributed import Worker

_ALONE = Worker()


class _Sum(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.sum = ops.AllReduce()

    def construct(self, flag: Tensor) -> Tensor:
        return self.sum(flag)


class Workers:
    """This process among its fellows.

    Attributes:
        rank: its number.
        ranks: how many there are.
        leads: whether this is the process that writes files and speaks, the first.
    """

    def __init__(self, this: Worker = _ALONE) -> None:
        """Alone by default; see ``join`` for a group."""
        self.rank, self.ranks, self.leads = this.rank, this.ranks, this.leads
        self._sum = _Sum() if this.ranks > 1 else None

    @classmethod
    def join(cls) -> "Workers":
        """Join the processes that ``msrun`` started; the device must have been set."""
        init()
        return cls(Worker(get_rank(), get_group_size()))

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set in any worker; all of them have to ask."""
        if self._sum is None:
            return flag
        return float(self._sum(Tensor([float(flag)], ms.float32)).asnumpy()[0]) > 0
