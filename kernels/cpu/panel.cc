#include "panel.h"

#include <algorithm>

#include "pool.h"

namespace ms_eagle {

namespace {

// The most rows of a tile two vectors wide, and of one four vectors wide: what the registers hold. The wide one
// serves few rows, whose chains would otherwise wait for each other's latency.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kMostRows = 12, kMostWideRows = 6;  // 24 accumulators of 32 registers
#else
constexpr int kMostRows = 6, kMostWideRows = 2;  // 12 and 8 of 16
#endif

constexpr Index kLine = 16, kPage = 1024;  // floats of a cache line and of a page
constexpr Index kNear = 16;                // rows of the panel at hand that are fetched ahead of their use

// Memory to fetch while a tile is computed. Beside a single pass it is read line after line, two for every row of
// the panel. Of two passes each asks for one line a row, from kWays pages in turn: the processor's own prefetcher
// follows each page by itself and runs a fixed number of lines ahead in it, so more pages hide more latency.
struct Ahead {
  const float* from;
  bool single;
  Index first;  // line to begin with

  // What to ask for beside a row, and beside the same row once more. (Addresses, for GCC drops the call of a
  // function that does nothing but ask.)
  const float* beside(Index row) const {
    if (single) return from + row * kPanel;
    constexpr uint64_t kWays = 8, kLines = kPage / kLine;
    const auto line = static_cast<uint64_t>(first + row);
    const uint64_t page = line / (kWays * kLines) * kWays + line % kWays;
    return from + page * kPage + line / kWays % kLines * kLine;
  }
  Index second() const { return single ? kLine : 0; }
};

// R rows times V vectors of columns. The rows are reached from every third one, so that few registers hold them.
template <int R, int V>
void tile(const float* x, Index x_stride, const float* panel, Index panel_stride, Index k, float* y, Index y_stride,
          bool accumulate, Ahead ahead) {
  Vf sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = accumulate ? load(y + r * y_stride + v * W) : Vf{};
  const float* third[(R + 2) / 3];
  for (int r = 0; r < (R + 2) / 3; ++r) third[r] = x + 3 * r * x_stride;
  const Index twice = 2 * x_stride;
  for (Index i = 0; i < k; ++i) {
    Vf columns[V];
    for (int v = 0; v < V; ++v) columns[v] = load(panel + v * W);
    panel += panel_stride;
    if (ahead.from) {
      // The rows that come soon into the nearest cache, the next panel into the one behind it.
      __builtin_prefetch(panel + kNear * kPanel, 0, 3);
      __builtin_prefetch(panel + kNear * kPanel + kPanel / 2, 0, 3);
      const float* wanted = ahead.beside(i);
      __builtin_prefetch(wanted, 0, 2);
      __builtin_prefetch(wanted + ahead.second(), 0, 2);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float* at = third[r / 3] + i;
      const Vf entry = broadcast(r % 3 == 0 ? at[0] : r % 3 == 1 ? at[x_stride] : at[twice]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[r][v] = fma(entry, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(y + r * y_stride + v * W, sums[r][v]);
}

using Tile = void (*)(const float*, Index, const float*, Index, Index, float*, Index, bool, Ahead);

constexpr Tile kTiles[] = {
    nullptr,    tile<1, 2>, tile<2, 2>, tile<3, 2>,  tile<4, 2>,  tile<5, 2>, tile<6, 2>,
#if defined(__AVX512F__) || defined(__aarch64__)
    tile<7, 2>, tile<8, 2>, tile<9, 2>, tile<10, 2>, tile<11, 2>, tile<12, 2>,
#endif
};

constexpr Tile kWideTiles[] = {
    nullptr,    tile<1, 4>, tile<2, 4>,
#if defined(__AVX512F__) || defined(__aarch64__)
    tile<3, 4>, tile<4, 4>, tile<5, 4>, tile<6, 4>,
#endif
};

}  // namespace

void multiply_panel(const float* x, Index x_stride, Index rows, const float* panel, Index panel_stride, Index columns,
                    Index k, float* y, Index y_stride, bool accumulate, const float* next) {
  Index tiles = (rows + kMostRows - 1) / kMostRows;
  // With two passes or more the first two share the fetching, so that it goes on beside all the arithmetic.
  // Up to three rows there is hardly any arithmetic: the whole panel ahead would be too far, the rows are near.
  Ahead ahead{next && rows <= 3 ? panel + 2 * kNear * kPanel : next, tiles == 1, 0};
  const Ahead nothing{nullptr, true, 0};
  while (rows > 0) {
    const Index here = (rows + tiles - 1) / tiles;  // tiles of even height: a lone last row would waste a pass
    for (Index column = 0; column < columns;) {
      const bool wide = here <= kMostWideRows && column + 4 * W <= columns;
      (wide ? kWideTiles : kTiles)[here](x, x_stride, panel + column, panel_stride, k, y + column, y_stride,
                                         accumulate, column == 0 ? ahead : nothing);
      column += wide ? 4 * W : 2 * W;
    }
    ahead = ahead.single || ahead.first > 0 ? nothing : Ahead{next, false, k};
    x += here * x_stride;
    y += here * y_stride;
    rows -= here;
    --tiles;
  }
}

void transpose_into_panel(const float* const* rows, Index columns, Index length, float* panel) {
  const Index whole = length / W * W;
  for (Index group = 0; group < columns; group += W)
    for (Index k = 0; k < whole; k += W) {
      Vf block[W];
      for (int j = 0; j < W; ++j) block[j] = load(rows[group + j] + k);
      transpose(block);
      for (int j = 0; j < W; ++j) store(panel + (k + j) * columns + group, block[j]);
    }
  for (Index k = whole; k < length; ++k)
    for (Index j = 0; j < columns; ++j) panel[k * columns + j] = rows[j][k];
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
    transpose_into_panel(rows, kPanel, in, panel);
    for (Index j = out - i * kPanel; j < kPanel; ++j)
      for (Index k = 0; k < in; ++k) panel[k * kPanel + j] = 0.0f;
  });
}

}  // namespace ms_eagle
