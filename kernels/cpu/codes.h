// Products with weights that are stored as codes: small integers, and in half precision a scale for each group of 32
// inputs and, of one format, what a code of 0 stands for.
//
// The rows of x are turned into codes too, each group of a row by itself, so a row has the same bits whatever stands
// beside it. Every entry of a product is one chain over the groups in ascending order.
#pragma once

#include <cstdint>

#include "panel.h"

namespace ms_eagle {

constexpr Index kGroup = 32;  // inputs that share a scale

// A panel holds, group after group, the scales of its columns, then what 0 stands for if the format has that, then the
// codes: those of four inputs of one column side by side, all columns of these four inputs, the next four. Codes of
// four bits are in pairs: in a byte the lower is of one four, the upper of the next.
template <int Bits, bool Minimum>
struct CodeFormat {
  static constexpr int kBits = Bits;
  static constexpr bool kMinimum = Minimum;
  static constexpr int32_t kZero = Minimum ? 0 : 1 << (Bits - 1);  // the code of 0.0
  static constexpr Index kScales = 2 * kPanel, kHeader = kScales * (Minimum ? 2 : 1);
  static constexpr Index kBytes = kHeader + kPanel * kGroup * Bits / 8;  // of a group of a panel
};

using Int8 = CodeFormat<8, false>;
using Int4 = CodeFormat<4, false>;
using Int4Minimum = CodeFormat<4, true>;

// Bytes of a panel for each input: what the shape [panels, in, bytes] of packed codes says.
template <class Format>
constexpr Index bytes_of_input = Format::kBytes / kGroup;

// Rows [rows, in] as codes -127..127: a code times its group's scale is about the entry. A group that holds a NaN or
// an infinity has NaN for a scale. Lives until its thread makes the next one.
class RowCodes {
 public:
  RowCodes(const float* x, Index rows, Index in);

  Index groups() const { return groups_; }
  const int8_t* codes(Index row, Index group) const { return codes_ + row * in_ + group * kGroup; }
  const int16_t* wide(Index row, Index group) const { return wide_ + row * in_ + group * kGroup; }  // see ByteDot
  float scale(Index row, Index group) const { return scales_[row * groups_ + group]; }
  // The sum of the codes, and that times the scale.
  const int32_t* sum(Index row, Index group) const { return sums_ + row * groups_ + group; }
  float offset(Index row, Index group) const { return offsets_[row * groups_ + group]; }

 private:
  Index in_, groups_;
  int8_t* codes_;
  int16_t* wide_;
  float *scales_, *offsets_;
  int32_t* sums_;
};

// y[rows, kPanel] = x[first .. first + rows] @ panel.
template <class Format>
void multiply_codes(const RowCodes& x, Index first, Index rows, const uint8_t* panel, float* y, Index y_stride);

// The entries of one column of a panel: y[in].
template <class Format>
void unpack_column(const uint8_t* panel, Index column, Index in, float* y);

// Codes [out, in] (of four bits [out, in / 2], the even column in the lower half of a byte; of eight bits int8), scales
// and minima [out, in / kGroup] in half precision, as panels of which every `panel_step`th is written.
template <class Format>
void pack_codes(const uint8_t* codes, const uint16_t* scales, const uint16_t* minima, Index out, Index in,
                uint8_t* packed, Index panel_step);

}  // namespace ms_eagle
