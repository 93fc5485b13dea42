"""``EagleConfig``: where teacher and head come from, and how to speculate, as a MindFormers model config."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindformers import AutoConfig, MindFormerModuleType, MindFormerRegister, PretrainedConfig
from pydantic import ValidationError

from ms_eagle.config import schema
from ms_eagle.config.sections import Config
from ms_eagle.errors import UserError

_SECTIONS = ("execution", "drafter", "tree")
# How ms_eagle calls what this class has under a name of its own.
_NAMES = {"source": "teacher", "dtype": "compute_dtype", "max_length": "seq_length"}
_IMPLEMENTATIONS = ("ms_eagle", "mindformers")
_DEFAULT_LENGTH = 2048
_OWN = ("teacher", "eagle", "implementation")
# Native YAML files name a number format for each part; ours are one for the weights and float32 elsewhere.
_ALIKE = ("params_dtype", "param_init_type")
_FLOAT32 = (
    "layernorm_compute_dtype",
    "layernorm_compute_type",
    "softmax_compute_dtype",
    "softmax_compute_type",
    "rotary_dtype",
)


@MindFormerRegister.register(MindFormerModuleType.CONFIG, legacy=True)
@MindFormerRegister.register(MindFormerModuleType.CONFIG, legacy=False, search_names="eagle3")
class EagleConfig(PretrainedConfig):
    """Configuration of ``EagleForCausalLM``.

    The teacher's architecture is read from its own files: keys of its config.json that MindFormers merges
    into this configuration are kept and have no effect, apart from the token ids.

    Attributes:
        teacher: where the teacher comes from, in a form of ``model.source`` (docs/config.md); empty: from
            ``pretrained_model_dir``. A path that exists beside config.json is meant from there.
        seq_length: most tokens of prompt and answer together; by default 2048 or what the teacher allows.
        compute_dtype: ``float32`` (CPU), ``float16`` or ``bfloat16``, of weights, caches and activations.
        implementation: of the teacher: ``ms_eagle`` has one for every architecture that it reads,
            ``mindformers`` takes MindFormers' own inference model (``use_legacy: False``), see ``native``.
        eagle: sections ``execution``, ``drafter`` and ``tree`` of docs/config.md.
        batch_size: sequences decoded together, unless ``eagle`` has ``execution.batch_size``.
    """

    model_type = "eagle3"

    def __init__(
        self,
        teacher: str = "",
        seq_length: int | None = None,
        compute_dtype: str = "float32",
        eagle: Mapping[str, Mapping[str, Any]] | None = None,
        batch_size: int = 1,
        implementation: str = "ms_eagle",
        **kwargs: Any,
    ) -> None:
        """Take the options; further ones are those of ``PretrainedConfig`` and generation options."""
        kwargs.pop("model_type", None)  # of the teacher, where its config.json was merged
        super().__init__(**kwargs)
        self.architectures = ["EagleForCausalLM"]
        self.teacher, self.compute_dtype, self.batch_size = teacher, compute_dtype, batch_size
        self.implementation = implementation
        positions = kwargs.get("max_position_embeddings")
        if not isinstance(positions, int) or positions < 1:  # what is wrong with it is told where it is read
            positions = _DEFAULT_LENGTH
        self.seq_length = min(_DEFAULT_LENGTH, positions) if seq_length is None else seq_length
        self.eagle = _plain(eagle or {})

    @classmethod
    def from_engine_config(cls, config: Config) -> "EagleConfig":
        """The configuration that stands for one of ms_eagle's own, as YAML files in ``configs/`` have it."""
        sections = {name: getattr(config, name).model_dump(exclude_unset=True) for name in _SECTIONS}
        return cls(
            teacher=config.model.source,
            seq_length=config.model.max_length,
            compute_dtype=config.model.dtype,
            eagle={name: section for name, section in sections.items() if section},
            batch_size=config.execution.batch_size,
        )

    @property
    def directory(self) -> Path | None:
        """Where config.json lies, if the configuration came from one."""
        name = self.pretrained_model_dir or self.name_or_path
        return Path(name) if name and Path(name).is_dir() else None

    def engine_config(self) -> Config:
        """What ``loading.load_engine`` takes.

        Raises:
            UserError: an unknown section or key of ``eagle`` or a value out of range, or an option that this
                package does not honour.
        """
        self._check()
        sections = {name: dict(section) for name, section in self.eagle.items()}
        execution, drafter = sections.setdefault("execution", {}), sections.get("drafter", {})
        execution.setdefault("batch_size", self.batch_size)
        if "source" in drafter:
            drafter["source"] = self._beside(drafter["source"])
        source = self._beside(self.teacher) if self.teacher else str(self.directory or "")
        model = {"source": source, "dtype": self.compute_dtype, "max_length": self.seq_length}
        try:
            return Config.model_validate({"model": model, **sections})
        except ValidationError as error:
            message = schema.explain(Config, error, {}, "model_config.eagle")
            for theirs, own in _NAMES.items():
                message = message.replace(f"model_config.eagle: model.{theirs} ", f"model_config.{own} ")
            raise UserError(message) from error

    def _beside(self, source: str | None) -> str | None:
        """``source``, from the directory of config.json if it names something there."""
        if self.directory is not None and source and (self.directory / source).exists():
            return str(self.directory / source)
        return source

    def _check(self) -> None:
        for name in set(vars(self)) - set(_OWN):  # a slip here would switch speculation off in silence
            near = difflib.get_close_matches(name, _OWN, 1, 0.8)
            if near:
                raise UserError(f"model_config.{name} is no key; did you mean {near[0]}?")
        if not self.teacher and self.directory is None:
            raise UserError(
                "model_config.teacher is missing and pretrained_model_dir names no directory: set one of "
                "them to the teacher's Hugging Face directory."
            )
        if not isinstance(self.eagle, dict) or not all(isinstance(s, dict) for s in self.eagle.values()):
            raise UserError(f"model_config.eagle: expected the sections {', '.join(_SECTIONS)}")
        for name in self.eagle:
            if name not in _SECTIONS:
                other = "options of generate()" if name == "generation" else "keys of model_config"
                raise UserError(
                    f"model_config.eagle: unknown section {name}; expected {', '.join(_SECTIONS)}. "
                    f"Everything else is among the {other}, see docs/mindformers.md."
                )
        if self.checkpoint_name_or_path:
            raise UserError(
                f"checkpoint_name_or_path is {self.checkpoint_name_or_path!r}, but ms_eagle reads Hugging "
                "Face directories, not .ckpt files: leave it empty and set teacher or pretrained_model_dir."
            )
        if self.implementation not in _IMPLEMENTATIONS:
            raise UserError(
                f"model_config.implementation is {self.implementation!r}; expected "
                f"{' or '.join(_IMPLEMENTATIONS)}."
            )
        if self.implementation == "mindformers":
            return  # its number formats are its own
        for name in (*_ALIKE, *_FLOAT32):
            wanted = self.compute_dtype if name in _ALIKE else "float32"
            found = getattr(self, name, None)
            if found is not None and found != wanted:
                raise UserError(
                    f"model_config.{name} is {found}; ms_eagle computes this in {wanted}: leave it out."
                )


def _plain(value: Any) -> Any:
    """Mappings and lists of any class as dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


AutoConfig.register("eagle3", EagleConfig, exist_ok=True)
