"""From a head's options and tensor shapes to its `HeadConfig`, for one teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.drafters.eagle3.formats import OWN, SPECFORGE, SPECULATORS, HeadFormat, layer_of
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.models.rope import RopeConfig

_DEFAULT_THETA = 10000.0  # transformers' LlamaConfig and every trainer of heads
_DEFAULT_EPS = 1e-6  # transformers' LlamaConfig
VARIANTS = ("norm_before_residual", "norm_output", "double_norm", "raw_logits")
"""Options of ``HeadConfig`` without a tensor of their own, which a config may state wrongly."""


@dataclass
class HeadReader:
    """One reading of a head.

    Attributes:
        options: from `ms_eagle.drafters.eagle3.formats.flatten`.
        layout: from `ms_eagle.drafters.eagle3.formats.recognise`.
        shapes: every float tensor of the file, by our names.
        teacher: the model the head drafts for.
        nested_taps: the tap ids stand in ``eagle_config``.
        numbered_layers: the layers' tensors carry numbers.
        notes, doubts: see ``HeadConfig``; collected while reading.
    """

    options: Mapping[str, Any]
    layout: HeadFormat
    shapes: Mapping[str, tuple[int, ...]]
    teacher: DecoderConfig
    nested_taps: bool
    numbered_layers: bool
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def read(
        self,
        taps: Sequence[int] | None = None,
        rope_theta: float | None = None,
        variants: Mapping[str, bool] | None = None,
    ) -> HeadConfig:
        """Describe the head.

        Args:
            taps: inputs of teacher blocks to use whatever the config says.
            rope_theta: base of the rotation to use whatever the config says.
            variants: some of ``VARIANTS``, to use whatever the config says.

        Raises:
            UserError: an option is missing, malformed or contradicts the tensors; the teacher is another one;
                the taps are out of range, repeated or unknown.
        """
        hidden = self._size("hidden_size")
        target = self._size("target_hidden_size", hidden)
        self._check_teacher(target)
        self._check_kind(hidden)
        heads = self._size("num_attention_heads")
        kv_heads = self._size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise UserError(f"config.json: {heads} attention heads do not divide over {kv_heads} KV heads.")
        head_dim = self._head_dim(heads)
        qkv_bias, o_bias = self._attention_biases()
        fc_norm = self._switch("fc_norm", "fc_norm.0.weight")
        norm_before_fc = self._switch("norm_before_fc", "input_norm.weight")
        if fc_norm and norm_before_fc:
            raise UserError("config.json: fc_norm and norm_before_fc are both set; a head has one or none.")
        config = HeadConfig(
            format=self.layout.name,
            hidden_size=hidden,
            target_hidden_size=target,
            intermediate_size=self._size("intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            num_layers=self._num_layers(),
            vocab_size=self._size("vocab_size"),
            draft_vocab_size=self._draft_vocab_size(),
            rms_norm_eps=self._eps(),
            rope=self._rope(head_dim, rope_theta),
            taps=self._taps(target, taps),
            fc_norm=fc_norm,
            norm_before_fc=norm_before_fc,
            norm_before_residual=self._norm_before_residual(),
            norm_output=self._norm_output(),
            fc_bias=self._fc_bias(),
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            mlp_bias=self._switch("mlp_bias", "layers.0.mlp.gate_proj.bias"),
            qk_norm=self._qk_norm(),
            own_embedding=self._own_embedding(hidden),
            shares_lm_head=self._shares_lm_head(hidden),
        )
        variants = dict(variants or {})
        if variants:
            listed = ", ".join(f"{name} {str(value).lower()}" for name, value in variants.items())
            self.notes.append(f"{listed}: used as asked, whatever config.json says.")
        doubts = [doubt for doubt in self.doubts if not any(f"drafter.{name}" in doubt for name in variants)]
        return replace(config, **variants, notes=tuple(self.notes), doubts=tuple(doubts))

    def _size(self, key: str, default: int | None = None) -> int:
        value = self.options.get(key, default)
        if not isinstance(value, int):
            raise UserError(f"config.json: {key} is {value!r}; expected a whole number of at least 1.")
        return value

    def _rows(self, tensor: str, default: int) -> int:
        shape = self.shapes.get(tensor, ())
        return shape[0] if len(shape) == 2 else default

    def _flag(self, key: str) -> bool | None:
        value = self.options.get(key)
        return None if value is None else bool(value)

    def _switch(self, key: str, tensor: str) -> bool:
        """An option that comes with a tensor: the tensor decides where the option is silent."""
        flag = self._flag(key)
        present = tensor in self.shapes
        if flag is False and present:
            raise UserError(f"config.json: {key} is false, but the head has a tensor for it ({tensor}).")
        return present if flag is None else flag

    def _check_teacher(self, target: int) -> None:
        vocab = self._size("vocab_size")
        for what, ours, theirs in (
            ("hidden states of width", target, self.teacher.hidden_size),
            ("a vocabulary of", vocab, self.teacher.vocab_size),
        ):
            if ours != theirs:
                raise UserError(
                    f"the head was trained for a teacher with {what} {ours}, this teacher has {theirs}: it "
                    "is a head for another model; give drafter.source one for this teacher, or set "
                    "drafter.kind=none."
                )

    def _check_kind(self, hidden: int) -> None:
        q = self.shapes.get("layers.0.attention.q_proj.weight")
        if q is not None and len(q) == 2 and q[1] == hidden:
            raise UserError(
                f"the first layer's q_proj takes {hidden} inputs where an EAGLE-3 head takes {2 * hidden}: "
                "this is a head of EAGLE-1 or 2 or a whole model, not an EAGLE-3 head."
            )
        fc = self.shapes.get("fc.weight")
        if fc is None:
            raise UserError(
                "the head has no fc.weight over the teacher's hidden states, so it is not an EAGLE-3 head: "
                "heads of EAGLE-1 and 2 are not implemented."
            )
        if len(fc) != 2 or fc[0] != hidden or not fc[1] or fc[1] % self.teacher.hidden_size:
            raise UserError(
                f"fc.weight is mis-shaped: {list(fc)}; expected [{hidden}, a multiple of "
                f"{self.teacher.hidden_size}]."
            )

    def _head_dim(self, heads: int) -> int:
        if "head_dim" in self.options:
            return self._size("head_dim")
        rows = self._rows("layers.0.attention.q_proj.weight", heads)
        if rows % heads:
            raise UserError(f"the first layer's q_proj has {rows} outputs, not a multiple of {heads} heads.")
        return rows // heads

    def _num_layers(self) -> int:
        numbers = {layer for name in self.shapes if (layer := layer_of(name)) is not None} or {0}
        count = 1 + max(numbers)
        stated = self._size("num_hidden_layers", count)
        if stated != count and self.numbered_layers:
            raise UserError(
                f"config.json: num_hidden_layers is {stated}, but the head has tensors for {count}."
            )
        if len(numbers) < count:  # before a table is made for so many
            absent = next(number for number in range(count) if number not in numbers)
            raise UserError(
                f"the head has tensors of layer {count - 1}, but none of layer {absent}: fetch it again."
            )
        if stated == count:
            return count
        self.notes.append(
            f"config.json says num_hidden_layers {stated}, as its teacher's may: the head has {count}."
        )
        return count

    def _draft_vocab_size(self) -> int:
        vocab = self._size("vocab_size")
        found = self._rows("lm_head.weight", vocab)
        keys = [key for key in ("draft_vocab_size", "truncated_vocab_size") if key in self.options]
        sizes = {self._size(key) for key in keys} or {found}
        if len(sizes) > 1:
            raise UserError(f"config.json: {keys[0]} and {keys[1]} differ ({sorted(sizes)}); keep one.")
        (size,) = sizes
        if size > vocab:
            raise UserError(f"config.json: draft_vocab_size {size} is larger than the vocabulary of {vocab}.")
        return size

    def _shares_lm_head(self, hidden: int) -> bool:
        shares = "lm_head.weight" not in self.shapes
        draft = self._draft_vocab_size()
        if shares and (draft, hidden) != (self.teacher.vocab_size, self.teacher.hidden_size):
            raise UserError(
                "the head has no lm_head.weight and cannot use the teacher's: expected a tensor of shape "
                f"[{draft}, {hidden}]."
            )
        return shares

    def _own_embedding(self, hidden: int) -> bool:
        own = "embed.weight" in self.shapes
        if not own and hidden != self.teacher.hidden_size:
            raise UserError(
                "the head has no embed_tokens.weight and cannot use the teacher's: expected a tensor of "
                f"shape [{self.teacher.vocab_size}, {hidden}]."
            )
        return own

    def _attention_biases(self) -> tuple[bool, bool]:
        """Whether q, k and v carry biases, and whether o does."""
        qkv = any(f"layers.0.attention.{p}_proj.bias" in self.shapes for p in "qkv")
        o = "layers.0.attention.o_proj.bias" in self.shapes
        everywhere, inputs = self._flag("attention_bias"), self._flag("qkv_bias")
        if everywhere and not (qkv or o) and not self.layout.trains_biases:
            self.notes.append(
                f"config.json sets attention_bias, as its teacher's may; layers of {self.layout.name} have "
                "no biases and the head has no tensors for them."
            )
            return False, False
        if (everywhere is False and (qkv or o)) or (inputs is False and qkv):
            key = "attention_bias" if everywhere is False else "qkv_bias"
            raise UserError(f"config.json: {key} is false, but the head has tensors for attention biases.")
        return qkv or bool(everywhere) or bool(inputs), o or bool(everywhere)

    def _fc_bias(self) -> bool:
        # In the SafeAILab line `bias` is left over from EAGLE-1; its EAGLE-3 code does not read it.
        return self._switch("bias", "fc.bias") if self.layout.trains_biases else "fc.bias" in self.shapes

    def _qk_norm(self) -> bool:
        present = "layers.0.attention.q_norm.weight" in self.shapes
        return present or (self.layout is SPECULATORS and self.options.get("model_type") == "qwen3")

    def _norm_before_residual(self) -> bool:
        flag = self._flag("norm_before_residual")
        if flag is None and self.layout is SPECULATORS:
            self.doubts.append(
                "config.json does not say norm_before_residual: false is used, as speculators does; vLLM "
                "takes true: if acceptance is low, set drafter.norm_before_residual=true."
            )
        return bool(flag)

    def _norm_output(self) -> bool:
        flag = bool(self._flag("norm_output") or self._flag("return_hidden_post_norm"))
        if self.layout is SPECFORGE and not self._own:
            if flag:
                self.doubts.append(
                    "norm_output is set, which SpecForge's trainer did not carry out before September 2026: "
                    "if acceptance falls after the first draft token, set drafter.norm_output=false."
                )
            elif self._flag("norm_output") is False:
                self.doubts.append(
                    "norm_output is false, which SpecForge's own code takes for no norm before the LM head: "
                    "if acceptance is low, set drafter.raw_logits=true."
                )
        return flag

    @property
    def _own(self) -> bool:
        return self.options.get("trained_by") == OWN

    def _eps(self) -> float:
        value = self.options.get("rms_norm_eps")
        if value is None:
            self.notes.append(
                f"config.json has no rms_norm_eps: {_DEFAULT_EPS:g} is used, the default of Llama."
            )
            return _DEFAULT_EPS
        return float(value)

    def _rope(self, head_dim: int, asked: float | None) -> RopeConfig:
        options = dict(self.options)
        places = [options, *(options[key] for key in ("rope_parameters", "rope_scaling") if key in options)]
        stated = any(isinstance(place, Mapping) and place.get("rope_theta") for place in places)
        if asked is not None:
            for key in ("rope_parameters", "rope_scaling"):
                if isinstance(options.get(key), Mapping):
                    options[key] = {k: v for k, v in options[key].items() if k != "rope_theta"}
            options["rope_theta"] = asked
        rope = RopeConfig.from_hf(options, head_dim, default_theta=_DEFAULT_THETA)
        if asked is not None:
            self.notes.append(f"rope_theta {asked:g} is used as asked, whatever config.json says.")
        elif not stated:
            self.notes.append(
                f"config.json has no rope_theta: {_DEFAULT_THETA:g} is used, the default of Llama."
            )
        elif (
            not (self.layout.trains_theta or self._own)
            and rope.scaling == "default"
            and rope.theta != _DEFAULT_THETA
        ):
            self.doubts.append(
                f"rope_theta is {rope.theta:g}, from config.json; the trainers of SafeAILab and AngelSlim, "
                f"and SpecForge's before November 2025, rotated with {_DEFAULT_THETA:g} whatever it said: if "
                f"acceptance is low, set drafter.rope_theta={_DEFAULT_THETA:g}."
            )
        return rope

    def _taps(self, target: int, asked: Sequence[int] | None) -> tuple[int, ...]:
        count = self.shapes["fc.weight"][1] // target
        stated = self._size("num_aux_hidden_states", count)
        if stated != count:
            raise UserError(f"config.json: num_aux_hidden_states is {stated}, but fc.weight takes {count}.")
        layers = self.teacher.num_layers
        if asked is not None:
            taps, notes = head_taps.as_asked(asked, count, layers)
        else:
            taps, notes = head_taps.from_config(
                self.options.get(head_taps.KEY), self.nested_taps, count, layers
            )
        self.notes += notes
        return taps
