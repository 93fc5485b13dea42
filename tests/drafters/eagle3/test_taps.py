import pytest

from ms_eagle.drafters.eagle3 import taps as head_taps
from ms_eagle.errors import UserError


@pytest.mark.parametrize(
    ("layers", "taps"),
    [
        (36, (2, 18, 33)),
        (26, (2, 13, 23)),
        (7, (2, 3, 4)),
        (6, None),
        (2, None),
        (8, (2, 4, 5)),
    ],
)
def test_defaults(layers, taps):
    assert head_taps.default_taps(layers) == taps
    if taps:
        assert len(set(taps)) == 3
        assert max(taps) < layers


@pytest.mark.parametrize(
    ("ids", "nested", "layers", "taps", "noted"),
    [
        (None, False, 36, (2, 18, 33), None),
        ([], True, 36, (2, 18, 33), None),
        ([2, 18, 33], False, 36, (2, 18, 33), None),  # speculators, vLLM: inputs
        ([2, 18, 33], True, 36, (2, 18, 33), None),  # inputs, recognised although nested
        ([1, 17, 32], True, 36, (2, 18, 33), "outputs of blocks"),  # SpecForge, Model-Optimizer: outputs
        ([1, 17, 32], False, 36, (2, 18, 33), "outputs of blocks"),  # outputs, recognised although not nested
        ([1, 11, 21], True, 24, (2, 12, 22), "outputs of blocks"),
        ([1, 11, 21], False, 24, (1, 11, 21), None),
        ([33, 2, 18], False, 36, (2, 18, 33), "not ascending"),
        ([0, 5, 35], False, 36, (0, 5, 35), None),
    ],
)
def test_ids_become_inputs_of_blocks(ids, nested, layers, taps, noted):
    found, notes = head_taps.from_config(ids, nested, 3, layers)
    assert found == taps
    assert bool(notes) == bool(noted)
    assert noted is None or noted in notes[0]


@pytest.mark.parametrize(
    ("ids", "nested", "count", "layers", "found"),
    [
        (None, False, 3, 6, "no default for a teacher of 6 layers"),
        (None, False, 5, 36, "does not say which 5 hidden states"),
        ([2, 18], False, 3, 36, r"taps 2, 18 \(inputs of blocks\), but fc.weight takes 3"),
        ([2, 18, 18], False, 3, 36, "one is repeated"),
        ([2, 18, 36], False, 3, 36, "blocks 0 to 35; the last block's output"),
        ([1, 18, 35], True, 3, 36, "taps 2, 19, 36 .*blocks 0 to 35; the last block's output"),
        ([2, 18, 99], False, 3, 36, "blocks 0 to 35"),
        ([-1, 18, 20], False, 3, 36, "blocks 0 to 35"),
        ([2, "18", 20], False, 3, 36, "expected a list of whole numbers"),
        ([2, True, 20], False, 3, 36, "expected a list of whole numbers"),
        (3, False, 3, 36, "expected a list of whole numbers"),
    ],
)
def test_ids_that_cannot_be(ids, nested, count, layers, found):
    with pytest.raises(UserError, match=found):
        head_taps.from_config(ids, nested, count, layers)


def test_taps_as_asked():
    assert head_taps.as_asked([0, 1, 3], 3, 4)[0] == (0, 1, 3)
    with pytest.raises(UserError, match=r"asked for are 0, 1, 4 .* blocks 0 to 3"):
        head_taps.as_asked((0, 1, 4), 3, 4)
    with pytest.raises(UserError, match="repeated"):
        head_taps.as_asked((1, 1, 2), 3, 4)
