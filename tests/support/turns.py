"""Hand-written turns of a benchmark."""

DIFFERENCE = {"position": 3, "teacher_id": 7, "speculative_id": 8, "same_prompt": True, "margin": 0.5}


def turn(number, speedup, accept, tokens=10, *, identical=True, category="writing", seconds=1.0, **more):
    """A turn that took the teacher ``seconds``, and speculation ``seconds / speedup``."""
    return {
        "turn_name": f"t:{number}/1",
        "source": "t",
        "category": category,
        "turn": 1,
        "prompt_tokens": 20,
        "new_tokens": tokens,
        "teacher": {"prefill_s": 1.0, "decode_s": seconds, "first_token_s": 0.5},
        "speculative": {"prefill_s": 1.0, "decode_s": seconds / speedup, "first_token_s": 0.7},
        "speedup": speedup,
        "speedup_end_to_end": (1.0 + seconds) / (1.0 + seconds / speedup),
        "accept_L": accept,
        "group": number,
        "identical": identical,
        "difference": None if identical else DIFFERENCE,
        **more,
    }


TURNS = [
    turn(0, 2.0, [3, 0, 1]),
    turn(1, 0.5, [0, 0], category="code"),
    turn(2, 1.0, [2], identical=False, category="code"),
    {"turn_name": "t:3/1", "error": {"kind": "UserError", "message": "too long"}},
]
