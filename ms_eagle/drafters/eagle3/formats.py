"""The checkpoint layouts in which EAGLE-3 heads are published: recognition, options and tensor names.

Five layouts are read: SafeAILab/EAGLE, SpecForge, AngelSlim, speculators (vLLM) and Model-Optimizer, whose
export TensorRT-LLM serves. docs/head_formats.md has the table, the sources and the forward formulas.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ms_eagle.errors import UserError
from ms_eagle.models import config_values


@dataclass(frozen=True)
class HeadFormat:
    """One layout.

    Attributes:
        name: as reported to the user.
        trains_biases: whether its trainer gives q, k, v and o biases when ``attention_bias`` is set. The
            SafeAILab line of trainers never does, although their configs often copy the key from the teacher.
        trains_theta: whether every release of its trainer rotates with ``rope_theta`` from the config.
    """

    name: str
    trains_biases: bool
    trains_theta: bool


SAFEAILAB = HeadFormat("SafeAILab", trains_biases=False, trains_theta=False)
SPECFORGE = HeadFormat("SpecForge", trains_biases=False, trains_theta=False)
ANGELSLIM = HeadFormat("AngelSlim", trains_biases=False, trains_theta=False)
SPECULATORS = HeadFormat("speculators", trains_biases=True, trains_theta=True)
MODELOPT = HeadFormat("Model-Optimizer", trains_biases=True, trains_theta=True)

OWN = "ms_eagle"
"""What ``trained_by`` says where our trainer made the head, and so did what the config says."""

_ARCHITECTURES = {
    "LlamaForCausalLM": SAFEAILAB,
    "LlamaForCausalLMEagle3": SPECFORGE,
    "Eagle3LlamaForCausalLM": ANGELSLIM,
    "CosyVoice3Eagle3LlamaForCausalLM": ANGELSLIM,
    "Eagle3Speculator": SPECULATORS,
    "Eagle3DraftModel": SPECULATORS,
    "EAGLE3LlamaForCausalLM": MODELOPT,
    "LlamaForCausalLMEagle3Deep": MODELOPT,
}
_MODELOPT_KEYS = {
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
}

# Options that mean something to `HeadConfig`.
MAPPED = {
    "hidden_size", "target_hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "num_hidden_layers", "vocab_size", "draft_vocab_size", "truncated_vocab_size", "rms_norm_eps",
    "rope_theta", "rope_parameters", "rope_scaling", "max_position_embeddings",
    "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "fc_norm", "norm_before_fc",
    "norm_before_residual", "norm_output", "return_hidden_post_norm", "attention_bias", "qkv_bias",
    "mlp_bias", "bias", "tie_word_embeddings", "model_type", "trained_by",
}  # fmt: skip

# Options whose listed values are what every head here does; any other value is refused with the reason.
_ONLY = {
    "hidden_act": (("silu", "swish"), "only silu is implemented"),
    "use_aux_hidden_state": ((True,), "the head takes only the teacher's last hidden state, as in EAGLE-1"),
    "use_input_layernorm_in_first_layer": ((True,), "an embedding without its norm is not implemented"),
    "use_last_layernorm": ((True,), "a head without a norm before its LM head is not implemented"),
    "next_layer_regular": ((True,), "later layers that take the embedding again are not implemented"),
    "use_mtp_layernorm": ((False,), "multi-token-prediction norms are not implemented"),
    "eh_proj_before_attn": ((False,), "a projection before the attention is not implemented"),
    "parallel_draft_step": ((0, 1), "parallel drafting heads are not implemented"),
    "parallel_drafting": ((False,), "parallel drafting is not implemented"),
    "ptd_token_id": ((), "parallel drafting is not implemented"),
    "pard_token": ((), "parallel drafting is not implemented"),
    "mask_token_id": ((), "parallel drafting (P-EAGLE, DFlash) is not implemented"),
    "num_depths": ((0, 1), "parallel drafting (P-EAGLE) is not implemented"),
    "medusa_num_heads": ((0,), "Medusa heads are not implemented"),
    "kv_lora_rank": ((), "latent attention (MLA) is not implemented"),
    "q_lora_rank": ((), "latent attention (MLA) is not implemented"),
    "use_sliding_window": ((False,), "sliding-window attention is not implemented"),
    "quantization_config": ((), "quantised heads are not implemented: use one in fp32, fp16 or bf16"),
    "compression_config": ((), "quantised heads are not implemented: use one in fp32, fp16 or bf16"),
    "partial_rotary_factor": ((1.0,), "partial rotation is not implemented"),
    "position_embedding_type": (("rope",), "only rotary positions are implemented"),
    "use_rotary_pos_emb": ((True,), "only rotary positions are implemented"),
    "use_mrope": ((False,), "rotation over several axes is not implemented"),
    "norm_type": (("rms",), "only RMSNorm is implemented"),
    "logit_scale": ((1.0,), "scaled logits are not implemented"),
    "is_causal": ((True,), "bidirectional attention is not implemented"),
}  # fmt: skip

# Options without effect on a head's arithmetic: bookkeeping, training, generation, the teacher's own. The
# experts of a teacher are among them: a head's MLP is dense, and tensors of experts would be unexpected.
_INERT = {
    "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "name_or_path",
    "_name_or_path", "has_no_defaults_at_init", "speculators_version", "speculators_model_type",
    "speculators_config", "embed_requires_grad", "inference_type", "target_model_type", "modal_type",
    "initializer_range", "attention_dropout", "use_cache", "pretraining_tp", "max_window_layers",
    "sliding_window", "eagle_config", "transformer_layer_config", "parallel_draft_heads_num_layers",
    "eh_proj_bias", "decoder_sparse_step",
    "eagle_decoder_type", "has_lm_head", "load_embedding_from_target", "load_lm_head_from_target",
    "use_qk_norm", "attention_head_dim", "add_classification_head", "class_num",
    "cla_share_factor", "use_cla", "dense_list", "pool_type", "org_vocab_size", "pad_id", "return_dict",
    "output_attentions", "output_hidden_states", "id2label", "label2id", "chunk_size_feed_forward",
    "is_encoder_decoder", "is_decoder", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "num_beams", "num_beam_groups", "do_sample",
    "diversity_penalty", "early_stopping", "max_length", "min_length", "num_return_sequences",
    "encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "remove_invalid_values",
    "return_dict_in_generate", "output_scores", "tie_encoder_decoder", "task_specific_params",
    "problem_type", "torchscript", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "base_model_ep_plan", "base_model_tp_plan", "base_model_pp_plan",
    "moe_intermediate_size", "norm_topk_prob", "num_experts", "num_experts_per_tok", "num_local_experts",
    "output_router_logits", "router_aux_loss_coef", "mlp_only_layers", "max_sequence_length",
    "shared_expert_intermediate_size",
}  # fmt: skip
_INERT_PATTERN = re.compile(
    r"(.*_token_ids?|(im|image|video|vision|audio|text|mask|eod)_\w*id|im_newline_id)"
)

_NOT_A_PARAMETER = re.compile(
    r"(.*\.)?(rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)|verifier_\w+\.weight)"
)
_REFUSED_TENSORS = {
    r".*(_scale(_inv|_2)?|zero_point|qweight|qzeros|scales|weight_packed|g_idx)": "quantised heads are not"
    " implemented",
    r"mask_hidden": "parallel drafting (P-EAGLE) is not implemented",
    r"(parallel_draft_heads|medusa)\..*": "parallel drafting heads are not implemented",
    r".*\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\..*": "latent attention (MLA) is not implemented",
    r"(enorm|hnorm|eh_proj|embed_layernorm|post_embedding_layernorm)\..*": "it belongs to another kind of"
    " draft model, not to EAGLE-3",
}
_LAYER = re.compile(r"(midlayer|layers)\.(?:([0-9]{1,9})\.)?(.+)")
_IN_LAYER = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    **{f"self_attn.{p}_proj.{k}": f"attention.{p}_proj.{k}" for p in "qkvo" for k in ("weight", "bias")},
    **{f"self_attn.{p}_norm.weight": f"attention.{p}_norm.weight" for p in "qk"},
    **{f"mlp.{p}_proj.{k}": f"mlp.{p}_proj.{k}" for p in ("gate", "up", "down") for k in ("weight", "bias")},
}


def recognise(config: Mapping[str, object]) -> HeadFormat:
    """Name the layout of a head's config.json.

    Raises:
        UserError: the config describes another kind of draft model, or an architecture that is not known.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    kind = config.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise UserError(
            f"config.json: speculators_model_type is {kind!r}; only eagle3 heads are implemented."
        )
    nested = _nested(config, "eagle_config")
    if kind == "eagle3" or "transformer_layer_config" in config:
        return SPECULATORS
    if name is not None and name not in _ARCHITECTURES:
        raise UserError(
            f"config.json: architecture {name!r} is not an EAGLE-3 head that is implemented; known are "
            f"{', '.join(sorted(_ARCHITECTURES))}."
        )
    if _MODELOPT_KEYS & set(nested):
        return MODELOPT
    return SAFEAILAB if name is None else _ARCHITECTURES[name]


def flatten(config: Mapping[str, object]) -> dict[str, object]:
    """Bring a head's options to one level and refuse those that are not implemented.

    Options stand at the top level, in ``transformer_layer_config`` (speculators) or in ``eagle_config``
    (SpecForge, Model-Optimizer). Options that are None are dropped.

    Returns: the options of `MAPPED` that are present.

    Raises:
        UserError: naming the option: given twice with two values, not implemented, or not known.
    """
    levels = [_nested(config, "transformer_layer_config"), _nested(config, "eagle_config"), config]
    flat: dict[str, object] = {}
    for level in levels:
        for key, value in level.items():
            if value is None:
                continue
            if key in flat and flat[key] != value and key in MAPPED - {"model_type", "tie_word_embeddings"}:
                raise UserError(
                    f"config.json: {key} is given twice, as {flat[key]!r} and as {value!r}; keep one."
                )
            flat.setdefault(key, value)
    config_values.check(config_values.DecoderValues, flat, "config.json: ")
    for key, value in flat.items():
        _check_option(key, value)
    return {key: value for key, value in flat.items() if key in MAPPED}


def canonical_name(name: str) -> str | None:
    """Translate a tensor's name in the file to ours (docs/head_formats.md, "Tensors").

    Returns: our name; the name as it is where none is known; None for what holds no parameter of the head.

    Raises:
        UserError: the tensor belongs to something that is not implemented.
    """
    name = name.removeprefix("model.")
    if _NOT_A_PARAMETER.fullmatch(name):
        return None
    for pattern, reason in _REFUSED_TENSORS.items():
        if re.fullmatch(pattern, name):
            raise UserError(f"the head has the tensor {name}: {reason}.")
    if name == "embed_tokens.weight":
        return "embed.weight"
    match = _LAYER.fullmatch(name)
    if match is None or (match[2] is None and match[1] == "layers"):
        return name
    layer, rest = int(match[2] or 0), match[3]
    if rest in ("input_layernorm.weight", "hidden_norm.weight"):
        # Later layers take one hidden state and have one norm on it; exporters name it either way.
        return (
            f"layers.{layer}.{'hidden' if rest.startswith('hidden') and layer == 0 else 'input'}_norm.weight"
        )
    return f"layers.{layer}.{_IN_LAYER[rest]}" if rest in _IN_LAYER else name


def layer_of(name: str) -> int | None:
    """The layer of a tensor, by our name; None for one of no layer.

    Raises:
        UserError: a name that should have a layer's number and does not.
    """
    if not name.startswith("layers."):
        return None
    match = re.match(r"layers\.([0-9]{1,9})\.", name)
    if match is None:
        raise UserError(
            f"the head has the tensor {name:.80}: expected the number of a layer after 'layers.'."
        )
    return int(match[1])


def numbers_layers(name: str) -> bool:
    """Whether a tensor's name in the file carries a layer number, unlike plain ``midlayer.``."""
    match = _LAYER.fullmatch(name.removeprefix("model."))
    return match is not None and match[2] is not None


def _nested(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise UserError(f"config.json: {key} is {value!r}; expected a mapping.")
    return value


def _check_option(key: str, value: object) -> None:
    if key in _ONLY:
        accepted, reason = _ONLY[key]
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted):
            raise UserError(f"config.json: {key} is {value!r}; {reason}.")
    elif key == "layer_types":
        if value != ["full_attention"] * (len(value) if isinstance(value, list) else 0):
            raise UserError(f"config.json: layer_types is {value!r}; only full attention is implemented.")
    elif key == "speculators_config":
        algorithm = value.get("algorithm", "eagle3") if isinstance(value, Mapping) else value
        if algorithm != "eagle3":
            raise UserError(
                f"config.json: the algorithm is {algorithm!r}; only eagle3 heads are implemented."
            )
    elif key not in MAPPED and key not in _INERT and not _INERT_PATTERN.fullmatch(key) and value:
        raise UserError(
            f"config.json: the option {key!r} is not known, so the head may compute something else; "
            "remove it from config.json if it has no effect on the head."
        )
