"""The configuration of a small head."""

from ms_eagle.drafters.eagle3.config import HeadConfig
from ms_eagle.models.rope import RopeConfig

PLAIN = HeadConfig(
    format="SpecForge",
    hidden_size=6,
    target_hidden_size=8,
    intermediate_size=10,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    num_layers=1,
    vocab_size=30,
    draft_vocab_size=20,
    rms_norm_eps=1e-5,
    rope=RopeConfig(2, 10000.0, "default", {}, 64),
    taps=(2, 4, 5),
)
