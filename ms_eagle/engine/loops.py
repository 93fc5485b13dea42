"""When an answer goes round in circles."""

_LONGEST_PHRASE = 64  # tokens
_TIMES, _TOKENS = 8, 128  # in a row, and together: nobody writes so much of the same on purpose


class Loops:
    """Whether tokens end in one phrase over and over.

    That is a phrase of 1 to 64 tokens that stands at the end at least 8 times in a row, without anything
    between, which makes at least 128 tokens: 128 equal tokens, 16 times the same 8, 8 times the same 64.
    """

    def __init__(self) -> None:
        self._tail: list[int] = []
        self._equal = [0] * (_LONGEST_PHRASE + 1)  # by p: so many last tokens equal those p before them

    def push(self, token: int) -> bool:
        """Take one more token; whether they end so now."""
        self._tail.append(token)
        del self._tail[: -_LONGEST_PHRASE - 1]
        equal = self._equal
        for p in range(1, len(self._tail)):
            equal[p] = equal[p] + 1 if self._tail[-1 - p] == token else 0
        return any(equal[p] + p >= max(_TIMES * p, _TOKENS) for p in range(1, len(self._tail)))
