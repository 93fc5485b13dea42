"""Tensor names and tap ids that a head should not have: one line names them, and nothing large is made."""

import numpy as np
import pytest
from support import head_files
from support.head_files import CONFIG, TEACHER

from ms_eagle.drafters.eagle3.checkpoint import load_head
from ms_eagle.errors import UserError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layers.weight", "tensor layers.weight: expected the number of a layer"),
        ("layers..x", "tensor layers..x: expected the number"),
        ("layers.1e3.x", "tensor layers.1e3.x: expected the number"),
        ("layers.-1.x", "tensor layers.-1.x: expected the number"),
        ("model.layers.²\u0662.x", "expected the number"),
        (f"layers.{'9' * 5000}.x", "expected the number"),
        ("layers.999999999.x", "num_hidden_layers is 1, but the head has tensors for 1000000000"),
        ("midlayer.999999999.x", "unexpected tensor in the head: midlayer.999999999.x"),
        ("layers", "unexpected tensor in the head: layers"),
    ],
)
def test_names_after_layers_that_are_no_number(tmp_path, name, message):
    weights = {**head_files.tensors(CONFIG), **head_files.vocabulary(CONFIG), name: np.zeros(1, np.float32)}
    with pytest.raises(UserError) as caught:
        load_head(head_files.write(tmp_path, CONFIG, weights), teacher=TEACHER)
    assert message in str(caught.value)


def test_a_far_layer_makes_no_table(tmp_path):
    config = {key: value for key, value in CONFIG.items() if key != "num_hidden_layers"}
    weights = {**head_files.tensors(CONFIG), **head_files.vocabulary(CONFIG)}
    weights["layers.999999999.x"] = np.zeros(1, np.float32)
    with pytest.raises(UserError, match="layer 999999999, but none of layer 1"):
        load_head(head_files.write(tmp_path, config, weights), teacher=TEACHER)


@pytest.mark.parametrize("nested", [False, True])
def test_taps_below_zero_are_refused(tmp_path, nested):
    ids = {"eagle_aux_hidden_state_layer_ids": [-1, 3, 4]}
    config = {**CONFIG, **({"eagle_config": ids} if nested else ids)}
    weights = {**head_files.tensors(CONFIG), **head_files.vocabulary(CONFIG)}
    with pytest.raises(UserError, match=r"layer_ids is \[-1, 3, 4\]; expected .* of at least 0"):
        load_head(head_files.write(tmp_path, config, weights), teacher=TEACHER)


def test_a_length_of_training_says_nothing(tmp_path):
    weights = {**head_files.tensors(CONFIG), **head_files.vocabulary(CONFIG)}
    heads = [
        load_head(head_files.write(tmp_path / name, {**CONFIG, **more}, weights), teacher=TEACHER).config
        for name, more in (("a", {}), ("b", {"max_sequence_length": 2048}))
    ]
    assert heads[0] == heads[1]
