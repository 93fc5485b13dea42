"""MindFormers' text generation pipeline, which keeps what its tokenizer says about padding."""

from typing import Any

import mindspore as ms
from mindformers import AutoModelForCausalLM, MindFormerModuleType, MindFormerRegister
from mindformers.pipeline.registry_constant import PIPELINE_REGISTRY
from mindformers.pipeline.text_generation_pipeline import TextGenerationPipeline

from ms_eagle.mindformers.model import EagleForCausalLM


@MindFormerRegister.register(MindFormerModuleType.PIPELINE, alias="text_generation", legacy=True)
@MindFormerRegister.register(MindFormerModuleType.PIPELINE, alias="text_generation", legacy=False)
class MaskedTextGeneration(TextGenerationPipeline):
    """MindFormers' own hands ids only to the model, and a padding token may stand in a prompt as well.

    For other models than ours it does what MindFormers' own does.
    """

    def preprocess(self, inputs: str | list[str] | dict[str, Any], **options: Any) -> dict[str, Any]:
        """See ``TextGenerationPipeline.preprocess``; the mask comes with the ids."""
        if not isinstance(self.network, EagleForCausalLM):
            return super().preprocess(inputs, **options)
        if isinstance(inputs, dict):
            name = (options.get("keys") or {}).get("src_language", "text")
            inputs = inputs[name]
            inputs = inputs.asnumpy().tolist() if isinstance(inputs, ms.Tensor) else inputs
        special = options.get("add_special_tokens", True)
        encoded = self.tokenizer(inputs, add_special_tokens=special, padding=True, return_attention_mask=True)
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def _forward(self, model_inputs: dict[str, Any], **options: Any) -> Any:
        if "attention_mask" in model_inputs:
            options["attention_mask"] = model_inputs["attention_mask"]
        return super()._forward(model_inputs, **options)


PIPELINE_REGISTRY.register_pipeline(
    "text-generation", MaskedTextGeneration, ms_model=(AutoModelForCausalLM,), task_type="text"
)
