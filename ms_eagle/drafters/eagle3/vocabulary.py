"""A head that drafts fewer tokens: how much of its draft vocabulary is worth its cost?"""

from dataclasses import replace

import numpy as np

from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.errors import UserError


def narrowed(head: Head, size: int) -> Head:
    """The head with the ``size`` draft tokens of the lowest target ids only.

    Raises:
        UserError: it has fewer draft tokens, or no LM head of its own to take rows from.
    """
    had = head.config.draft_vocab_size
    if size > had:
        raise UserError(f"drafter.vocabulary is {size}, but the head drafts {had} tokens: lower it")
    if head.config.shares_lm_head:
        raise UserError(
            "drafter.vocabulary needs a head with an LM head of its own; this one uses the teacher's: leave"
            " it out"
        )
    ids = head.target_ids
    kept = np.sort(np.argsort(ids, kind="stable")[:size])
    tensors = {**head.tensors, "lm_head.weight": np.ascontiguousarray(head.tensors["lm_head.weight"][kept])}
    return replace(
        head,
        config=replace(head.config, draft_vocab_size=size),
        tensors=tensors,
        d2t=np.ascontiguousarray(ids[kept]),
    )
