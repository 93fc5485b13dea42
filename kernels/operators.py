"""The native CPU kernels as MindSpore operators; what each takes and gives is documented in ``cpu/*_ops.cc``.

An op that writes into a cache says so to MindSpore (a write signature and a side effect on memory): the
compiler then hands it the Parameter's own memory, keeps it in program order with every other reader and
writer of that Parameter, and does not drop it when its result is unused. Without that, MindSpore gives the
op a copy as soon as a stock operator updates the same Parameter in one graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import ops
from mindspore.ops import signature as sig

from ms_eagle.kernels.library import Library

_INT, _FLOAT, _BOOL = ms.int32, ms.float32, ms.bool_
_POOL_TYPES = (_INT, _FLOAT, _INT, _INT)
_GROWN_TYPES = (*_POOL_TYPES, _INT, _FLOAT, _INT, _INT, _INT, _BOOL)
Shapes = Callable[..., Sequence[int] | tuple[Sequence[int], ...]]


class Operators:
    """The operators of one library, shared by the Cells that call them.

    Every operator checks shapes, dtypes and indices when it runs and raises ``RuntimeError`` with a sentence.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        residual_first = ("x", "residual", "norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias")
        rest = ("cos", "sin", "positions", "slots", "visible", "keys", "values", "layout", "eps")
        self.attention_block = self._make(
            "AttentionBlock",
            (*residual_first, *rest),
            lambda _, residual, *others: residual,
            writes=("keys", "values"),
        )
        self.mlp_block = self._make(
            "MlpBlock", ("x", "norm", "gate_up", "gate_up_bias", "down", "down_bias", "eps"), _first
        )
        self.rms_norm = self._make("RmsNormRows", ("x", "weight", "eps"), _first)
        self.attend = self._make("AttendRows", ("q", "keys", "values", "visible"), _first)

    def linear(self, out: int) -> ops.Custom:
        """``(x [B,N,A], norm, weights, bias, eps) -> [B,N,out]``."""
        names = ("x", "norm", "weights", "bias", "eps")
        return self._make("LinearRows", names, lambda x, *_: (x[0], x[1], out))

    def argmax(self) -> ops.Custom:
        """``(x [B,N,A], norm, weights, columns, eps) ->`` int32 ``[B,N]``, bool ``[B]``."""
        names = ("x", "norm", "weights", "columns", "eps")
        return self._make("ArgmaxRows", names, lambda x, *_: (x[:2], x[:1]), lambda *_: (ms.int32, ms.bool_))

    def embed(self, width: int) -> ops.Custom:
        """``(tokens [B,N], weights, columns) -> [B,N,width]``."""
        return self._make(
            "EmbedRows",
            ("tokens", "weights", "columns"),
            lambda tokens, *_: (*tokens, width),
            lambda *_: ms.float32,
        )

    def visible(self, room: int) -> ops.Custom:
        """``(mask bool [B,1,N,S]) ->`` int32 ``[B,N,2+room]``; refuses a row of more than ``room`` strays."""
        return self._make(
            "VisibleRows", ("mask",), lambda mask: (mask[0], mask[2], 2 + room), lambda *_: ms.int32
        )

    def top(self, k: int) -> ops.Custom:
        """``(x [R,V]) ->`` values ``[R,k]``, columns int32 ``[R,k]``: largest first, lower column on ties."""
        return self._make(
            "TopRows", ("x",), lambda x: ((x[0], k), (x[0], k)), lambda x: (ms.float32, ms.int32)
        )

    def commit(self, caches: int) -> ops.Custom:
        """``(source [B,A], target [B,A], layout, *caches) ->`` int32 ``[1]``; the caches are written."""
        names = tuple(f"cache{i}" for i in range(caches))
        return self._make(
            "CommitRows",
            ("source", "target", "layout", *names),
            lambda *_: (1,),
            lambda *_: ms.int32,
            writes=names,
        )

    def pair(self) -> ops.Custom:
        """``(tokens [B,N], features [B,N,E], weights, columns, input_norm, feature_norm, normed, eps) ->``
        ``[B,N,A+E]``, ``[B,N,E]``."""
        names = ("tokens", "features", "weights", "columns", "input_norm", "feature_norm", "normed", "eps")
        return self._make(
            "PairRows",
            names,
            lambda tokens, features, weights, *_: ((*tokens, weights[1] + features[2]), features),
            lambda *_: (_FLOAT, _FLOAT),
        )

    def pick(self) -> ops.Custom:
        """``(x [B,R,E], which [B,N]) -> [B,N,E]``."""
        return self._make("PickRows", ("x", "which"), lambda x, which: (*which, x[2]))

    def last_row(self) -> ops.Custom:
        """``(x [B,R,E], count [B], state [B,E]) -> [B,E]``."""
        return self._make("LastRow", ("x", "count", "state"), lambda x, count, state: state)

    def children(self, k: int) -> ops.Custom:
        """``(x [B,R,E], norm, weights, names [V], eps) ->`` names int32 ``[B,R,k]``, log-probabilities."""
        return self._make(
            "ChildRows",
            ("x", "norm", "weights", "names", "eps"),
            lambda x, *_: ((*x[:2], k), (*x[:2], k)),
            lambda *_: (_INT, _FLOAT),
        )

    def tree_rows(self) -> ops.Custom:
        """``(tokens, depths, valid [B,N], ancestors [B,D+1,N], start [B], trash) ->`` positions, slots,
        visible, paths; the same keys in the same order as ``VisibleRows`` finds in ``masks.tree_mask``."""
        return self._make(
            "TreeRows",
            ("tokens", "depths", "valid", "ancestors", "start", "trash"),
            lambda tokens, _, __, ancestors, *___: _placed(tokens, ancestors),
            lambda *_: (_INT,) * 4,
        )

    def level_rows(self) -> ops.Custom:
        """``(start [B], active [B], lineage [B,l,k], trash) ->`` positions, slots, visible."""
        return self._make(
            "LevelRows",
            ("start", "active", "lineage", "trash"),
            lambda _, __, lineage, ___: (
                (lineage[0], lineage[2]),
                (lineage[0], lineage[2]),
                (lineage[0], lineage[2], 2 + lineage[1]),
            ),
            lambda *_: (_INT,) * 3,
        )

    def chunk_rows(self) -> ops.Custom:
        """``(tokens [B,T], start [B], count [B], trash) ->`` positions, slots, visible."""
        return self._make(
            "ChunkRows",
            ("tokens", "start", "count", "trash"),
            lambda tokens, *_: (tokens, tokens, (*tokens, 3)),
            lambda *_: (_INT,) * 3,
        )

    def grow_root(self) -> ops.Custom:
        """``(root [B], tokens [B,1,k], log_probs) ->`` pool, beam, broken ``[B]``."""
        return self._make(
            "GrowRoot",
            ("root", "tokens", "log_probs"),
            lambda root, tokens, _: _grown(root[0], 1 + tokens[2], 1, tokens[2]),
            lambda *_: _GROWN_TYPES,
        )

    def grow_level(self) -> ops.Custom:
        """``(pool, beam scores, beam nodes, lineage, tokens [B,k,k], log_probs) ->`` pool, beam, broken."""
        pool = ("pool_tokens", "pool_scores", "pool_parents", "pool_depths")
        return self._make(
            "GrowLevel",
            (*pool, "beam_scores", "beam_nodes", "lineage", "tokens", "log_probs"),
            lambda *shapes: _grown(
                shapes[6][0], shapes[0][1] + shapes[6][2] ** 2, shapes[6][1] + 1, shapes[6][2]
            ),
            lambda *_: _GROWN_TYPES,
        )

    def lay_tree(self, rows: int, depth: int) -> ops.Custom:
        """``(pool, log confidence [1], start [B], active [B], trash) ->`` tokens, parents, depths, laid,
        valid, scores, ancestors, positions, slots, visible, paths of the ``rows`` best."""

        def shapes(tokens: Sequence[int], *_: Sequence[int]) -> tuple[Sequence[int], ...]:
            line, table = (tokens[0], rows), (tokens[0], depth + 1, rows)
            return (*(line,) * 6, table, *_placed(line, table))

        pool = ("pool_tokens", "pool_scores", "pool_parents", "pool_depths")
        return self._make(
            "LayTree",
            (*pool, "log_confidence", "start", "active", "trash"),
            shapes,
            lambda *_: (_INT, _INT, _INT, _BOOL, _BOOL, _FLOAT, *(_INT,) * 5),
        )

    def accept(self) -> ops.Custom:
        """``(tokens, parents, depths, valid [B,N], ancestors [B,D+1,N], choices [B,N], active [B]) ->``
        accepted ``[B]``, path ``[B,D+1]``, emitted ``[B,D+1]``, count ``[B]``."""
        return self._make(
            "AcceptRows",
            ("tokens", "parents", "depths", "valid", "ancestors", "choices", "active"),
            lambda *shapes: (shapes[6], shapes[4][:2], shapes[4][:2], shapes[6]),
            lambda *_: (_INT,) * 4,
        )

    def path_slots(self) -> ops.Custom:
        """``(path [B,D+1], count [B], start [B], trash) ->`` from and to, ``[B,D+1]`` each."""
        return self._make(
            "PathSlots",
            ("path", "count", "start", "trash"),
            lambda path, *_: (path, path),
            lambda *_: (_INT, _INT),
        )

    def report(self) -> ops.Custom:
        """``(count [B], teacher [B], drafter [B], start [B], emitted [B,T]) ->`` int32 ``[B,2+T]``."""
        return self._make(
            "ReportRows",
            ("count", "teacher", "drafter", "start", "emitted"),
            lambda *shapes: (shapes[4][0], 2 + shapes[4][1]),
        )

    def sample(self) -> ops.Custom:
        """``(logits [B,N,V], seen [B,V], paths [B,L,N], positions [B,N], params, uniforms [B,P], decay) ->``
        choices int32 ``[B,N]``, fault bool ``[B]``."""
        return self._make(
            "SampleRows",
            ("logits", "seen", "paths", "positions", "params", "uniforms", "decay"),
            lambda logits, *_: (logits[:2], logits[:1]),
            lambda *_: (_INT, _BOOL),
        )

    def mark(self) -> ops.Custom:
        """``(tokens [B,T], count [B], seen bool [B,V]) ->`` int32 ``[1]``; ``seen`` is written."""
        return self._make("MarkRows", ("tokens", "count", "seen"), lambda *_: (1,), writes=("seen",))

    def _make(
        self,
        name: str,
        inputs: Sequence[str],
        shape: Shapes,
        dtype: Callable[..., object] | None = None,
        writes: Sequence[str] = (),
    ) -> ops.Custom:
        made = ops.Custom(f"{self.library.path}:{name}", shape, dtype or _first, func_type="aot")
        if writes:
            made.set_signatures(
                [
                    sig.make_sig(each, sig.sig_rw.RW_WRITE if each in writes else sig.sig_rw.RW_READ)
                    for each in inputs
                ]
            )
            made.add_prim_attr("side_effect_mem", True)
        return made


def _first(first: Any, *_: Any) -> Any:
    return first


def _placed(line: Sequence[int], table: Sequence[int]) -> tuple[Sequence[int], ...]:
    """Shapes of positions, slots, visible and paths of tree rows ``[B,N]`` with ancestors ``[B,D+1,N]``."""
    return line, line, (*line, 2 + max(1, table[1] - 1)), table


def _grown(batch: int, size: int, levels: int, branch: int) -> tuple[Sequence[int], ...]:
    """Shapes of a pool of ``size``, a beam after so many levels, and the flag."""
    pool, beam = (batch, size), (batch, branch)
    return (*(pool,) * 4, *(beam,) * 4, (batch, levels, branch), (batch,))
