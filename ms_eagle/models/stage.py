"""One step of a graph compiled alone."""

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn


class Stage(nn.Cell):
    """A method of a Cell as a graph of its own, for running a graph's parts one by one.

    Arguments are single tensors: graph mode would take a tuple for a constant.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        """``method``: bound to the Cell whose weights it uses."""
        super().__init__()
        self.method = method

    def construct(self, *tensors: Tensor) -> Any:
        """Call the method."""
        return self.method(*tensors)
