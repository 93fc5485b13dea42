"""Tiny EAGLE-3 heads of random weights, and one sequence of the slow reference."""

import mindspore as ms
import numpy as np
from mindspore import Tensor
from support import reference_head

from ms_eagle.backends.stock import StockBackend
from ms_eagle.drafters.eagle3.checkpoint import Head
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.head import DraftHead
from ms_eagle.models.rope import RopeConfig
from ms_eagle.models.weight import Weight

VOCABULARY, SLOTS, BRANCH = 40, 24, 3


PLAIN = HeadConfig(
    format="test",
    hidden_size=24,
    target_hidden_size=24,
    intermediate_size=36,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    num_layers=1,
    vocab_size=VOCABULARY,
    draft_vocab_size=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(6, 10000.0, "default", {}, 128),
    taps=(2, 5, 7),
)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def random_tensors(shapes, rng) -> dict[str, np.ndarray]:
    """Numbers large enough to matter, around 1 for norms."""
    return {
        name: (rng.standard_normal(shape) * 0.3 + ("norm" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def random_head(config, seed=0) -> Head:
    rng = np.random.default_rng(seed)
    tensors = random_tensors(config.tensor_shapes(), rng)
    full = config.draft_vocab_size == config.vocab_size
    ids = None if full else rng.permutation(config.vocab_size)[: config.draft_vocab_size].astype(np.int32)
    return Head(config, tensors, ids, {})


def teacher_ends(width=24, seed=5):
    """The teacher's embedding and LM head."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((VOCABULARY, width)).astype(np.float32) for _ in range(2)]


def drafter_cell(head, ends, batch, slots=SLOTS, backend=None) -> DraftHead:
    backend = backend or StockBackend("eager", ms.float32)
    vocabularies = [backend.vocabulary(Weight.of(array)) for array in ends]
    return DraftHead(head, *vocabularies, backend, batch=batch, slots=slots, positions=slots)


class Reference:
    """One sequence: rows are added, each seeing the rows that are named for it."""

    def __init__(self, head, ends):
        self.head, self.ends, self.past, self.rows = head, ends, None, 0

    def run(self, tokens, positions, seen, **source):
        """``seen[r]``: earlier rows of row r, by their number in the order of adding; itself is implied."""
        mask = np.ones((len(tokens), self.rows + len(tokens)), bool)
        for row, earlier in enumerate(seen):
            mask[row, [*earlier, self.rows + row]] = False
        found = reference_head.forward(
            self.head.config,
            self.head.tensors,
            tokens,
            positions,
            mask,
            past=self.past,
            teacher_embedding=self.ends[0],
            teacher_lm_head=self.ends[1],
            **source,
        )
        self.past, self.rows = found.past, self.rows + len(tokens)
        return found.logits.numpy(), found.next_feature.numpy()


def int32(array):
    return Tensor(np.asarray(array, np.int32))
