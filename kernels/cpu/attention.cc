#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "layers.h"
#include "pool.h"

namespace ms_eagle {

namespace {

constexpr Index kChunk = 128;        // keys that share one maximum; part of the arithmetic's definition
constexpr Index kBlock = 64;         // keys that are transposed together
constexpr Index kQueries = 48;       // rows times heads that one item works on
constexpr Index kFloats = kQueries * 128;
constexpr Index kSerial = 1 << 13;

// Queries of one KV head that are worked on together: `rows` rows times `heads` heads.
struct Part {
  Index batch, kv_head, first_head, heads, first_row, rows;
};

// How the queries are shared out. It depends on shapes alone and does not touch the arithmetic.
struct Plan {
  Index group, heads_in_part, head_parts, rows_in_part, row_parts, chunks, parts, width;

  Plan(const AttentionShape& shape, const Visible& visible) {
    width = panels_of(shape.size) * kPanel;
    const Index most = std::min(kQueries, kFloats / width);
    group = shape.heads / shape.kv_heads;
    head_parts = (group + most - 1) / most;
    heads_in_part = (group + head_parts - 1) / head_parts;
    row_parts = (shape.rows * heads_in_part + most - 1) / most;
    rows_in_part = std::max<Index>(1, std::min(most / heads_in_part, (shape.rows + row_parts - 1) / row_parts));
    row_parts = (shape.rows + rows_in_part - 1) / rows_in_part;
    parts = shape.batch * shape.kv_heads * head_parts * row_parts;
    Index longest = 1;
    for (Index row = 0; row < shape.batch * shape.rows; ++row)
      longest = std::max<Index>(longest, visible.of(row)[0] + visible.of(row)[1]);
    chunks = (longest + kChunk - 1) / kChunk;
  }

  // With fewer parts than would keep the threads busy, every chunk becomes an item of its own.
  bool split() const { return chunks > 1 && threads() > 1 && parts < 4 * threads(); }

  // Floats of one part's sums over one chunk.
  Index partial() const { return rows_in_part * heads_in_part * (width + 2); }

  Part part(Index item, const AttentionShape& shape) const {
    Part p;
    const Index row_part = item % row_parts;
    item /= row_parts;
    const Index head_part = item % head_parts;
    item /= head_parts;
    p.kv_head = item % shape.kv_heads;
    p.batch = item / shape.kv_heads;
    p.first_head = p.kv_head * group + head_part * heads_in_part;
    p.heads = std::min(heads_in_part, group - head_part * heads_in_part);
    p.first_row = row_part * rows_in_part;
    p.rows = std::min(rows_in_part, shape.rows - p.first_row);
    return p;
  }
};

// Softmax numerators [queries, width], denominators and maxima of one chunk, or of several joined.
struct Sums {
  float* mix;
  float* total;
  float* top;
};

struct SumsMemory {
  float mix[kFloats], total[kQueries], top[kQueries];

  Sums sums() { return {mix, total, top}; }
};

// The keys and values of one KV head, and what the rows of a part see of them.
struct Head {
  const AttentionShape& shape;
  const float* keys;
  const float* values;
  const int32_t* seen[kQueries];  // per row of the part

  Index length(Index row) const { return Index{seen[row][0]} + seen[row][1]; }
  Index slot(Index row, Index at) const {
    return at < seen[row][0] ? at : seen[row][2 + at - seen[row][0]];
  }
};

Index clamp(Index value, Index low, Index high) { return std::min(std::max(value, low), high); }

// Scores of up to kBlock list entries from `start` for every row of the part.
void score_block(const Head& head, const Part& part, const float* q, Index width, Index start, float* scores) {
  const Index size = head.shape.size;
  float panel[kMostHeadSize * kBlock];
  const float* rows[kBlock];
  const auto multiply = [&](Index first, Index count, Index columns) {
    multiply_panel(q + first * part.heads * width, width, count * part.heads, panel, columns, columns, size,
                   scores + first * part.heads * kChunk, kChunk, false);
  };
  // Rows that see nothing but slots 0, 1, ... within this block share its keys, transposed once.
  Index reach = 0;
  bool own[kQueries];
  for (Index row = 0; row < part.rows; ++row) {
    const Index end = std::min(head.length(row), start + kBlock);
    own[row] = end > start && end > head.seen[row][0];
    if (!own[row]) reach = std::max(reach, end);
  }
  if (reach > start) {
    const Index columns = panels_of(reach - start) * kPanel;
    for (Index j = 0; j < columns; ++j) rows[j] = head.keys + std::min(start + j, reach - 1) * size;
    transpose_into_panel(rows, columns, size, panel);
    for (Index row = 0; row < part.rows;) {
      Index next = row;
      while (next < part.rows && !own[next]) ++next;  // rows beyond their end are computed and ignored
      if (next > row) multiply(row, next - row, columns);
      row = std::max(next, row + 1);
    }
  }
  for (Index row = 0; row < part.rows; ++row) {
    if (!own[row]) continue;
    const Index end = std::min(head.length(row), start + kBlock), columns = panels_of(end - start) * kPanel;
    for (Index j = 0; j < columns; ++j) rows[j] = head.keys + head.slot(row, std::min(start + j, end - 1)) * size;
    transpose_into_panel(rows, columns, size, panel);
    multiply(row, 1, columns);
  }
}

// mix[rows] += weights[rows, count] @ values[count, size], the values one after another from `values`.
void add_values(const float* weights, Index rows, const float* values, Index size, Index count, float* mix,
                Index width) {
  const Index whole = size / kPanel * kPanel;
  if (whole > 0) multiply_panel(weights, kChunk, rows, values, size, whole, count, mix, width, true);
  if (whole == size) return;
  float rest[kChunk * kPanel];
  for (Index i = 0; i < count; ++i) {
    float* line = rest + i * kPanel;
    std::fill(line, line + kPanel, 0.0f);
    std::copy(values + i * size + whole, values + (i + 1) * size, line);
  }
  multiply_panel(weights, kChunk, rows, rest, kPanel, kPanel, count, mix + whole, width, true);
}

// One chunk of the lists for one part.
void chunk_sums(const Head& head, const Part& part, const float* q, Index width, Index chunk, const Sums& sums) {
  const Index size = head.shape.size, start = chunk * kChunk;
  float scores[kQueries * kChunk];
  Index longest = 0, shared = kChunk;
  for (Index row = 0; row < part.rows; ++row) {
    longest = std::max(longest, head.length(row));
    shared = std::min(shared, clamp(head.seen[row][0] - start, 0, kChunk));
  }
  for (Index at = start; at < std::min(longest, start + kChunk); at += kBlock)
    score_block(head, part, q, width, at, scores + (at - start));
  for (Index row = 0; row < part.rows; ++row) {
    const Index count = clamp(head.length(row) - start, 0, kChunk);
    const Index padded = (count + W - 1) / W * W;
    for (Index query = row * part.heads; query < (row + 1) * part.heads; ++query) {
      float* s = scores + query * kChunk;
      std::fill(s + count, s + padded, -std::numeric_limits<float>::infinity());
      Vf best = broadcast(-std::numeric_limits<float>::infinity());
      for (Index j = 0; j < padded; j += W) best = max(load(s + j), best);
      const float top = max_lanes(best);
      Vf total = {};
      for (Index j = 0; j < padded; j += W) {
        const Vf weight = exp(load(s + j) - broadcast(top));
        store(s + j, weight);
        total += weight;
      }
      sums.top[query] = top;
      sums.total[query] = sum_lanes(total);
    }
  }
  std::fill(sums.mix, sums.mix + part.rows * part.heads * width, 0.0f);
  if (shared > 0)
    add_values(scores, part.rows * part.heads, head.values + start * size, size, shared, sums.mix, width);
  float gathered[kPanel * kMostHeadSize];
  for (Index row = 0; row < part.rows; ++row) {
    const Index count = clamp(head.length(row) - start, 0, kChunk);
    const Index prefix = clamp(head.seen[row][0] - start, 0, count);
    const float* weights = scores + row * part.heads * kChunk;
    float* mix = sums.mix + row * part.heads * width;
    if (prefix > shared)
      add_values(weights + shared, part.heads, head.values + (start + shared) * size, size, prefix - shared, mix,
                 width);
    for (Index at = std::max(prefix, shared); at < count; at += kPanel) {
      const Index here = std::min(kPanel, count - at);
      for (Index i = 0; i < here; ++i) {
        const float* value = head.values + head.slot(row, start + at + i) * size;
        std::copy(value, value + size, gathered + i * size);
      }
      add_values(weights + at, part.heads, gathered, size, here, mix, width);
    }
  }
}

// Join one query's sums over a later chunk to those over the earlier ones.
void join(float* mix, float* total, float* top, const float* more, float more_total, float more_top, Index width) {
  const float highest = *top > more_top ? *top : more_top;
  const float keep = exp(*top - highest), add = exp(more_top - highest);
  for (Index c = 0; c < width; c += W)
    store(mix + c, fma(load(more + c), broadcast(add), load(mix + c) * broadcast(keep)));
  *total = *total * keep + more_total * add;
  *top = highest;
}

}  // namespace

Index attend_scratch(const AttentionShape& shape, const Visible& visible) {
  const Plan plan(shape, visible);
  return plan.split() ? plan.parts * plan.chunks * plan.partial() : 0;
}

void attend(const AttentionShape& shape, const float* q, Strides q_at, const float* keys, const float* values,
            const Visible& visible, float* out, Strides out_at, Scratch& scratch) {
  const Plan plan(shape, visible);
  const Index width = plan.width, size = shape.size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  const auto open = [&](const Part& part, Head& head, float* queries) {
    for (Index row = 0; row < part.rows; ++row) {
      head.seen[row] = visible.of(part.batch * shape.rows + part.first_row + row);
      for (Index h = 0; h < part.heads; ++h) {
        const float* from =
            q + part.batch * q_at.batch + (part.first_row + row) * q_at.row + (part.first_head + h) * q_at.head;
        float* to = queries + (row * part.heads + h) * width;
        for (Index c = 0; c < size; ++c) to[c] = from[c] * scale;
      }
    }
  };
  const auto close = [&](const Part& part, const float* mix, const float* total) {
    for (Index row = 0; row < part.rows; ++row) {
      const int32_t* seen = visible.of(part.batch * shape.rows + part.first_row + row);
      for (Index h = 0; h < part.heads; ++h) {
        const Index query = row * part.heads + h;
        float* to =
            out + part.batch * out_at.batch + (part.first_row + row) * out_at.row + (part.first_head + h) * out_at.head;
        const bool blind = seen[0] + seen[1] == 0;
        for (Index c = 0; c < size; ++c) to[c] = blind ? 0.0f : mix[query * width + c] / total[query];
      }
    }
  };
  const auto head_of = [&](const Part& part) {
    const Index offset = (part.batch * shape.kv_heads + part.kv_head) * shape.slots * size;
    return Head{shape, keys + offset, values + offset, {}};
  };
  const auto join_part = [&](const Part& part, const Head& head, Index chunk, const Sums& all, const Sums& more) {
    for (Index query = 0; query < part.rows * part.heads; ++query)
      if (head.length(query / part.heads) > chunk * kChunk)
        join(all.mix + query * width, &all.total[query], &all.top[query], more.mix + query * width,
             more.total[query], more.top[query], width);
  };
  if (!plan.split()) {
    parallel(plan.parts, [&](Index item) {
      const Part part = plan.part(item, shape);
      Head head = head_of(part);
      float queries[kFloats] = {};
      open(part, head, queries);
      SumsMemory first, later;
      const Sums all = first.sums(), more = later.sums();
      Index longest = 0;
      for (Index row = 0; row < part.rows; ++row) longest = std::max(longest, head.length(row));
      chunk_sums(head, part, queries, width, 0, all);
      for (Index chunk = 1; chunk * kChunk < longest; ++chunk) {
        chunk_sums(head, part, queries, width, chunk, more);
        join_part(part, head, chunk, all, more);
      }
      close(part, all.mix, all.total);
    });
    return;
  }
  float* memory = scratch.take(plan.parts * plan.chunks * plan.partial());
  const auto partial = [&](Index item) {
    const Index queries = plan.rows_in_part * plan.heads_in_part;
    float* mix = memory + item * plan.partial();
    return Sums{mix, mix + queries * width, mix + queries * (width + 1)};
  };
  parallel(plan.parts * plan.chunks, [&](Index item) {
    const Part part = plan.part(item / plan.chunks, shape);
    Head head = head_of(part);
    float queries[kFloats] = {};
    open(part, head, queries);
    chunk_sums(head, part, queries, width, item % plan.chunks, partial(item));
  });
  for (Index i = 0; i < plan.parts; ++i) {
    const Part part = plan.part(i, shape);
    Head head = head_of(part);
    for (Index row = 0; row < part.rows; ++row)
      head.seen[row] = visible.of(part.batch * shape.rows + part.first_row + row);
    const Sums all = partial(i * plan.chunks);
    for (Index chunk = 1; chunk < plan.chunks; ++chunk)
      join_part(part, head, chunk, all, partial(i * plan.chunks + chunk));
    close(part, all.mix, all.total);
  }
}

void rotate_and_write(const AttentionShape& shape, float* qkv, const Rotary& rotary, const int32_t* slots, float* keys,
                      float* values) {
  const Index size = shape.size, half = size / 2, turned = shape.heads + shape.kv_heads;
  const Index heads = turned + shape.kv_heads;
  // One item is one head of one sequence: rows that share a slot, as padded ones do, stay in order.
  const auto one = [&](Index item) {
    const Index batch = item / heads, head = item % heads;
    const bool is_q = head < shape.heads, is_k = !is_q && head < turned;
    const float* norm = is_q ? rotary.q_norm : is_k ? rotary.k_norm : nullptr;
    float* cache = is_q ? nullptr : is_k ? keys : values;
    if (cache) cache += (batch * shape.kv_heads + (head - shape.heads) % shape.kv_heads) * shape.slots * size;
    for (Index row = batch * shape.rows; row < (batch + 1) * shape.rows; ++row) {
      float* x = qkv + (row * heads + head) * size;
      if (norm) norm_row(x, size, norm, rotary.eps, x);
      if (is_q || is_k) {
        const float* cos = rotary.cos + rotary.positions[row] * half;
        const float* sin = rotary.sin + rotary.positions[row] * half;
        for (Index i = 0; i < half; ++i) {
          const float low = x[i], high = x[half + i];
          x[i] = low * cos[i] - high * sin[i];
          x[half + i] = high * cos[i] + low * sin[i];
        }
      }
      if (cache) std::copy(x, x + size, cache + slots[row] * size);
    }
  };
  if (shape.batch * shape.rows * heads * size < kSerial) {
    for (Index item = 0; item < shape.batch * heads; ++item) one(item);
  } else {
    parallel(shape.batch * heads, one);
  }
}

}  // namespace ms_eagle
