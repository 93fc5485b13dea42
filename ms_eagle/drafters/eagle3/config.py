"""What an EAGLE-3 head looks like: one description for every layout in which heads are published.

The forward pass that the fields select, for one row with token ``t``, feature ``f`` and position ``p``
(EAGLE-3, arXiv 2503.01840, section 3; sources of each variant in docs/head_formats.md)::

    f   = fc([f_1; ...; f_k] (+ bias))       from the taps; between draft steps f is the previous g
          f_i        <- RMSNorm_i(f_i)        first, with fc_norm
          [f_1;..f_k] <- RMSNorm([f_1;..f_k])  first, with norm_before_fc
    e   = embed[t]
    n   = hidden_norm(f), or hidden_norm(input_norm(f)) with double_norm
    h_0 = (n if norm_before_residual else f) + attention_0([input_norm(e); n], p)
    h_0 = h_0 + mlp_0(post_attention_norm(h_0))
    h_l = h_{l-1} + attention_l(input_norm_l(h_{l-1}), p), then its MLP     for later layers
    logits = lm_head(norm(h)), over the draft vocabulary; lm_head(h) with raw_logits
    g   = norm(h) if norm_output else h       the next step's feature
"""

from dataclasses import dataclass

from ms_eagle.models.architecture import DecoderConfig, LayerConfig
from ms_eagle.models.rope import RopeConfig


@dataclass(frozen=True, kw_only=True)
class HeadConfig(LayerConfig):
    """An EAGLE-3 head; the module's docstring says what each variant computes.

    Attributes:
        format: name of the layout it was published in.
        hidden_size: width of the head, E.
        target_hidden_size: the teacher's hidden size.
        vocab_size: the teacher's vocabulary.
        draft_vocab_size: rows of the head's LM head; equal to vocab_size where the vocabulary is not reduced.
        num_layers: decoder layers; the first takes ``[embedding; feature]``, later ones the hidden state.
        rope: rotary embedding, over the whole head.
        taps: teacher blocks whose *inputs* are concatenated into the feature, ascending.
        fc_norm, norm_before_fc, norm_before_residual, norm_output, double_norm, raw_logits: the variants
            above.
        fc_bias: whether ``fc`` carries one.
        own_embedding: the head has its embedding; otherwise it uses the teacher's.
        shares_lm_head: the head has no LM head and uses the teacher's, over the full vocabulary.
        hidden_act: always ``silu``.
        notes: sentences a user who looks at the head should hear, such as an absent rope_theta.
        doubts: sentences about what its config says and its trainer may not have done; each names the key
            that settles it.
    """

    format: str
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int
    vocab_size: int
    draft_vocab_size: int
    rope: RopeConfig
    taps: tuple[int, ...]
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    double_norm: bool = False
    raw_logits: bool = False
    fc_bias: bool = False
    own_embedding: bool = False
    shares_lm_head: bool = False
    hidden_act: str = "silu"
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @classmethod
    def like(
        cls,
        decoder: DecoderConfig,
        layout: str,
        *,
        draft_vocab_size: int,
        taps: tuple[int, ...],
        num_layers: int = 1,
    ) -> "HeadConfig":
        """A plain head whose layers have the sizes of the teacher's, and no biases; the rest as above."""
        return cls(
            format=layout,
            hidden_size=decoder.hidden_size,
            target_hidden_size=decoder.hidden_size,
            intermediate_size=decoder.intermediate_size,
            num_heads=decoder.num_heads,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            num_layers=num_layers,
            vocab_size=decoder.vocab_size,
            draft_vocab_size=draft_vocab_size,
            rms_norm_eps=decoder.rms_norm_eps,
            rope=decoder.rope,
            taps=taps,
        )

    @property
    def num_taps(self) -> int:
        """How many teacher hidden states make one feature."""
        return len(self.taps)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every float tensor, in our names (docs/head_formats.md, "Tensors")."""
        hidden, inner, d = self.hidden_size, self.intermediate_size, self.head_dim
        features = self.num_taps * self.target_hidden_size
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, features)}
        if self.own_embedding:
            shapes["embed.weight"] = (self.vocab_size, hidden)
        if self.fc_bias:
            shapes["fc.bias"] = (hidden,)
        if self.norm_before_fc:
            shapes["input_norm.weight"] = (features,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (self.target_hidden_size,) for i in range(self.num_taps)}
        q, kv = self.num_heads * d, self.num_kv_heads * d
        for layer in range(self.num_layers):
            wide = 2 * hidden if layer == 0 else hidden
            for part, rows, columns, bias in (
                ("attention.q_proj", q, wide, self.qkv_bias),
                ("attention.k_proj", kv, wide, self.qkv_bias),
                ("attention.v_proj", kv, wide, self.qkv_bias),
                ("attention.o_proj", hidden, q, self.o_bias),
                ("mlp.gate_proj", inner, hidden, self.mlp_bias),
                ("mlp.up_proj", inner, hidden, self.mlp_bias),
                ("mlp.down_proj", hidden, inner, self.mlp_bias),
            ):
                shapes[f"layers.{layer}.{part}.weight"] = (rows, columns)
                if bias:
                    shapes[f"layers.{layer}.{part}.bias"] = (rows,)
            norms = ("input_norm", "hidden_norm", "post_attention_norm")
            for norm in norms if layer == 0 else (norms[0], norms[2]):
                shapes[f"layers.{layer}.{norm}.weight"] = (hidden,)
            if self.qk_norm:
                shapes |= {f"layers.{layer}.attention.{p}_norm.weight": (d,) for p in "qk"}
        shapes["norm.weight"] = (hidden,)
        if not self.shares_lm_head:
            shapes["lm_head.weight"] = (self.draft_vocab_size, hidden)
        return shapes
