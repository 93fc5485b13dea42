// The ops of decoder blocks, vocabularies and caches.
//
// In every op [B, N, ...] are rows; "absent" is a tensor of shape [1]; weights are packed (see panel.h).

#include "ops.h"

using namespace ms_eagle;

// x [B,N,A], residual [B,N,E], norm [A] or absent, qkv weights (A -> (H + 2 Hkv) d), qkv bias or absent,
// q norm [d] or absent, k norm [d] or absent, out weights (H d -> E), out bias [E] or absent, cos [P,d/2], sin,
// positions [B,N], slots [B,N], visible [B,N,2+X], keys and values (caches, written), (Hkv, S) int32 [2], eps [1]
// -> [B,N,E]:
// residual + out(attend(rotate(qkv(norm(x))))).
MS_EAGLE_OP(AttentionBlock) {
  return guard(extra, [&] {
    const Arguments args("AttentionBlock", 19, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), rows = args.dim(0, 1, "x"), in = args.dim(0, 2, "x");
    const Index width = args.dim(1, 2, "residual"), mixed = args.dim(7, 1, "out weights");
    const CacheLayout layout(args, 16);
    const Index kv_heads = layout.heads, slots = layout.slots, size = args.dim(14, args.rank(14) - 1, "keys");
    if (size % 2 || size > kMostHeadSize)
      args.fail("the head size is " + std::to_string(size) + "; expected an even one up to " +
                std::to_string(kMostHeadSize));
    if (mixed % size || mixed / size % kv_heads)
      args.fail("out weights take " + std::to_string(mixed) + " inputs; expected a multiple of " +
                std::to_string(kv_heads) + " KV heads of " + std::to_string(size));
    const AttentionShape shape{batch, rows, mixed / size, kv_heads, slots, size};
    const Index all_heads = shape.heads + 2 * kv_heads, positions = args.dim(9, 0, "cos"), total = batch * rows;
    const float* x = args.floats(0, "x", {batch, rows, in});
    const float* residual = args.floats(1, "residual", {batch, rows, width});
    const Weights qkv = panels(args, 3, "qkv weights", all_heads * size, in);
    const float* qkv_bias = args.optional_floats(4, "qkv bias", {all_heads * size});
    const float eps = args.floats(17, "eps", {1})[0];
    const Rotary rotary{args.floats(9, "cos", {positions, size / 2}),
                        args.floats(10, "sin", {positions, size / 2}),
                        args.ints(11, "positions", {batch, rows}),
                        args.optional_floats(5, "q norm", {size}),
                        args.optional_floats(6, "k norm", {size}),
                        eps};
    const Weights out = panels(args, 7, "out weights", width, mixed);
    const float* out_bias = args.optional_floats(8, "out bias", {width});
    const int32_t* where = args.ints(12, "slots", {batch, rows});
    check_range(args, "positions", rotary.positions, total, positions);
    check_range(args, "slots", where, total, slots);
    const Visible visible = visible_lists(args, 13, batch, rows, slots);
    float* keys = cache(args, 14, "keys", batch, layout, size);
    float* values = cache(args, 15, "values", batch, layout, size);
    float* y = args.floats(18, "result", {batch, rows, width});
    args.optional_floats(2, "norm", {in});
    Scratch scratch(total * (in + all_heads * size + mixed) + attend_scratch(shape, visible));
    float* heads = scratch.take(total * all_heads * size);
    linear(normed(args, 2, x, total, in, eps, scratch.take(total * in)), total, qkv, qkv_bias, nullptr, heads);
    rotate_and_write(shape, heads, rotary, where, keys, values);
    float* attended = scratch.take(total * mixed);
    attend(shape, heads, {rows * all_heads * size, all_heads * size, size}, keys, values, visible, attended,
           {rows * mixed, mixed, size}, scratch);
    linear(attended, total, out, out_bias, residual, y);
  });
}

// x [B,N,E], norm [E] or absent, gate and up weights (E -> I each, panels by turns), bias [2I] or absent,
// down weights (I -> E), bias [E] or absent, eps [1] -> [B,N,E]: x + down(silu(gate(norm(x))) up(norm(x))).
MS_EAGLE_OP(MlpBlock) {
  return guard(extra, [&] {
    const Arguments args("MlpBlock", 8, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), rows = args.dim(0, 1, "x"), width = args.dim(0, 2, "x");
    const Index inner = args.dim(4, 1, "down weights"), total = batch * rows;
    const float* x = args.floats(0, "x", {batch, rows, width});
    const Weights gate_up = panels(args, 2, "gate and up weights", 2 * panels_of(inner) * kPanel, width);
    const float* gate_up_bias = args.optional_floats(3, "gate and up bias", {2 * inner});
    const Weights down = panels(args, 4, "down weights", width, inner);
    const float* down_bias = args.optional_floats(5, "down bias", {width});
    const float eps = args.floats(6, "eps", {1})[0];
    float* y = args.floats(7, "result", {batch, rows, width});
    args.optional_floats(1, "norm", {width});
    Scratch scratch(total * (width + inner));
    float* between = scratch.take(total * inner);
    const float* input = normed(args, 1, x, total, width, eps, scratch.take(total * width));
    gated_linear(input, total, gate_up, inner, gate_up_bias, between);
    linear(between, total, down, down_bias, x, y);
  });
}

// x [B,N,A], norm [A] or absent, weights (A -> E), bias [E] or absent, eps [1] -> [B,N,E].
MS_EAGLE_OP(LinearRows) {
  return guard(extra, [&] {
    const Arguments args("LinearRows", 6, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), rows = args.dim(0, 1, "x"), in = args.dim(0, 2, "x");
    const Index out = args.dim(5, 2, "result"), total = batch * rows;
    const float* x = args.floats(0, "x", {batch, rows, in});
    const Weights weights = panels(args, 2, "weights", out, in);
    const float* bias = args.optional_floats(3, "bias", {out});
    const float eps = args.floats(4, "eps", {1})[0];
    float* y = args.floats(5, "result", {batch, rows, out});
    args.optional_floats(1, "norm", {in});
    Scratch scratch(total * in);
    linear(normed(args, 1, x, total, in, eps, scratch.take(total * in)), total, weights, bias, nullptr, y);
  });
}

// x [B,N,A], norm [A] or absent, weights (A -> E), E as int32 [1], eps [1] -> int32 [B,N], bool [B]:
// the lowest column of the largest entry of each row, and whether a row of the sequence holds a NaN or an infinity.
MS_EAGLE_OP(ArgmaxRows) {
  return guard(extra, [&] {
    const Arguments args("ArgmaxRows", 7, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), rows = args.dim(0, 1, "x"), in = args.dim(0, 2, "x");
    const Index out = args.ints(3, "columns", {1})[0], total = batch * rows;
    if (out < 1) args.fail("columns is " + std::to_string(out) + "; expected at least 1");
    const float* x = args.floats(0, "x", {batch, rows, in});
    const Weights weights = panels(args, 2, "weights", out, in);
    const float eps = args.floats(4, "eps", {1})[0];
    int32_t* best = args.ints(5, "result", {batch, rows});
    bool* not_finite = args.bools(6, "not finite", {batch});
    args.optional_floats(1, "norm", {in});
    Scratch scratch(total * in);
    argmax_linear(normed(args, 1, x, total, in, eps, scratch.take(total * in)), total, weights, best, rows, not_finite);
  });
}

// tokens int32 [B,N], weights (A -> E), E as int32 [1] -> [B,N,A]: rows of the matrix before it was packed.
MS_EAGLE_OP(EmbedRows) {
  return guard(extra, [&] {
    const Arguments args("EmbedRows", 4, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "tokens"), rows = args.dim(0, 1, "tokens"), width = args.dim(3, 2, "result");
    const Index out = args.ints(2, "columns", {1})[0];
    if (out < 1) args.fail("columns is " + std::to_string(out) + "; expected at least 1");
    const int32_t* tokens = args.ints(0, "tokens", {batch, rows});
    check_range(args, "tokens", tokens, batch * rows, out);
    const Weights weights = panels(args, 1, "weights", out, width);
    unpack_rows(tokens, batch * rows, weights, args.floats(3, "result", {batch, rows, width}));
  });
}

// x [B,N,E], weight [E], eps [1] -> [B,N,E].
MS_EAGLE_OP(RmsNormRows) {
  return guard(extra, [&] {
    const Arguments args("RmsNormRows", 4, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), rows = args.dim(0, 1, "x"), width = args.dim(0, 2, "x");
    const float* x = args.floats(0, "x", {batch, rows, width});
    const float* weight = args.floats(1, "weight", {width});
    const float eps = args.floats(2, "eps", {1})[0];
    rms_norm(x, batch * rows, width, weight, eps, args.floats(3, "result", {batch, rows, width}));
  });
}

// q [B,H,N,d], keys [B,Hkv,S,d], values, visible [B,N,2+X] -> [B,H,N,d]: attention alone, rows rotated and written.
MS_EAGLE_OP(AttendRows) {
  return guard(extra, [&] {
    const Arguments args("AttendRows", 5, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "q"), heads = args.dim(0, 1, "q"), rows = args.dim(0, 2, "q");
    const Index size = args.dim(0, 3, "q"), kv_heads = args.dim(1, 1, "keys"), slots = args.dim(1, 2, "keys");
    if (size > kMostHeadSize)
      args.fail("the head size is " + std::to_string(size) + "; expected up to " + std::to_string(kMostHeadSize));
    if (heads % kv_heads)
      args.fail(std::to_string(heads) + " heads do not divide into groups over " + std::to_string(kv_heads));
    const AttentionShape shape{batch, rows, heads, kv_heads, slots, size};
    const Strides at{heads * rows * size, size, rows * size};
    const float* q = args.floats(0, "q", {batch, heads, rows, size});
    const float* keys = args.floats(1, "keys", {batch, kv_heads, slots, size});
    const float* values = args.floats(2, "values", {batch, kv_heads, slots, size});
    const Visible visible = visible_lists(args, 3, batch, rows, slots);
    float* out = args.floats(4, "result", {batch, heads, rows, size});
    Scratch scratch(attend_scratch(shape, visible));
    attend(shape, q, at, keys, values, visible, out, at, scratch);
  });
}

// from int32 [B,A], to int32 [B,A], (Hkv, S) int32 [2], then any number of caches (written) -> int32 [1], rows moved:
// slot to[i] takes what slot from[i] held before the call.
MS_EAGLE_OP(CommitRows) {
  return guard(extra, [&] {
    const Arguments args("CommitRows", std::max(count, 5), count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "from"), length = args.dim(0, 1, "from");
    const CacheLayout layout(args, 2);
    const Index slots = layout.slots;
    const int32_t* from = args.ints(0, "from", {batch, length});
    const int32_t* to = args.ints(1, "to", {batch, length});
    check_range(args, "from", from, batch * length, slots);
    check_range(args, "to", to, batch * length, slots);
    int32_t* moved = args.ints(count - 1, "result", {1});
    Index most = 0;
    for (int at = 3; at < count - 1; ++at) {
      const Index size = args.dim(at, args.rank(at) - 1, "cache");
      cache(args, at, "cache", batch, layout, size);
      most = std::max(most, size);
    }
    std::vector<float> held(length * most);
    for (int at = 3; at < count - 1; ++at) {
      const Index size = shapes[at][ranks[at] - 1];
      for (Index row = 0; row < batch * layout.heads; ++row) {
        float* cache = static_cast<float*>(data[at]) + row * slots * size;
        const Index list = row / layout.heads * length;
        for (Index i = 0; i < length; ++i)
          if (from[list + i] != to[list + i])
            std::copy_n(cache + from[list + i] * size, size, held.data() + i * size);
        for (Index i = 0; i < length; ++i)
          if (from[list + i] != to[list + i]) std::copy_n(held.data() + i * size, size, cache + to[list + i] * size);
      }
    }
    moved[0] = 0;
    for (Index i = 0; i < batch * length; ++i) moved[0] += from[i] != to[i];
  });
}

// x [R,V] -> values [R,k] and columns int32 [R,k] of the k largest entries, largest first, equal ones by ascending
// column, NaN last of all.
MS_EAGLE_OP(TopRows) {
  return guard(extra, [&] {
    const Arguments args("TopRows", 3, count, data, ranks, shapes, types);
    const Index rows = args.dim(0, 0, "x"), width = args.dim(0, 1, "x"), k = args.dim(1, 1, "values");
    if (k > width) args.fail("k is " + std::to_string(k) + "; expected at most " + std::to_string(width));
    const float* x = args.floats(0, "x", {rows, width});
    float* values = args.floats(1, "values", {rows, k});
    int32_t* columns = args.ints(2, "columns", {rows, k});
    parallel(rows, [&](Index row) { top_row(x + row * width, width, k, values + row * k, columns + row * k); });
  });
}

// weights [out, in] into panels; `step` 2 leaves every other panel to a second matrix. 0 when done.
MS_EAGLE_EXPORT int ms_eagle_pack(const float* weights, int64_t out, int64_t in, float* panels, int64_t step) {
  return guard(nullptr, [&] {
    if (!weights || !panels || out < 1 || in < 1 || step < 1) throw BadCall("pack: expected a matrix and room for it");
    pack_weights(weights, out, in, panels, step);
  });
}

// Codes of 8 or 4 bits with scales and, of 4 bits, minima or null (see codes.h) into panels; `step` as above.
MS_EAGLE_EXPORT int ms_eagle_pack_codes(const uint8_t* codes, const uint16_t* scales, const uint16_t* minima, int bits,
                                        int64_t out, int64_t in, uint8_t* panels, int64_t step) {
  return guard(nullptr, [&] {
    if (!codes || !scales || !panels || out < 1 || in < 1 || in % kGroup || step < 1 || (bits == 8 && minima))
      throw BadCall("pack_codes: expected codes of whole groups, scales, and room for them");
    const auto pack = bits == 8 ? pack_codes<Int8> : minima ? pack_codes<Int4Minimum> : pack_codes<Int4>;
    pack(codes, scales, minima, out, in, panels, step);
  });
}

MS_EAGLE_EXPORT const char* ms_eagle_last_error() { return last_error(); }
MS_EAGLE_EXPORT void ms_eagle_set_threads(int count) { set_threads(count); }
MS_EAGLE_EXPORT int ms_eagle_threads() { return threads(); }
MS_EAGLE_EXPORT int ms_eagle_level() { return kLevel; }
