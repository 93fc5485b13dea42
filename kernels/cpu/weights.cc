#include "weights.h"

#include "pool.h"

namespace ms_eagle {

namespace {

// Call use(a value of the format's class); floats have none.
template <class Use>
void with_codes(Format format, Use&& use) {
  if (format == Format::kInt8)
    use(Int8{});
  else if (format == Format::kInt4)
    use(Int4{});
  else
    use(Int4Minimum{});
}

}  // namespace

Index Weights::input_bytes() const {
  if (format == Format::kFloat) return kPanel * static_cast<Index>(sizeof(float));
  Index bytes = 0;
  with_codes(format, [&](auto kind) { bytes = bytes_of_input<decltype(kind)>; });
  return bytes;
}

Left::Left(const float* x, Index rows, const Weights& weights) : x_(x) {
  if (weights.format != Format::kFloat) codes_.emplace(x, rows, weights.in);
}

void Left::multiply(Index first, Index rows, const Weights& weights, Index i, float* y, Index next) const {
  if (!codes_) {
    const auto* panel = reinterpret_cast<const float*>(weights.panel(i));
    const auto* following = next < 0 ? nullptr : reinterpret_cast<const float*>(weights.panel(next));
    multiply_panel(x_ + first * weights.in, weights.in, rows, panel, kPanel, kPanel, weights.in, y, kPanel, false,
                   following);
    return;
  }
  with_codes(weights.format, [&](auto kind) {
    multiply_codes<decltype(kind)>(*codes_, first, rows, weights.panel(i), y, kPanel);
  });
}

void unpack_rows(const int32_t* tokens, Index rows, const Weights& weights, float* y) {
  parallel(rows, [&](Index r) {
    const uint8_t* panel = weights.panel(tokens[r] / kPanel);
    const Index column = tokens[r] % kPanel;
    float* line = y + r * weights.in;
    if (weights.format == Format::kFloat) {
      for (Index i = 0; i < weights.in; ++i) line[i] = reinterpret_cast<const float*>(panel)[i * kPanel + column];
      return;
    }
    with_codes(weights.format, [&](auto kind) { unpack_column<decltype(kind)>(panel, column, weights.in, line); });
  });
}

}  // namespace ms_eagle
