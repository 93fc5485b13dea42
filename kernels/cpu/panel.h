// Products with panels: the arithmetic under every linear map and both halves of attention.
//
// A panel holds kPanel columns of a right-hand matrix, one row of them after another. Every entry of a
// product is one chain of multiply-adds over k in ascending order that starts from 0 (or from what is
// there), however many rows are computed beside it: that is what makes results independent of the batch.
#pragma once

#include <cstdint>

#include "vec.h"

namespace ms_eagle {

using Index = int64_t;

constexpr Index kPanel = 32;  // columns; also the packed format of weights, the same on every machine

// y[rows, columns] (+)= x[rows, k] @ panel[k, columns], `columns` a multiple of kPanel.
//   x_stride, panel_stride, y_stride: floats from one row to the next
//   next: a panel [k, kPanel] without gaps that will be wanted after this one and is fetched meanwhile, or null
void multiply_panel(const float* x, Index x_stride, Index rows, const float* panel, Index panel_stride, Index columns,
                    Index k, float* y, Index y_stride, bool accumulate, const float* next = nullptr);

// panel[k * columns + j] = rows[j][k] for k < length: rows laid out as the columns, a multiple of kPanel, of a panel.
void transpose_into_panel(const float* const* rows, Index columns, Index length, float* panel);

inline Index panels_of(Index out) { return (out + kPanel - 1) / kPanel; }

// Panels per work item: long enough to stream, short enough to share out evenly.
Index panels_per_item(Index panels);

// Weights [out, in] as panels of [in, kPanel], of which every `panel_step`th is written; columns past `out` are zero.
void pack_weights(const float* weights, Index out, Index in, float* packed, Index panel_step);

}  // namespace ms_eagle
