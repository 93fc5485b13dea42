// The linear maps, norms and activation of a decoder block, over `rows` rows of packed floats.
#pragma once

#include "weights.h"

namespace ms_eagle {

// y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, each row [width].
void rms_norm(const float* x, Index rows, Index width, const float* weight, float eps, float* y);

void norm_row(const float* x, Index width, const float* weight, float eps, float* y);

// y = x W^T (+ bias) (+ residual); x [rows, in], y and residual [rows, out]; bias and residual may be null.
void linear(const float* x, Index rows, const Weights& weights, const float* bias, const float* residual, float* y);

// y = silu(gate(x)) * up(x); x [rows, in], y [rows, inner]; bias [2, inner] or null.
// The panels of gate and up take turns, so that one thread holds both factors of a product.
//   both: the panels of gate and up by turns, out = 2 * inner rounded up to panels
void gated_linear(const float* x, Index rows, const Weights& both, Index inner, const float* bias, float* y);

// The column of x W^T that is largest, the lowest of several, for each row; and whether any is NaN or infinite, for
// every `group` rows.
void argmax_linear(const float* x, Index rows, const Weights& weights, int32_t* best, Index group, bool* not_finite);

// The k largest of x[width], largest first, equal ones by ascending column, NaN as the smallest.
void top_row(const float* x, Index width, Index k, float* values, int32_t* columns);

// x[width] becomes its logarithm of softmax; false where that is no distribution: a NaN or +inf, or only -inf.
bool log_softmax_row(float* x, Index width);

}  // namespace ms_eagle
