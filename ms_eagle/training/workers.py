"""The processes that train together, each with the same weights and other rows."""

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init


class _Sum(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.sum = ops.AllReduce()

    def construct(self, flag: Tensor) -> Tensor:
        return self.sum(flag)


class Workers:
    """This process among its fellows.

    Attributes:
        rank: its number; the first, 0, writes files and speaks.
        ranks: how many there are.
    """

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        """Alone by default; see ``join`` for a group."""
        self.rank, self.ranks = rank, ranks
        self._sum = _Sum() if ranks > 1 else None

    @classmethod
    def join(cls) -> "Workers":
        """Join the processes that ``msrun`` started; the device must have been set."""
        init()
        return cls(get_rank(), get_group_size())

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set in any worker; all of them have to ask."""
        if self._sum is None:
            return flag
        return float(self._sum(Tensor([float(flag)], ms.float32)).asnumpy()[0]) > 0
