"""An answer as the engine returns it."""

from ms_eagle.engine.requests import Completion, Seconds

PLAIN = Completion(
    text="Guten Tag 🙂",
    token_ids=(5, 6, 7),
    prompt_tokens=12,
    reused_tokens=0,
    finish_reason="stop",
    drafter="none",
    kernels="eager",
    mode="performance",
    cycles=3,
    accept_L=None,
    seconds=Seconds(load=1.25, compile=3.5, prefill=0.5, decode=0.75),
    time_to_first_token=0.6,
    tokens_per_second=4.0,
)
