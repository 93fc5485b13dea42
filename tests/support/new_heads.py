"""A head as the trainer begins with it."""

from support import tiny, tiny_engine

from ms_eagle.training.shape import new_head

DECODER = tiny_engine.decoder(tiny.make("llama", num_hidden_layers=9))


def head(**options):
    asked = {"layers": 1, "taps": (2, 4, 6), "fc_norm": False, "norm_output": False, **options}
    return new_head(DECODER, draft_vocab_size=6, **asked)[0]
