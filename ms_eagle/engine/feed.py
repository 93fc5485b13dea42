"""A long list of requests through an engine, each made when there is room for it."""

from collections.abc import Callable, Hashable, Iterator

from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import Completion, Request

NextRequest = Callable[[], tuple[Hashable, Request] | None]


def answers(engine: Engine, next_request: NextRequest) -> Iterator[tuple[Hashable, Completion]]:
    """Answer requests until there are no more, in the order in which they finish.

    Args:
        engine: whose other requests go on beside these, unheard.
        next_request: gives a key and the next request, or None while there is none. It is asked again after
            every answer, so that an answer can lead to a new request, which finds its prefix in the caches.

    Raises:
        UserError: see ``Engine.step``.
    """
    keys: dict[int, Hashable] = {}
    try:
        while True:
            while len(keys) < engine.graphs.facts.sizes.batch and (following := next_request()) is not None:
                key, request = following
                keys[engine.submit(request)] = key
            if not keys:
                return
            for news in engine.step():
                if news.completion is not None and news.number in keys:
                    yield keys.pop(news.number), news.completion
    finally:
        engine.cancel(keys)
