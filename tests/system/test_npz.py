"""Archives of arrays that ask for more memory than there is, or never end, are refused."""

import io
import os
import zipfile

import numpy as np
import pytest

from ms_eagle.system import npz
from ms_eagle.system.npz import DAMAGE, read_npz


def test_arrays_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3), b=np.zeros(2))
    assert read_npz(path).keys() == {"a", "b"}
    assert read_npz(path, ["a", "c"])["a"].tolist() == [0, 1, 2]


def test_a_bomb_a_giant_a_lone_array_and_a_pipe(tmp_path, monkeypatch):
    bomb, giant, lone, pipe = (tmp_path / name for name in ("bomb.npz", "giant", "lone", "pipe"))
    np.savez_compressed(bomb, a=np.zeros(10**6))
    monkeypatch.setattr(npz, "available_memory", lambda: 10**6)
    with pytest.raises(ValueError, match="would take 8000128 bytes"):
        read_npz(bomb)
    monkeypatch.undo()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(giant, "w") as archive:
        archive.writestr("a.npy", header.getvalue())
    lone.write_bytes(header.getvalue())
    os.mkfifo(pipe)
    for path in (giant, lone, pipe):
        with pytest.raises(DAMAGE):
            read_npz(path)
