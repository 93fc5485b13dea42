// A weight matrix in any of its stored formats, and products with it.
#pragma once

#include <optional>

#include "codes.h"
#include "panel.h"

namespace ms_eagle {

enum class Format { kFloat, kInt8, kInt4, kInt4Minimum };

// A matrix [out, in] as ceil(out / kPanel) panels of kPanel columns; columns past `out` are zero.
struct Weights {
  const void* panels;
  Index out, in;
  Format format;

  Index count() const { return panels_of(out); }
  Index width(Index i) const { return out - i * kPanel < kPanel ? out - i * kPanel : kPanel; }

  // Bytes that a panel takes for each input.
  Index input_bytes() const;

  const uint8_t* panel(Index i) const { return static_cast<const uint8_t*>(panels) + i * in * input_bytes(); }
};

// Rows [rows, in] to be multiplied, in the form that the weights' format takes. One lives at a time on a thread.
class Left {
 public:
  Left(const float* x, Index rows, const Weights& weights);

  // y[rows, kPanel] = x[first .. first + rows] @ panel i; `next` as for multiply_panel, -1 for none.
  void multiply(Index first, Index rows, const Weights& weights, Index i, float* y, Index next) const;

 private:
  const float* x_;
  std::optional<RowCodes> codes_;
};

// Rows of the matrix that was packed: y[r] = W[tokens[r]].
void unpack_rows(const int32_t* tokens, Index rows, const Weights& weights, float* y);

}  // namespace ms_eagle
