#include "layers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "pool.h"

namespace ms_eagle {

namespace {

constexpr Index kRows = 48;      // rows of a product that wait for their epilogue at a time
constexpr Index kAlone = 1 << 14;  // floats below which a row-wise loop is not worth sharing out

struct Block {
  float entries[kRows][kPanel];
};

// One work item: panels [first, last), and the panel that its thread is likely to want after them. Threads
// that keep pace take every threads()-th item.
struct Span {
  Index first, last, following;

  Span(Index item, Index step, Index panels)
      : first(item * step), last(std::min(panels, first + step)), following((item + threads()) * step) {
    if (following >= panels) following = -1;
  }

  Index after(Index panel) const { return panel + 1 < last ? panel + 1 : following; }
};

// Call finish(first row, rows, panel, product) for every panel of every block of rows.
template <class Finish>
void each_panel(const Left& x, Index rows, const Weights& weights, const Span& span, Finish&& finish) {
  Block product;
  for (Index i = span.first; i < span.last; ++i)
    for (Index row = 0; row < rows; row += kRows) {
      const Index here = std::min(kRows, rows - row);
      x.multiply(row, here, weights, i, product.entries[0], row == 0 ? span.after(i) : -1);
      finish(row, here, i, product);
    }
}

float sum_of_squares(const float* x, Index width) {
  Vf sum[4] = {};
  Index i = 0;
  for (; i + 4 * W <= width; i += 4 * W)
    for (int j = 0; j < 4; ++j) {
      const Vf v = load(x + i + j * W);
      sum[j] = fma(v, v, sum[j]);
    }
  for (; i < width; i += W) {
    float rest[W] = {};
    std::copy(x + i, x + std::min(width, i + W), rest);
    const Vf v = load(rest);
    sum[0] = fma(v, v, sum[0]);
  }
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace

void norm_row(const float* x, Index width, const float* weight, float eps, float* y) {
  const float factor = 1.0f / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + eps);
  for (Index i = 0; i < width; ++i) y[i] = x[i] * factor * weight[i];
}

void rms_norm(const float* x, Index rows, Index width, const float* weight, float eps, float* y) {
  const auto one = [&](Index row) { norm_row(x + row * width, width, weight, eps, y + row * width); };
  if (rows * width < kAlone) {
    for (Index row = 0; row < rows; ++row) one(row);
  } else {
    parallel(rows, one);
  }
}

void linear(const float* x, Index rows, const Weights& weights, const float* bias, const float* residual, float* y) {
  const Index panels = weights.count(), step = panels_per_item(panels);
  const Left left(x, rows, weights);
  parallel((panels + step - 1) / step, [&](Index item) {
    each_panel(left, rows, weights, Span(item, step, panels),
               [&](Index first, Index count, Index panel, const Block& product) {
                 const Index column = panel * kPanel, width = weights.width(panel);
                 for (Index r = 0; r < count; ++r) {
                   const Index at = (first + r) * weights.out + column;
                   for (Index c = 0; c < width; ++c) {
                     float value = product.entries[r][c];
                     if (bias) value += bias[column + c];
                     y[at + c] = residual ? residual[at + c] + value : value;
                   }
                 }
               });
  });
}

void gated_linear(const float* x, Index rows, const Weights& both, Index inner, const float* bias, float* y) {
  const Index pairs = panels_of(inner), step = panels_per_item(pairs);
  const Left left(x, rows, both);
  parallel((pairs + step - 1) / step, [&](Index item) {
    Block gate, up;
    const Span span(item, step, pairs);
    for (Index pair = span.first; pair < span.last; ++pair) {
      const Index next = span.after(pair) < 0 ? -1 : 2 * span.after(pair);
      const Index column = pair * kPanel, width = std::min(kPanel, inner - column);
      for (Index row = 0; row < rows; row += kRows) {
        const Index here = std::min(kRows, rows - row);
        left.multiply(row, here, both, 2 * pair, gate.entries[0], row == 0 ? 2 * pair + 1 : -1);
        left.multiply(row, here, both, 2 * pair + 1, up.entries[0], row == 0 ? next : -1);
        for (Index r = 0; r < here; ++r) {
          float* g = gate.entries[r];
          float* u = up.entries[r];
          for (Index c = 0; bias && c < width; ++c) {
            g[c] += bias[column + c];
            u[c] += bias[inner + column + c];
          }
          for (Index c = 0; c < kPanel; c += W) {
            const Vf v = load(g + c);
            store(g + c, v / (broadcast(1.0f) + exp(-v)) * load(u + c));
          }
          std::copy(g, g + width, y + (row + r) * inner + column);
        }
      }
    }
  });
}

void argmax_linear(const float* x, Index rows, const Weights& weights, int32_t* best, Index group,
                   bool* not_finite) {
  struct Found {
    float value;
    int32_t index;
    bool not_finite;
  };
  const Index panels = weights.count(), step = panels_per_item(panels);
  const Index items = (panels + step - 1) / step;
  std::vector<Found> found(items * rows, Found{-std::numeric_limits<float>::infinity(), 0, false});
  const Left left(x, rows, weights);
  parallel(items, [&](Index item) {
    each_panel(left, rows, weights, Span(item, step, panels),
               [&](Index first, Index count, Index panel, const Block& product) {
                 for (Index r = 0; r < count; ++r) {
                   Found& mine = found[item * rows + first + r];
                   for (Index c = 0; c < weights.width(panel); ++c) {
                     const float value = product.entries[r][c];
                     mine.not_finite |= !std::isfinite(value);
                     if (value > mine.value) {
                       mine.value = value;
                       mine.index = static_cast<int32_t>(panel * kPanel + c);
                     }
                   }
                 }
               });
  });
  std::fill(not_finite, not_finite + rows / group, false);
  for (Index r = 0; r < rows; ++r) {
    Found all = found[r];
    for (Index item = 1; item < items; ++item) {
      const Found& next = found[item * rows + r];
      all.not_finite |= next.not_finite;
      if (next.value > all.value) {
        all.value = next.value;
        all.index = next.index;
      }
    }
    best[r] = all.index;
    not_finite[r / group] |= all.not_finite;
  }
}

void top_row(const float* x, Index width, Index k, float* values, int32_t* columns) {
  const auto order = [](float value) { return value == value ? value : -std::numeric_limits<float>::infinity(); };
  Index found = 0;
  const auto offer = [&](Index column) {
    const float value = order(x[column]);
    if (found == k && !(value > values[k - 1])) return;
    Index at = found < k ? found++ : k - 1;
    for (; at > 0 && value > values[at - 1]; --at) {
      values[at] = values[at - 1];
      columns[at] = columns[at - 1];
    }
    values[at] = value;
    columns[at] = static_cast<int32_t>(column);
  };
  Index column = 0;
  for (; column < k; ++column) offer(column);
  for (; column + W <= width; column += W)
    if (any(load(x + column) > broadcast(values[k - 1])))
      for (Index i = column; i < column + W; ++i) offer(i);
  for (; column < width; ++column) offer(column);
}

bool log_softmax_row(float* x, Index width) {
  const Vf never = broadcast(-std::numeric_limits<float>::infinity());
  const Index whole = width / W * W;
  float rest[W];
  store(rest, never);
  std::copy(x + whole, x + width, rest);
  Vf best = max(load(rest), never);
  for (Index i = 0; i < whole; i += W) best = max(load(x + i), best);  // passes over a NaN
  const Vf top = broadcast(max_lanes(best));
  Vf sums = exp(load(rest) - top);
  for (Index i = 0; i < whole; i += W) sums += exp(load(x + i) - top);
  const float sum = sum_lanes(sums);
  const Vf log_sum = broadcast(std::log(sum));
  for (Index i = 0; i < whole; i += W) store(x + i, (load(x + i) - top) - log_sum);
  store(rest, (load(rest) - top) - log_sum);
  std::copy(rest, rest + (width - whole), x + whole);
  return sum == sum;
}

}  // namespace ms_eagle
