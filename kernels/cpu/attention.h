// Attention of new rows over a static cache, and the rotation and write that come before it.
//
// What a row sees is a list of slots in token order. The list is worked through in chunks of a fixed
// number of its entries, so the arithmetic for a row depends on the list's keys and values alone: not on
// the slots they sit in, the other rows, or the number of threads.
#pragma once

#include "panel.h"
#include "scratch.h"

namespace ms_eagle {

constexpr Index kMostHeadSize = 256;

struct AttentionShape {
  Index batch, rows, heads, kv_heads, slots, size;
};

// What each row sees: int32 [batch, rows, 2 + room] of (prefix, count, slots...): slots 0..prefix-1, then
// `count` more. Nothing seen gives a row of zeros.
struct Visible {
  const int32_t* lists;
  Index room;

  const int32_t* of(Index row) const { return lists + row * (2 + room); }
};

// Where the entries of a [batch, rows, heads, size] array lie, in floats.
struct Strides {
  Index batch, row, head;
};

// Working space of `attend`, in floats.
Index attend_scratch(const AttentionShape& shape, const Visible& visible);

// out = softmax(q k^T / sqrt(size)) v over what each row sees.
void attend(const AttentionShape& shape, const float* q, Strides q_at, const float* keys, const float* values,
            const Visible& visible, float* out, Strides out_at, Scratch& scratch);

struct Rotary {
  const float* cos;  // [positions, size / 2]
  const float* sin;
  const int32_t* positions;  // [batch, rows]
  const float* q_norm;       // [size], or null: RMSNorm of each head before the rotation
  const float* k_norm;
  float eps;
};

// Rotate q and k in `qkv` [batch, rows, heads + 2 kv_heads, size] and write k and v to `slots` of the caches.
void rotate_and_write(const AttentionShape& shape, float* qkv, const Rotary& rotary, const int32_t* slots, float* keys,
                      float* values);

}  // namespace ms_eagle
