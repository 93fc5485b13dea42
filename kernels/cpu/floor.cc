// The hardware's floor, for the benchmark: memory read and arithmetic done with nothing else in between.

#include <algorithm>
#include <vector>

#include "arguments.h"
#include "panel.h"
#include "pool.h"

namespace ms_eagle {
namespace {

constexpr Index kPiece = 1 << 16;  // floats of one work item

float sum_piece(const float* x, Index count) {
  Vf sums[8] = {};
  Index i = 0;
  for (; i + 8 * W <= count; i += 8 * W)
    for (int j = 0; j < 8; ++j) sums[j] += load(x + i + j * W);
  float total = 0.0f;
  for (; i < count; ++i) total += x[i];
  for (int j = 0; j < 8; ++j) total += sum_lanes(sums[j]);
  return total;
}

}  // namespace
}  // namespace ms_eagle

using namespace ms_eagle;

// Read `count` floats once, on all threads; the sum keeps the reads from being dropped.
extern "C" __attribute__((visibility("default"))) float ms_eagle_stream(const float* x, int64_t count) {
  const Index pieces = (count + kPiece - 1) / kPiece;
  std::vector<float> sums(static_cast<size_t>(pieces));
  parallel(pieces, [&](Index i) { sums[i] = sum_piece(x + i * kPiece, std::min(kPiece, count - i * kPiece)); });
  float total = 0.0f;
  for (float sum : sums) total += sum;
  return total;
}
