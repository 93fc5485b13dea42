"""A head that really predicts: random layers with an LM head fitted to a tiny teacher's own answers.

All is computed with transformers and ``reference_head``, nothing with the package's Cells. The head is wider
than there are positions, so that least squares reach every one of them; any other reading of the same weights
gives features for which the fit means nothing.
"""

from pathlib import Path

import numpy as np
import torch
import transformers
from support import head_files, reference_head
from support.tiny_eagle import decoder

from ms_eagle.diagnosis.check import PROMPTS
from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.template import load_template

WIDTH, DEPTH, VOCABULARY = 512, 3, 160


def answers(model: Path, capacity: int) -> list[tuple[list[int], int]]:
    """The teacher's greedy answers: tokens of prompt and answer, and the length of the prompt."""
    teacher = transformers.AutoModelForCausalLM.from_pretrained(model)
    tokenizer, template = load_tokenizer(model), load_template(model)
    found = []
    for prompt in PROMPTS:
        tokens = template.encode([{"role": "user", "content": prompt}], tokenizer)
        new = min(128, capacity - len(tokens))
        out = teacher.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens)),
            max_new_tokens=new,
            do_sample=False,
        )
        found.append((out[0].tolist(), len(tokens)))
    return found


def write(
    model: Path,
    directory: Path,
    *,
    taps=(0, 1, 2),
    capacity=128,
    theta=10000.0,
    told=None,
    order=None,
    variants=None,
    **options,
) -> Path:
    """Fit a head and write it.

    Args:
        taps, theta, options: what the head is fitted with; options are keys of its config.json.
        told: keys of config.json that say otherwise.
        variants: what the head is fitted with and no config says.
        order: maps the draft ids to other rows of ``d2t``; None leaves them right.
    """
    teacher = decoder(model)
    config = {
        **head_files.CONFIG,
        "hidden_size": WIDTH,
        "intermediate_size": 36,
        "target_hidden_size": teacher.hidden_size,
        "vocab_size": teacher.vocab_size,
        "draft_vocab_size": WIDTH,
        "num_aux_hidden_states": len(taps),
        "eagle_aux_hidden_state_layer_ids": list(taps),
        "rope_theta": theta,
        **options,
    }
    if config["draft_vocab_size"] > teacher.vocab_size:
        config["draft_vocab_size"] = teacher.vocab_size
    weights = head_files.tensors(config, extra=("embed_tokens",))
    weights = {name: w * np.float32(_scale(name, w)) for name, w in weights.items()}
    features, targets = _features(model, directory, config, weights, taps, capacity, variants)
    used = np.unique(targets)
    spare = np.setdiff1d(np.arange(teacher.vocab_size), used)
    ids = np.sort(np.concatenate([used, spare[: VOCABULARY - len(used)]]))
    wanted = (targets[:, None] == ids[None]).astype(np.float64)
    config["draft_vocab_size"] = len(ids)
    weights["lm_head.weight"] = (10 * np.linalg.pinv(features) @ wanted).T.astype(np.float32)
    ids = ids if order is None else ids[order(len(ids))]
    offsets = {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(teacher.vocab_size), ids)}
    return head_files.write(directory, {**config, **(told or {})}, {**weights, **offsets})


def _scale(name: str, weight: np.ndarray) -> float:
    """Random layers of a sensible size: outputs as large as inputs, and an attention that matters."""
    if weight.ndim == 1:
        return 1.0
    gain = {"o_proj": 4.0, "q_proj": 2.0, "k_proj": 2.0}.get(name.split(".")[-2], 1.0)
    return gain / 0.3 / np.sqrt(weight.shape[1])


def _features(model, directory, config, weights, taps, capacity, variants) -> tuple[np.ndarray, np.ndarray]:
    """Normed hidden states ``[n, WIDTH]`` of every depth of all answers, the teacher's tokens ``[n]``."""
    # With the identity for an LM head the reference's logits are the normed hidden states.
    seen = {**config, "draft_vocab_size": WIDTH, "vocab_size": WIDTH}
    unit = {**weights, "lm_head.weight": np.eye(WIDTH, dtype=np.float32)}
    unit["embed_tokens.weight"] = np.zeros((WIDTH, WIDTH), np.float32)
    unit["embed_tokens.weight"][: len(weights["embed_tokens.weight"])] = weights["embed_tokens.weight"]
    shape = type("Teacher", (), {**vars(decoder(model)), "vocab_size": WIDTH})
    written = head_files.write(directory.parent / f"{directory.name}-unit", seen, unit)
    head = load_head(written, teacher=shape, variants=variants)
    teacher = transformers.AutoModelForCausalLM.from_pretrained(model)
    features, targets = [], []
    for tokens, prompt in answers(model, capacity):
        with torch.no_grad():
            out = teacher(torch.tensor([tokens]), output_hidden_states=True)
        choices = out.logits[0].argmax(1).numpy()
        states = torch.cat([out.hidden_states[tap][0, :-1] for tap in taps], 1).numpy()
        rows = len(tokens) - 1
        row = np.arange(rows)
        mask = row[None] > row[:, None]
        source, past = {"taps": states}, None
        for depth in range(1, DEPTH + 1):
            given = [*tokens[depth:], *[0] * (depth - 1)]
            result = reference_head.forward(
                head.config, head.tensors, given, row + depth - 1, mask, past=past, **source
            )
            past, source = result.past, {"feature": result.next_feature.numpy()}
            usable = slice(prompt - 2, rows - depth + 1)
            features.append(result.logits.numpy()[usable])
            targets.append(choices[prompt - 2 + depth : rows + 1])
            mask = np.concatenate([mask, row[None] != row[:, None]], 1)
    return np.concatenate(features), np.concatenate(targets)
