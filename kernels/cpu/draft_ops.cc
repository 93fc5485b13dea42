// The ops around a drafter's layers: its input, its children, its state.

#include <cmath>

#include "ops.h"

using namespace ms_eagle;

// tokens int32 [B,N], features [B,N,E], vocabulary weights (A -> V), V int32 [1], input norm [A], feature norm [E],
// residual is normed int32 [1], eps [1] -> [B,N,A+E], [B,N,E]: each token's normed embedding beside its normed feature,
// and the feature for the residual.
MS_EAGLE_OP(PairRows) {
  return guard(extra, [&] {
    const Arguments args("PairRows", 10, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "tokens"), rows = args.dim(0, 1, "tokens"), total = batch * rows;
    const Index width = args.dim(1, 2, "features"), embedded = args.dim(2, 1, "vocabulary weights");
    const Index size = args.ints(3, "columns", {1})[0];
    if (size < 1) args.fail("columns is " + std::to_string(size) + "; expected at least 1");
    const int32_t* tokens = args.ints(0, "tokens", {batch, rows});
    const float* features = args.floats(1, "features", {batch, rows, width});
    const Weights weights = panels(args, 2, "vocabulary weights", size, embedded);
    const float* input_norm = args.floats(4, "input norm", {embedded});
    const float* feature_norm = args.floats(5, "feature norm", {width});
    const bool residual_is_normed = args.ints(6, "residual is normed", {1})[0] != 0;
    const float eps = args.floats(7, "eps", {1})[0];
    float* x = args.floats(8, "result", {batch, rows, embedded + width});
    float* residual = args.floats(9, "residual", {batch, rows, width});
    check_range(args, "tokens", tokens, total, size);
    Scratch scratch(total * embedded);
    float* embedding = scratch.take(total * embedded);
    unpack_rows(tokens, total, weights, embedding);
    for (Index row = 0; row < total; ++row) {
      float* line = x + row * (embedded + width);
      const float* feature = features + row * width;
      norm_row(embedding + row * embedded, embedded, input_norm, eps, line);
      norm_row(feature, width, feature_norm, eps, line + embedded);
      std::copy_n(residual_is_normed ? line + embedded : feature, width, residual + row * width);
    }
  });
}

// x [B,R,E], which int32 [B,N] in 0..R-1 -> [B,N,E], the rows named.
MS_EAGLE_OP(PickRows) {
  return guard(extra, [&] {
    const Arguments args("PickRows", 3, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), sources = args.dim(0, 1, "x"), width = args.dim(0, 2, "x");
    const Index rows = args.dim(1, 1, "which");
    const float* x = args.floats(0, "x", {batch, sources, width});
    const int32_t* which = args.ints(1, "which", {batch, rows});
    float* y = args.floats(2, "result", {batch, rows, width});
    check_range(args, "which", which, batch * rows, sources);
    for (Index row = 0; row < batch * rows; ++row)
      std::copy_n(x + (row / rows * sources + which[row]) * width, width, y + row * width);
  });
}

// x [B,R,E], count int32 [B] in 0..R, state [B,E] -> [B,E]: row count-1, or the state where count is 0.
MS_EAGLE_OP(LastRow) {
  return guard(extra, [&] {
    const Arguments args("LastRow", 4, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), rows = args.dim(0, 1, "x"), width = args.dim(0, 2, "x");
    const float* x = args.floats(0, "x", {batch, rows, width});
    const int32_t* used = args.ints(1, "count", {batch});
    const float* state = args.floats(2, "state", {batch, width});
    float* y = args.floats(3, "result", {batch, width});
    check_range(args, "count", used, batch, rows + 1);
    for (Index b = 0; b < batch; ++b)
      std::copy_n(used[b] ? x + (b * rows + used[b] - 1) * width : state + b * width, width, y + b * width);
  });
}

// x [B,R,E], norm [E] or absent, weights (E -> V), names int32 [V], eps [1] -> names int32 [B,R,k] of the k most probable
// columns of each row, most probable first, equal ones by ascending column, and their log-probabilities [B,R,k].
// A row that defines no distribution (a NaN or +inf in it, or nothing but -inf) has NaN for every log-probability.
MS_EAGLE_OP(ChildRows) {
  return guard(extra, [&] {
    const Arguments args("ChildRows", 7, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "x"), rows = args.dim(0, 1, "x"), in = args.dim(0, 2, "x");
    const Index size = args.dim(3, 0, "names"), k = args.dim(5, 2, "result"), total = batch * rows;
    if (k > size) args.fail("k is " + std::to_string(k) + "; expected at most " + std::to_string(size));
    const float* x = args.floats(0, "x", {batch, rows, in});
    const Weights weights = panels(args, 2, "weights", size, in);
    const int32_t* names = args.ints(3, "names", {size});
    const float eps = args.floats(4, "eps", {1})[0];
    int32_t* tokens = args.ints(5, "result", {batch, rows, k});
    float* log_probs = args.floats(6, "log_probs", {batch, rows, k});
    args.optional_floats(1, "norm", {in});
    Scratch scratch(total * (in + size + W));
    const float* input = normed(args, 1, x, total, in, eps, scratch.take(total * in));
    float* logits = scratch.take(total * size);
    linear(input, total, weights, nullptr, nullptr, logits);
    parallel(total, [&](Index row) {
      float* mine = logits + row * size;
      const bool sound = log_softmax_row(mine, size);
      int32_t* best = tokens + row * k;
      float* values = log_probs + row * k;
      top_row(mine, size, k, values, best);
      for (Index i = 0; i < k; ++i) {
        best[i] = names[best[i]];
        if (!sound) values[i] = std::nanf("");
      }
    });
  });
}
