"""From an ``EagleConfig`` to an engine, over a teacher of our own or one of MindFormers'."""

import time

import mindspore as ms
from mindformers import MindFormerConfig, PreTrainedModel
from mindformers.core.context.build_context import is_legacy_model
from mindformers.models import build_network

from ms_eagle import loading
from ms_eagle.backends.choosing import DTYPES
from ms_eagle.backends.stock import StockBackend
from ms_eagle.checkpoints.sources import resolve
from ms_eagle.config.sections import Config
from ms_eagle.engine.engine import Engine
from ms_eagle.errors import UserError
from ms_eagle.loading import Model
from ms_eagle.mindformers.config import EagleConfig
from ms_eagle.mindformers.paged_cache import PagedReorder
from ms_eagle.mindformers.paged_teacher import PagedTeacher
from ms_eagle.models.commit import KeepOrder
from ms_eagle.system.progress import Progress

_BLOCK = 32  # tokens of a cache block, unless model_config says otherwise
_PARTS = ("params_dtype", "layernorm_compute_dtype", "softmax_compute_dtype", "rotary_dtype")


def load(config: EagleConfig, progress: Progress | None = None) -> Engine:
    """Load what ``config`` names, with the teacher's implementation that it asks for.

    Args:
        progress: shows what is fetched, prepared and loaded; None shows it too.

    Raises:
        UserError: see ``EagleConfig.engine_config``, ``loading.load_engine`` and ``native_engine``.
    """
    ours = config.engine_config()
    if config.implementation == "ms_eagle":
        return loading.load_engine(ours, progress or Progress())
    _check(ours)
    progress = progress or Progress()
    model = loading.open_model(ours, progress)
    sizes = loading.sizes_of(ours, loading.open_drafter(ours, model, progress))
    network = _network(config, ours, model, sizes.slots)
    return native_engine(network, ours)


def native_engine(network: PreTrainedModel, config: Config) -> Engine:
    """An engine whose teacher is a MindFormers inference model.

    Args:
        network: such as Qwen3ForCausalLM of ``use_legacy: False``, with its weights loaded; its
            ``num_blocks`` must hold ``execution.batch_size`` sequences of ``model.max_length`` tokens and
            a tree.
        config: ``model.source`` names the directory it was loaded from; kernels and commit are its own.

    Raises:
        UserError: options that such a teacher does not have, or see ``PagedTeacher`` and ``open_drafter``.
    """
    begin, progress = time.perf_counter(), Progress()
    _check(config)
    loading.check_drafter(config)
    model = loading.open_model(config, progress)
    drafter = loading.open_drafter(config, model, progress)
    sizes = loading.sizes_of(config, drafter)
    number, biased = DTYPES[config.model.dtype], model.decoder.qkv_bias
    teacher = PagedTeacher(
        network,
        batch=sizes.batch,
        slots=sizes.slots,
        taps=() if drafter is None else drafter.needs.taps,
    )
    if teacher.compute_dtype != number:
        raise UserError(
            f"the teacher computes in {teacher.compute_dtype}, model.dtype is {config.model.dtype}: make "
            "them the same."
        )
    if bool(network.get_gpt_model().config.add_qkv_bias) != biased:
        raise UserError(
            f"the teacher was built {'without' if biased else 'with'} biases on q, k and v, its weights are "
            f"{'with' if biased else 'without'} them: set model_config.add_qkv_bias to {biased}."
        )
    fused = ms.get_context("device_target") == "Ascend" and number != ms.float32
    backend = StockBackend("fused" if fused else "eager", number)
    reorder = KeepOrder if config.execution.commit == "length" else PagedReorder
    graphs = loading.make_graphs(
        config, teacher, drafter, backend, sizes, kernels="mindformers", reorder=reorder
    )
    return Engine(
        graphs,
        model.tokenizer,
        directory=model.files.directory,
        load_seconds=time.perf_counter() - begin,
    )


def _network(config: EagleConfig, ours: Config, model: Model, slots: int) -> PreTrainedModel:
    """MindFormers' own model of a Hugging Face directory, large enough for our cycle."""
    if is_legacy_model():
        raise UserError(
            "model_config.implementation is mindformers, which works with use_legacy: False only: set it "
            "in the YAML file, or call mindformers.build_context(...) with it first."
        )
    block = getattr(config, "block_size", _BLOCK)
    given = {name: getattr(config, name) for name in _PARTS if hasattr(config, name)}
    settings = {
        "compute_dtype": config.compute_dtype,
        "params_dtype": config.compute_dtype,
        "layernorm_compute_dtype": "float32",
        "softmax_compute_dtype": "float32",
        "rotary_dtype": config.compute_dtype,
        **({} if "attention_bias" in model.checkpoint.config else {"add_qkv_bias": model.decoder.qkv_bias}),
        **given,
        "seq_length": slots,
        "block_size": block,
        "num_blocks": ours.execution.batch_size * -(-slots // block),
    }
    files = resolve(
        ours.model.source, cache_dir=ours.model.cache_path, progress=Progress(quiet=True), widened=True
    )
    directory = str(files.directory)
    network = build_network(MindFormerConfig(pretrained_model_dir=directory, model_config=settings))
    network.load_weights(directory)
    return network


def _check(config: Config) -> None:
    """Refuse what a teacher of MindFormers' does not have."""
    for name, found, expected in (
        ("model.weights", config.model.weights, ("auto", "float32")),
        ("execution.mode", config.execution.mode, ("performance",)),
        ("execution.commit", config.execution.commit, ("fast", "length")),
        ("execution.kernels", config.execution.kernels, ("auto",)),
    ):
        if found not in expected:
            raise UserError(
                f"{name} is {found}, which a teacher of MindFormers' does not have: set it to {expected[0]}."
            )
