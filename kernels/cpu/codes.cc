#include "codes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "dot.h"
#include "pool.h"

namespace ms_eagle {

namespace {

constexpr int kVectors = static_cast<int>(kPanel) / W;

// The most rows of a tile. It takes all vectors of a panel, which is read once and in order; the sums of a group stay in
// registers, those over groups mostly.
#if defined(__AVX512F__)
constexpr int kMostRows = 6;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kMostRows = 3;
#else
constexpr int kMostRows = 2;
#endif

template <class Format, int R>
void tile(const RowCodes& x, Index first, const uint8_t* panel, float* y, Index y_stride) {
  constexpr int V = kVectors;
  Vf sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = Vf{};
  for (Index group = 0; group < x.groups(); ++group, panel += Format::kBytes) {
    const uint8_t* codes = panel + Format::kHeader;
    Vi dots[R][V];
    if constexpr (Format::kBits == 4) {
      NibbleDot dot[R][V];
      for (int pair = 0; pair < kGroup / 8; ++pair, codes += 4 * kPanel)
        for (int v = 0; v < V; ++v) {
          const Vb both = load_codes(codes + v * 4 * W);
          const Vb low = both & 15, high = (Vb)((Vs)both >> 4) & 15;
          for (int r = 0; r < R; ++r) {
            const int8_t* four = x.codes(first + r, group) + 8 * pair;
            dot[r][v].add(low, four);
            dot[r][v].add(high, four + 4);
          }
        }
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) dots[r][v] = dot[r][v].total();
    } else {
      ByteDot dot[R][V];
      for (int four = 0; four < kGroup / 4; ++four, codes += 4 * kPanel)
        for (int v = 0; v < V; ++v) {
          const ByteDot::Codes part(load_codes(codes + v * 4 * W));
          for (int r = 0; r < R; ++r) {
            if constexpr (std::is_same_v<ByteDot::Four, int16_t>)
              dot[r][v].add(part, x.wide(first + r, group) + 4 * four);
            else
              dot[r][v].add(part, x.codes(first + r, group) + 4 * four);
          }
        }
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) dots[r][v] = dot[r][v].total();
    }
    for (int v = 0; v < V; ++v) {
      const Vf scale = load_half(panel + 2 * v * W);
      for (int r = 0; r < R; ++r) {
        const Vf own = scale * broadcast(x.scale(first + r, group));
        if constexpr (Format::kMinimum) {
          const Vf minimum = load_half(panel + Format::kScales + 2 * v * W);
          sums[r][v] = fma(to_float(dots[r][v]), own, sums[r][v]);
          sums[r][v] = fma(minimum, broadcast(x.offset(first + r, group)), sums[r][v]);
        } else {
          const Vi zeros = broadcast_four(x.sum(first + r, group)) * Format::kZero;
          sums[r][v] = fma(to_float(dots[r][v] - zeros), own, sums[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(y + r * y_stride + v * W, sums[r][v]);
}

using Tile = void (*)(const RowCodes&, Index, const uint8_t*, float*, Index);

template <class Format, int... Rows>
constexpr std::array<Tile, sizeof...(Rows)> tiles_of(std::integer_sequence<int, Rows...>) {
  return {tile<Format, Rows + 1>...};
}

// By the number of rows, from one on.
template <class Format>
constexpr auto kTiles = tiles_of<Format>(std::make_integer_sequence<int, kMostRows>());

// A group of a row as codes, and their sum. The largest entry, an integer comparison of its bits, shows a NaN and an
// infinity too; halves are rounded to even.
void encode_group(const float* x, int8_t* codes, int16_t* wide, float* scale, int32_t* sum) {
  int32_t bits[kGroup], most = 0;
  std::copy_n(reinterpret_cast<const char*>(x), sizeof bits, reinterpret_cast<char*>(bits));
  for (Index i = 0; i < kGroup; ++i) most = std::max(most, bits[i] & 0x7fffffff);
  float largest;
  std::memcpy(&largest, &most, sizeof largest);
  const bool finite = most < 0x7f800000, any = finite && largest > 1e-30f;
  const float inverse = any ? 127.0f / largest : 0.0f;
  *scale = any ? largest / 127.0f : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  constexpr float kMagic = 12582912.0f;
  int32_t total = 0, rounded[kGroup];
  for (Index i = 0; i < kGroup; ++i) {
    const float shifted = (any ? x[i] : 0.0f) * inverse + kMagic;
    std::memcpy(&rounded[i], &shifted, sizeof shifted);
    rounded[i] -= 0x4b400000;
  }
  for (Index i = 0; i < kGroup; ++i) total += rounded[i];
  for (Index i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>(rounded[i]);
  if (std::is_same_v<ByteDot::Four, int16_t>)
    for (Index i = 0; i < kGroup; i += 4) {
      wide[i] = static_cast<int16_t>(rounded[i]);
      wide[i + 1] = static_cast<int16_t>(rounded[i + 2]);
      wide[i + 2] = static_cast<int16_t>(rounded[i + 1]);
      wide[i + 3] = static_cast<int16_t>(rounded[i + 3]);
    }
  *sum = total;
}

constexpr Index kAlone = 1 << 14;  // entries below which a loop over rows is not worth sharing out

}  // namespace

RowCodes::RowCodes(const float* x, Index rows, Index in) : in_(in), groups_(in / kGroup) {
  thread_local std::vector<int32_t> memory;
  const Index total = rows * in, scales = rows * groups_;
  const auto size = static_cast<size_t>(3 * scales + total / 4 + total / 2);
  if (memory.size() < size) memory.resize(size);
  sums_ = memory.data();
  scales_ = reinterpret_cast<float*>(sums_ + scales);
  offsets_ = scales_ + scales;
  codes_ = reinterpret_cast<int8_t*>(offsets_ + scales);
  wide_ = reinterpret_cast<int16_t*>(codes_ + total);
  const auto one = [&](Index row) {
    for (Index group = 0; group < groups_; ++group) {
      const Index at = row * in_ + group * kGroup, which = row * groups_ + group;
      encode_group(x + at, codes_ + at, wide_ + at, scales_ + which, sums_ + which);
      offsets_[which] = scales_[which] * static_cast<float>(sums_[which]);
    }
  };
  if (total < kAlone) {
    for (Index row = 0; row < rows; ++row) one(row);
  } else {
    parallel(rows, one);
  }
}

template <class Format>
void multiply_codes(const RowCodes& x, Index first, Index rows, const uint8_t* panel, float* y, Index y_stride) {
  for (Index tiles = (rows + kMostRows - 1) / kMostRows; rows > 0; --tiles) {
    const Index here = (rows + tiles - 1) / tiles;  // tiles of even height
    kTiles<Format>[static_cast<size_t>(here - 1)](x, first, panel, y, y_stride);
    first += here;
    y += here * y_stride;
    rows -= here;
  }
}

namespace {

// Where the code of an input of a column lies within its group's codes: a byte, and of four bits which half.
template <class Format>
struct Place {
  Index byte;
  bool upper;

  Place(Index input, Index column) {
    const Index four = input / 4;
    upper = Format::kBits == 4 && four % 2;
    byte = ((Format::kBits == 4 ? four / 2 : four) * kPanel + column) * 4 + input % 4;
  }
};

}  // namespace

template <class Format>
void unpack_column(const uint8_t* panel, Index column, Index in, float* y) {
  const Index lane = column % W, from = column - lane;
  for (Index group = 0; group < in / kGroup; ++group, panel += Format::kBytes) {
    const float scale = load_half(panel + 2 * from)[lane];
    const float minimum = Format::kMinimum ? load_half(panel + Format::kScales + 2 * from)[lane] : 0.0f;
    for (Index i = 0; i < kGroup; ++i) {
      const Place<Format> place(i, column);
      int32_t code = panel[Format::kHeader + place.byte];
      if (Format::kBits == 4) code = place.upper ? code >> 4 : code & 15;
      const float value = static_cast<float>(code - Format::kZero) * scale;
      y[group * kGroup + i] = Format::kMinimum ? value + minimum : value;
    }
  }
}

template <class Format>
void pack_codes(const uint8_t* codes, const uint16_t* scales, const uint16_t* minima, Index out, Index in,
                uint8_t* packed, Index panel_step) {
  const Index groups = in / kGroup;
  parallel(panels_of(out), [&](Index i) {
    uint8_t* block = packed + i * panel_step * groups * Format::kBytes;
    for (Index group = 0; group < groups; ++group, block += Format::kBytes) {
      std::fill_n(block, Format::kBytes, uint8_t{0});
      for (Index column = 0; column < std::min(kPanel, out - i * kPanel); ++column) {
        const Index row = i * kPanel + column, which = row * groups + group;
        std::memcpy(block + 2 * column, scales + which, 2);
        if (Format::kMinimum) std::memcpy(block + Format::kScales + 2 * column, minima + which, 2);
        const uint8_t* from = codes + (row * in + group * kGroup) * Format::kBits / 8;
        for (Index k = 0; k < kGroup; ++k) {
          const Place<Format> place(k, column);
          uint8_t& to = block[Format::kHeader + place.byte];
          if (Format::kBits == 8)
            to = from[k] ^ 0x80;  // -128..127 as 0..255
          else
            to |= static_cast<uint8_t>((k % 2 ? from[k / 2] >> 4 : from[k / 2] & 15) << (place.upper ? 4 : 0));
        }
      }
    }
  });
}

#define MS_EAGLE_FORMAT(Format)                                                                              \
  template void multiply_codes<Format>(const RowCodes&, Index, Index, const uint8_t*, float*, Index);         \
  template void unpack_column<Format>(const uint8_t*, Index, Index, float*);                                  \
  template void pack_codes<Format>(const uint8_t*, const uint16_t*, const uint16_t*, Index, Index, uint8_t*, \
                                   Index);
MS_EAGLE_FORMAT(Int8)
MS_EAGLE_FORMAT(Int4)
MS_EAGLE_FORMAT(Int4Minimum)

}  // namespace ms_eagle
