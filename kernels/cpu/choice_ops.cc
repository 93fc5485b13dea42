// The ops that choose tokens by sampling and remember them.

#include <cstring>
#include <memory>

#include "ops.h"
#include "sampling.h"

using namespace ms_eagle;

// logits [B,N,V], seen bool [B,V], paths int32 [B,L,N], positions int32 [B,N], params [B,15] (sampling.py), uniforms
// [B,P], decay [2^14] -> choices int32 [B,N], and whether a row of the request defines no choice, bool [B]. A row has
// seen the request's tokens and those of its own path; its uniform is that of the position after it.
MS_EAGLE_OP(SampleRows) {
  return guard(extra, [&] {
    const Arguments args("SampleRows", 9, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "logits"), rows = args.dim(0, 1, "logits"), size = args.dim(0, 2, "logits");
    const Index levels = args.dim(2, 1, "paths"), places = args.dim(5, 1, "uniforms");
    const float* logits = args.floats(0, "logits", {batch, rows, size});
    const bool* seen = args.bools(1, "seen", {batch, size});
    const int32_t* paths = args.ints(2, "paths", {batch, levels, rows});
    const int32_t* positions = args.ints(3, "positions", {batch, rows});
    const float* params = args.floats(4, "params", {batch, kParams});
    const float* uniforms = args.floats(5, "uniforms", {batch, places});
    const float* decay = args.floats(6, "decay", {kBins});
    int32_t* choices = args.ints(7, "choices", {batch, rows});
    bool* faults = args.bools(8, "fault", {batch});
    check_range(args, "positions", positions, batch * rows, places - 1);
    if (size > INT32_MAX / 2) args.fail("the vocabulary has " + std::to_string(size) + " tokens; expected fewer");
    const Index total = batch * rows, workers = std::min<Index>(total, threads());
    std::vector<std::unique_ptr<RowSpace>> spaces;
    for (Index i = 0; i < workers; ++i) spaces.push_back(std::make_unique<RowSpace>(size));
    std::vector<Sampling> options(static_cast<size_t>(batch));
    std::memcpy(options.data(), params, static_cast<size_t>(batch) * sizeof(Sampling));
    std::unique_ptr<bool[]> broken(new bool[static_cast<size_t>(total)]);
    parallel(workers, [&](Index worker) {
      for (Index row = worker; row < total; row += workers) {
        const Index b = row / rows, r = row % rows;
        choices[row] = choose_row(logits + row * size, size, seen + b * size, paths + b * levels * rows + r, levels,
                                  rows, positions[row] + 1, options[b], uniforms[b * places + positions[row] + 1],
                                  decay, *spaces[worker], &broken[row]);
      }
    });
    std::fill(faults, faults + batch, false);
    for (Index row = 0; row < total; ++row) faults[row / rows] |= broken[row];
  });
}

// tokens int32 [B,T], count int32 [B], seen bool [B,V] (written) -> int32 [1], tokens noted: the first `count` of them.
MS_EAGLE_OP(MarkRows) {
  return guard(extra, [&] {
    const Arguments args("MarkRows", 4, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "tokens"), length = args.dim(0, 1, "tokens"), size = args.dim(2, 1, "seen");
    const int32_t* tokens = args.ints(0, "tokens", {batch, length});
    const int32_t* used = args.ints(1, "count", {batch});
    bool* seen = args.bools(2, "seen", {batch, size});
    int32_t* noted = args.ints(3, "result", {1});
    check_range(args, "count", used, batch, length + 1);
    for (Index b = 0; b < batch; ++b) check_range(args, "tokens", tokens + b * length, used[b], size);
    noted[0] = 0;
    for (Index b = 0; b < batch; ++b)
      for (Index i = 0; i < used[b]; ++i, ++noted[0]) seen[b * size + tokens[b * length + i]] = true;
  });
}
