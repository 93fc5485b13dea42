"""A MindFormers inference model as the teacher of our cycle: its cells, its weights, its paged attention.

The Cell runs the model's own layers one by one, as ``GPTModel.construct`` does, and keeps the inputs of some
blocks, which that does not return. Everything goes through the branch for decoding, prompts too: rows with
their own positions, slots and mask are what it is made for.
"""

import mindspore as ms
from mindformers import PreTrainedModel
from mindspore import Tensor, nn, ops
from typing_extensions import override

from ms_eagle.backends.stock import StockChoice
from ms_eagle.backends.stock_steps import StockSteps
from ms_eagle.errors import UserError
from ms_eagle.mindformers.paged_cache import PagedCache, hidden_keys
from ms_eagle.models.backend import Vocabulary
from ms_eagle.sampling.choice import any_not_finite, choose_greedy


class PagedVocabulary(nn.Cell, Vocabulary):
    """Embedding and output layer of the model."""

    def __init__(self, gpt: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.embedding, self.output_layer, self.dtype = gpt.embedding, gpt.output_layer, gpt.compute_dtype
        self.size = gpt.vocab_size

    @override
    def embed(self, tokens: Tensor) -> Tensor:
        batch, rows = tokens.shape
        x = self.embedding(tokens.reshape(batch * rows)).astype(self.dtype)
        return x.reshape(batch, rows, x.shape[x.ndim - 1])

    @override
    def logits(self, hidden: Tensor) -> Tensor:
        batch, rows, width = hidden.shape
        out = self.output_layer(hidden.reshape(batch * rows, width))
        return out.reshape(batch, rows, self.size).astype(ms.float32)

    @override
    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden)
        return choose_greedy(logits), any_not_finite(logits)


class PagedTeacher(nn.Cell):
    """The interface of ``teacher.Teacher`` over a MindFormers model such as Qwen3ForCausalLM.

    Attributes:
        cache: a ``PagedCache``; the other attributes are ``Teacher``'s.
    """

    def __init__(self, network: PreTrainedModel, *, batch: int, slots: int, taps: tuple[int, ...]) -> None:
        """Take the model as it is.

        Args:
            network: a MindFormers inference model (``use_legacy: False``) with its weights loaded, on one
                device. It is switched to decoding, for good: its own ``generate()`` switches it back.
            batch: B.
            slots: S, cache rows per sequence, the trash slot included.
            taps: blocks whose inputs are returned as features for the drafter.

        Raises:
            UserError: another kind of model, too few positions or blocks, or it is spread over devices.
        """
        super().__init__(auto_prefix=False)
        gpt = network.get_gpt_model() if hasattr(network, "get_gpt_model") else None
        if gpt is None or not hasattr(gpt, "decoder") or gpt.config.multi_latent_attention:
            raise UserError(
                f"{type(network).__name__} cannot be a teacher: expected a MindFormers inference model with "
                "ordinary attention, such as Qwen3ForCausalLM with use_legacy: False."
            )
        if gpt.model_comm_pgs.tp.size > 1:
            raise UserError(
                f"the teacher is spread over {gpt.model_comm_pgs.tp.size} devices; expected one: set "
                "parallel_config.model_parallel to 1."
            )
        self.positions = gpt.rotary_pos_emb.cos_cache.shape[0]
        if slots > self.positions:
            raise UserError(
                f"the teacher was made for {self.positions} positions, but the cache has {slots} slots: "
                "lower seq_length."
            )
        network.add_flags_custom_mcore(is_prefill=False)
        self.vocab_size, self.taps, self.slots = gpt.vocab_size, taps, slots
        self.compute_dtype, self.move_lengths = gpt.compute_dtype, gpt.move_lens_to_cpu
        self.eager = ms.get_context("mode") == ms.PYNATIVE_MODE
        self.vocabulary = PagedVocabulary(gpt)
        self.head = self.vocabulary
        self.rope, self.layers, self.norm = (
            gpt.rotary_pos_emb,
            gpt.decoder.layers,
            gpt.decoder.final_layernorm,
        )
        self.cache = PagedCache(network, batch, slots)
        self.steps, self.choice = StockSteps(slots), StockChoice()

    def construct(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run N rows; arguments and results are those of ``Teacher.construct``.

        Args:
            tokens, positions, slots: ``[B, N]`` int32; ``N`` is at most S.
            seen: ``[B, 1, N, S]`` bool, True = discard.
        """
        batch, rows = tokens.shape
        cache, trash = self.cache, self.slots - 1
        blocks, offsets = cache.places(slots)
        where = (blocks * cache.block_size + offsets).reshape(batch * rows)
        used = ops.select(slots == trash, ops.zeros_like(slots), slots)
        # Keys to read: up to the last row in use, and never fewer than there are rows.
        lengths = ops.maximum(ops.ReduceMax(False)(used, 1) + 1, rows).astype(ms.int32)
        fresh = ops.full((batch,), rows, dtype=ms.int32)
        told = (lengths, fresh, lengths - fresh)
        mask = hidden_keys(seen, slots, trash, cache.width, self.compute_dtype)
        cos, sin = self.rope.get_cos_sin_for_decode(positions.reshape(batch * rows))
        on_host = self._on_host(told)
        x = self.vocabulary.embed(tokens)
        width = x.shape[2]
        x = x.reshape(batch * rows, width)
        features = ()
        for i, layer in enumerate(self.layers):
            if i in self.taps:
                features = (*features, x)
            x = layer(
                hidden_states=x,
                attention_mask=mask,
                rotary_pos_cos=cos,
                rotary_pos_sin=sin,
                batch_valid_length=told[0],
                q_seq_lens=told[1],
                context_lens_tensor=told[2],
                block_tables=cache.tables,
                slot_mapping=where,
                key_cache=cache.keys[i],
                value_cache=cache.values[i],
                batch_valid_length_cpu=on_host[0],
                q_seq_lens_cpu=on_host[1],
                context_lens_tensor_cpu=on_host[2],
            )
        features = ops.cat(features, 1) if len(self.taps) > 0 else x
        hidden = self.norm(x).reshape(batch, rows, width)
        return hidden, features.reshape(batch, rows, features.shape[1])

    def _on_host(self, told: tuple[Tensor, Tensor, Tensor]) -> tuple:
        """The lengths in host memory, where the model asks for that."""
        if not self.move_lengths:
            return None, None, None
        if self.eager:
            return told[0].to("CPU"), told[1].to("CPU"), told[2].to("CPU")
        return ops.move_to(told[0], "CPU"), ops.move_to(told[1], "CPU"), ops.move_to(told[2], "CPU")

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states ``[B, N, E] ->`` float32 logits ``[B, N, vocab]``."""
        return self.head.logits(hidden)

    def greedy(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest id of the largest logit, int32 ``[B, N]``, and ``[B]`` bool: one is NaN or infinite."""
        return self.head.greedy(hidden)
