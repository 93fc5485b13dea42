"""The teacher: one decoder Cell for prefill chunks, single tokens and tree rows alike."""

from mindspore import Tensor, nn, ops

from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.backend import Backend, LayerNames
from ms_eagle.models.kv_cache import KVCache
from ms_eagle.models.weight import Read


class Teacher(nn.Cell):
    """A decoder over static caches: the rows of a call are written at given slots, then attended.

    The same Cell serves a prefill chunk, one token, or a tree: what a row sees is said by the caller.

    Attributes:
        steps: those of a cycle, over this cache; choice: sampling.
        vocabulary: embedding; head: LM head, the same Cell where they are tied.
        positions: how many absolute positions the rotary tables cover.
    """

    def __init__(
        self,
        config: DecoderConfig,
        read: Read,
        backend: Backend,
        *,
        batch: int,
        slots: int,
        positions: int,
        taps: tuple[int, ...] = (),
    ) -> None:
        """Take the weights and allocate the caches.

        Args:
            config: the architecture.
            read: returns a checkpoint tensor by its Hugging Face name.
            backend: what the layers are made of.
            batch: B.
            slots: S, cache rows per sequence, the trash slot included.
            positions: how many positions the rotary tables cover.
            taps: blocks whose inputs are returned as features for the drafter.
        """
        super().__init__()
        self.vocab_size, self.taps, self.positions = config.vocab_size, taps, positions
        self.vocabulary = backend.vocabulary(read("model.embed_tokens.weight"))
        self.head = self.vocabulary if config.tied else backend.vocabulary(read("lm_head.weight"))
        self.cache = KVCache(
            config.num_layers, batch, config.num_kv_heads, slots, config.head_dim, backend.formats.kv
        )
        self.rows = backend.rows(config.rope, positions, self.cache)
        self.steps, self.choice = backend.steps(slots), backend.choice()
        self.blocks = nn.CellList(
            [
                backend.layer(config, read, _names(f"model.layers.{i}."), self.cache, i, normed=True)
                for i in range(config.num_layers)
            ]
        )
        self.norm = backend.norm(read("model.norm.weight"), config.rms_norm_eps)

    def construct(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run N rows.

        Args:
            tokens: ``[B, N]`` int32 ids in ``[0, vocab)``.
            positions: ``[B, N]`` int32 in ``[0, positions)``.
            slots: ``[B, N]`` int32 in ``[0, S)``: where each row's K and V go.
            seen: what each row sees, at least one key, see ``models.backend``.

        Returns:
            normed hidden states ``[B, N, E]`` for ``logits`` and ``greedy``, and the taps
            ``[B, N, len(taps) * E]`` (the last block's output, ``[B, N, E]``, when there are none).
        """
        rows = self.rows(positions, slots, seen)
        x = self.vocabulary.embed(tokens)
        features = ()
        for i, block in enumerate(self.blocks):
            if i in self.taps:
                features = (*features, x)
            x = block(x, x, rows)
        features = ops.cat(features, 2) if len(self.taps) > 0 else x
        return self.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states ``[B, N, E] ->`` float32 logits ``[B, N, vocab]``."""
        return self.head.logits(hidden)

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest id of the largest logit, int32 ``[B, N]``, and ``[B]`` bool: one is NaN or infinite."""
        return self.head.greedy(hidden)


def _names(prefix: str) -> LayerNames:
    return LayerNames(
        f"{prefix}input_layernorm.",
        f"{prefix}self_attn.",
        f"{prefix}post_attention_layernorm.",
        f"{prefix}mlp.",
    )
