"""A corpus of three conversations."""

from ms_eagle.training.corpus.provenance import Provenance
from ms_eagle.training.corpus.storage import (
    Row,
)

MADE = Provenance(
    teacher="here",
    teacher_sha256="1" * 64,
    template_sha256="2" * 64,
    tokenizer_sha256="3" * 64,
    vocab_size=96,
    system_prompt=None,
    thinking=None,
    seed=0,
    generation={"max_new_tokens": 8},
)


ROWS = [
    Row("self:0", "self", [1, 5, 6, 7, 2], ((2, 5),)),
    Row("p:a", "prompts", [1, 9, 8, 2, 4, 3, 2], ((2, 4), (5, 7))),
    Row("self:3", "self", [1, 95], ((1, 2),)),
]
