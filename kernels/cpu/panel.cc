#include "panel.h"

#include <algorithm>

#include "pool.h"

namespace ms_eagle {

namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kMostRows = 12;  // 24 accumulators of 32 registers
#else
constexpr int kMostRows = 6;  // 12 of 16
#endif

constexpr Index kColumns = 2 * W;

// Memory to fetch while a tile is computed: `step` floats, at most kPanel, for every row of the panel.
struct Ahead {
  const float* at;
  Index step;
};

// R rows times kColumns columns. The rows are reached from every third one, so that few registers hold them.
template <int R>
void tile(const float* x, Index x_stride, const float* panel, Index panel_stride, Index k, float* y, Index y_stride,
          bool accumulate, Ahead ahead) {
  Vf low[R], high[R];
  for (int r = 0; r < R; ++r) {
    low[r] = accumulate ? load(y + r * y_stride) : Vf{};
    high[r] = accumulate ? load(y + r * y_stride + W) : Vf{};
  }
  const float* third[(R + 2) / 3];
  for (int r = 0; r < (R + 2) / 3; ++r) third[r] = x + 3 * r * x_stride;
  const Index twice = 2 * x_stride;
  for (Index i = 0; i < k; ++i) {
    const Vf first = load(panel), second = load(panel + W);
    panel += panel_stride;
    if (ahead.at) {
      __builtin_prefetch(ahead.at, 0, 2);
      __builtin_prefetch(ahead.at + ahead.step / 2, 0, 2);
      ahead.at += ahead.step;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float* at = third[r / 3] + i;
      const Vf entry = broadcast(r % 3 == 0 ? at[0] : r % 3 == 1 ? at[x_stride] : at[twice]);
      low[r] = fma(entry, first, low[r]);
      high[r] = fma(entry, second, high[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(y + r * y_stride, low[r]);
    store(y + r * y_stride + W, high[r]);
  }
}

using Tile = void (*)(const float*, Index, const float*, Index, Index, float*, Index, bool, Ahead);

constexpr Tile kTiles[] = {
    nullptr, tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>,
#if defined(__AVX512F__) || defined(__aarch64__)
    tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>,
#endif
};

}  // namespace

void multiply_panel(const float* x, Index x_stride, Index rows, const float* panel, Index panel_stride, Index k,
                    float* y, Index y_stride, bool accumulate, const float* next) {
  Index tiles = (rows + kMostRows - 1) / kMostRows;
  // With two passes or more the first two share the fetching, so that it goes on beside all the arithmetic.
  const Index step = tiles > 1 ? kPanel / 2 : kPanel;
  Index fetched = 0;
  while (rows > 0) {
    const Index here = (rows + tiles - 1) / tiles;  // tiles of even height: a lone last row would waste a pass
    for (Index column = 0; column < kPanel; column += kColumns) {
      const bool fetch = next && column == 0 && fetched < kPanel;
      kTiles[here](x, x_stride, panel + column, panel_stride, k, y + column, y_stride, accumulate,
                   Ahead{fetch ? next + fetched * k : nullptr, step});
    }
    fetched += step;
    x += here * x_stride;
    y += here * y_stride;
    rows -= here;
    --tiles;
  }
}

void transpose_into_panel(const float* const rows[kPanel], Index length, float* panel) {
  const Index whole = length / W * W;
  for (Index k = 0; k < whole; k += W)
    for (Index group = 0; group < kPanel; group += W) {
      Vf block[W];
      for (int j = 0; j < W; ++j) block[j] = load(rows[group + j] + k);
      transpose(block);
      for (int j = 0; j < W; ++j) store(panel + (k + j) * kPanel + group, block[j]);
    }
  for (Index k = whole; k < length; ++k)
    for (Index j = 0; j < kPanel; ++j) panel[k * kPanel + j] = rows[j][k];
}

Index panels_per_item(Index panels) {
  return std::max<Index>(1, std::min<Index>(16, panels / (4 * threads())));
}

void pack_weights(const float* weights, Index out, Index in, float* packed, Index panel_step) {
  parallel(panels_of(out), [&](Index i) {
    const float* rows[kPanel];
    // A column past the last is packed from the last row and zeroed after: no buffer of zeros is needed.
    for (Index j = 0; j < kPanel; ++j) rows[j] = weights + std::min(i * kPanel + j, out - 1) * in;
    float* panel = packed + i * panel_step * in * kPanel;
    transpose_into_panel(rows, in, panel);
    for (Index j = out - i * kPanel; j < kPanel; ++j)
      for (Index k = 0; k < in; ++k) panel[k * kPanel + j] = 0.0f;
  });
}

}  // namespace ms_eagle
