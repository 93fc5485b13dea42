from dataclasses import replace

from support.head_configs import PLAIN


def test_tensors_of_a_plain_head():
    assert PLAIN.num_taps == 3
    assert PLAIN.tensor_shapes() == {
        "fc.weight": (6, 24),
        "layers.0.input_norm.weight": (6,),
        "layers.0.hidden_norm.weight": (6,),
        "layers.0.attention.q_proj.weight": (8, 12),
        "layers.0.attention.k_proj.weight": (4, 12),
        "layers.0.attention.v_proj.weight": (4, 12),
        "layers.0.attention.o_proj.weight": (6, 8),
        "layers.0.post_attention_norm.weight": (6,),
        "layers.0.mlp.gate_proj.weight": (10, 6),
        "layers.0.mlp.up_proj.weight": (10, 6),
        "layers.0.mlp.down_proj.weight": (6, 10),
        "norm.weight": (6,),
        "lm_head.weight": (20, 6),
    }


def _added(**changes):
    shapes = replace(PLAIN, **changes).tensor_shapes()
    return {name: shape for name, shape in shapes.items() if PLAIN.tensor_shapes().get(name) != shape}


def test_tensors_that_variants_add():
    assert _added(own_embedding=True) == {"embed.weight": (30, 6)}
    assert _added(fc_bias=True) == {"fc.bias": (6,)}
    assert _added(fc_norm=True) == {f"fc_norm.{i}.weight": (8,) for i in range(3)}
    assert _added(norm_before_fc=True) == {"input_norm.weight": (24,)}
    assert _added(qkv_bias=True) == {
        "layers.0.attention.q_proj.bias": (8,),
        "layers.0.attention.k_proj.bias": (4,),
        "layers.0.attention.v_proj.bias": (4,),
    }
    assert _added(o_bias=True) == {"layers.0.attention.o_proj.bias": (6,)}
    assert _added(qk_norm=True) == {f"layers.0.attention.{p}_norm.weight": (2,) for p in "qk"}
    assert _added(norm_output=True, norm_before_residual=True) == {}
    assert _added(mlp_bias=True) == {
        "layers.0.mlp.gate_proj.bias": (10,),
        "layers.0.mlp.up_proj.bias": (10,),
        "layers.0.mlp.down_proj.bias": (6,),
    }


def test_tensors_that_variants_take_away_or_widen():
    assert set(PLAIN.tensor_shapes()) - set(replace(PLAIN, shares_lm_head=True).tensor_shapes()) == {
        "lm_head.weight"
    }
    assert _added(taps=(1, 2)) == {"fc.weight": (6, 16)}


def test_later_layers_take_the_hidden_state_alone():
    added = _added(num_layers=2)
    assert added["layers.1.attention.q_proj.weight"] == (8, 6)
    assert added["layers.1.attention.v_proj.weight"] == (4, 6)
    assert added["layers.1.input_norm.weight"] == (6,)
    assert "layers.1.hidden_norm.weight" not in added
    assert len(added) == 9
