"""A Hugging Face model directory as a float32 GGUF file without a tokenizer, for llama.cpp on token ids.

Format: the GGUF specification of the ggml project; names, row order and rope factors as `gguf_import` and
`gguf_config` read them.
"""

import re
from pathlib import Path

import gguf
import numpy as np

from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.checkpoints.gguf.config import ARCHITECTURES
from ms_eagle.checkpoints.gguf.importing import gguf_name, rotary_rows
from ms_eagle.errors import UserError
from ms_eagle.models.architecture import DecoderConfig
from ms_eagle.system.progress import Progress

# Architectures that compute what one of GGUF's own names does, with other defaults or biases.
_SAME_AS = {"PanguEmbeddedForCausalLM": "LlamaForCausalLM"}


def export(directory: Path, path: Path, progress: Progress | None = None) -> None:
    """Write the model of ``directory`` to ``path``, holding one tensor in memory at a time.

    Args:
        directory: a Hugging Face model directory with safetensors weights.
        path: written directly: give a path in a temporary directory.
        progress: shows the conversion when given.

    Raises:
        UserError: the checkpoint is damaged, or its architecture or rope scaling has no GGUF form here.
    """
    checkpoint = Checkpoint.open(directory)
    decoder = DecoderConfig.from_hf(checkpoint.config)
    shapes = decoder.tensor_shapes()
    checkpoint.check(shapes, decoder.ignorable_tensors())
    architecture, interleaved = _architecture(decoder)
    writer = gguf.GGUFWriter(path, architecture)
    try:
        _describe(writer, decoder)
        factors = _rope_factors(decoder)
        if factors is not None:
            writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
        for name, shape in shapes.items():
            size = 4 * int(np.prod(shape))
            writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.float32), size)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if factors is not None:
            writer.write_tensor_data(factors)
        with (progress or Progress(quiet=True)).steps(f"converting {directory.name}", len(shapes)) as step:
            for name in shapes:
                values = checkpoint.read(name).astype(np.float32, copy=False)
                if interleaved and re.search(r"\.[qk]_proj\.", name):
                    values = _interleaved(values, decoder.head_dim)
                writer.write_tensor_data(values)
                step.advance()
    finally:
        writer.close()


def _architecture(decoder: DecoderConfig) -> tuple[str, bool]:
    """GGUF's name, and whether it stores q and k in the interleaved rotary order."""
    family = _SAME_AS.get(decoder.architecture, decoder.architecture)
    for name, (architecture, interleaved) in ARCHITECTURES.items():
        if architecture == family:
            return name, interleaved
    raise UserError(f"the architecture {decoder.architecture} has no GGUF form here")


def _describe(writer: gguf.GGUFWriter, decoder: DecoderConfig) -> None:
    """Add the keys that llama.cpp computes by; the vocabulary has a size and no words."""
    rope = decoder.rope
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(decoder.num_layers)
    writer.add_context_length(rope.max_positions)
    writer.add_embedding_length(decoder.hidden_size)
    writer.add_feed_forward_length(decoder.intermediate_size)
    writer.add_head_count(decoder.num_heads)
    writer.add_head_count_kv(decoder.num_kv_heads)
    writer.add_key_length(decoder.head_dim)
    writer.add_value_length(decoder.head_dim)
    writer.add_layer_norm_rms_eps(decoder.rms_norm_eps)
    writer.add_rope_dimension_count(decoder.head_dim)
    writer.add_rope_freq_base(rope.theta)
    writer.add_vocab_size(decoder.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    if rope.scaling == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.parameters["factor"])
    elif rope.scaling not in ("default", "llama3"):
        raise UserError(f"{rope.scaling} rope scaling has no GGUF form here; known are linear and llama3")


def _rope_factors(decoder: DecoderConfig) -> np.ndarray | None:
    """Divisors of the inverse frequencies, float32 ``[head_dim / 2]``: GGUF's llama3 scaling."""
    rope = decoder.rope
    if rope.scaling != "llama3":
        return None
    if _architecture(decoder)[0] != "llama":
        raise UserError(f"llama3 rope scaling of {decoder.architecture} has no GGUF form")
    plain = 1.0 / rope.theta ** (np.arange(0, rope.head_dim, 2) / rope.head_dim)
    scaled, _ = rope.frequencies()
    return (plain / scaled).astype(np.float32)


def _interleaved(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of a rotary projection ``[heads * head_dim, ...]`` in the order of GGUF's llama."""
    stored = np.empty_like(values)
    stored[rotary_rows(values.shape[0] // head_dim, head_dim)] = values
    return stored
