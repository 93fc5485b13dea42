// How every op begins: its signature, and checks that several ops share.
//
// MindSpore calls int Op(count, memory, ranks, shapes, dtypes, stream, extra), inputs first, outputs last; 0 when
// done. Python reaches the same functions through ctypes with `extra` null.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "arguments.h"
#include "attention.h"
#include "layers.h"
#include "pool.h"

#define MS_EAGLE_EXPORT extern "C" __attribute__((visibility("default")))
#define MS_EAGLE_OP(name) \
  MS_EAGLE_EXPORT int name(int count, void** data, int* ranks, int64_t** shapes, const char** types, void*, void* extra)

namespace ms_eagle {

// Panels of float32 [ceil(out / kPanel), in, kPanel], or of codes, uint8 [ceil(out / kPanel), in, bytes of an input].
inline Weights panels(const Arguments& args, int at, const char* name, Index out, Index in) {
  if (!args.holds(at, "uint8")) return {args.floats(at, name, {panels_of(out), in, kPanel}), out, in, Format::kFloat};
  const Index bytes = args.dim(at, 2, name);
  for (const Format format : {Format::kInt8, Format::kInt4, Format::kInt4Minimum}) {
    const Weights weights{args.bytes(at, name, {panels_of(out), in, bytes}), out, in, format};
    if (weights.input_bytes() == bytes && in % kGroup == 0) return weights;
  }
  args.fail(std::string(name) + " holds codes of " + std::to_string(in) + " inputs in " + std::to_string(bytes) +
            " bytes each; expected a multiple of " + std::to_string(kGroup) + " inputs in a format that there is");
}

// Heads and slots of a cache, int32 [2]: its memory does not tell them when it is laid out as rows.
struct CacheLayout {
  Index heads, slots;

  CacheLayout(const Arguments& args, int at) {
    const int32_t* sizes = args.ints(at, "cache layout", {2});
    heads = sizes[0];
    slots = sizes[1];
    if (heads < 1 || slots < 1)
      args.fail("cache layout is " + std::to_string(heads) + " heads of " + std::to_string(slots) +
                " slots; expected at least one of each");
  }
};

// A cache, [B, Hkv, S, d] or the same memory as rows, [B * Hkv * S, d].
inline float* cache(const Arguments& args, int at, const char* name, Index batch, const CacheLayout& layout, Index size) {
  if (args.rank(at) == 2) return args.floats(at, name, {batch * layout.heads * layout.slots, size});
  return args.floats(at, name, {batch, layout.heads, layout.slots, size});
}

inline void check_range(const Arguments& args, const char* name, const int32_t* values, Index count, Index end) {
  for (Index i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= end)
      args.fail(std::string(name) + " holds " + std::to_string(values[i]) + "; expected 0.." + std::to_string(end - 1));
}

inline Visible visible_lists(const Arguments& args, int at, Index batch, Index rows, Index slots) {
  const Index room = args.dim(at, args.rank(at) - 1, "visible") - 2;
  const Visible visible{args.ints(at, "visible", {batch, rows, room + 2}), room};
  if (room < 0) args.fail("visible has no room for prefix and count");
  for (Index row = 0; row < batch * rows; ++row) {
    const int32_t* list = visible.of(row);
    if (list[0] < 0 || list[0] > slots || list[1] < 0 || list[1] > room)
      args.fail("visible has a row of prefix " + std::to_string(list[0]) + " and count " + std::to_string(list[1]) +
                "; expected 0.." + std::to_string(slots) + " and 0.." + std::to_string(room));
    check_range(args, "visible", list + 2, list[1], slots);
  }
  return visible;
}

// Rows after the optional norm: `x` itself when there is none.
inline const float* normed(const Arguments& args, int at, const float* x, Index rows, Index width, float eps, float* space) {
  const float* weight = args.optional_floats(at, "norm", {width});
  if (!weight) return x;
  rms_norm(x, rows, width, weight, eps, space);
  return space;
}

}  // namespace ms_eagle
