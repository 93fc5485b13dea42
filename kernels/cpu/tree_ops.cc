// A draft tree from its first children to the tokens that a cycle emits: whole numbers and comparisons only.
//
// Pool and beam are those of ms_eagle/tree/growth.py, which says what every tensor holds; the stock forms of these ops are
// there, in tensorize.py, accept.py and cycle.py.

#include <cmath>
#include <limits>

#include "ops.h"
#include "rows.h"

namespace ms_eagle {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// A log-probability as a score: at most 0, and never NaN.
float score_of(float log_prob) { return log_prob != log_prob ? kNever : std::min(log_prob, 0.0f); }

bool any_nan(const float* x, Index count) {
  bool found = false;
  for (Index i = 0; i < count; ++i) found |= x[i] != x[i];
  return found;
}

// Higher scores first, then lower indices; a NaN, which no caller has, counts as the lowest score.
struct Better {
  const float* scores;

  bool operator()(int32_t a, int32_t b) const {
    const float x = scores[a] == scores[a] ? scores[a] : kNever, y = scores[b] == scores[b] ? scores[b] : kNever;
    return x != y ? x > y : a < b;
  }
};

struct PoolIn {
  Index size;
  const int32_t* tokens;
  const float* scores;
  const int32_t* parents;
  const int32_t* depths;

  PoolIn(const Arguments& args, Index batch)
      : size(args.dim(0, 1, "pool tokens")),
        tokens(args.ints(0, "pool tokens", {batch, size})),
        scores(args.floats(1, "pool scores", {batch, size})),
        parents(args.ints(2, "pool parents", {batch, size})),
        depths(args.ints(3, "pool depths", {batch, size})) {}
};

// Pool and beam as an op's outputs, from tensor `at` on, and the flag behind them.
struct Grown {
  int32_t* tokens;
  float* scores;
  int32_t* parents;
  int32_t* depths;
  int32_t* beam_tokens;
  float* beam_scores;
  int32_t* beam_nodes;
  int32_t* beam_rows;
  int32_t* lineage;
  bool* broken;

  Grown(const Arguments& args, int at, Index batch, Index size, Index branch, Index levels)
      : tokens(args.ints(at, "pool tokens", {batch, size})),
        scores(args.floats(at + 1, "pool scores", {batch, size})),
        parents(args.ints(at + 2, "pool parents", {batch, size})),
        depths(args.ints(at + 3, "pool depths", {batch, size})),
        beam_tokens(args.ints(at + 4, "beam tokens", {batch, branch})),
        beam_scores(args.floats(at + 5, "beam scores", {batch, branch})),
        beam_nodes(args.ints(at + 6, "beam nodes", {batch, branch})),
        beam_rows(args.ints(at + 7, "beam rows", {batch, branch})),
        lineage(args.ints(at + 8, "lineage", {batch, levels, branch})),
        broken(args.bools(at + 9, "broken", {batch})) {}
};

}  // namespace
}  // namespace ms_eagle

using namespace ms_eagle;

// root int32 [B], tokens int32 [B,1,k], log_probs [B,1,k] -> pool tokens int32 [B,1+k], scores, parents int32, depths
// int32, beam tokens int32 [B,k], scores, nodes int32, rows int32, lineage int32 [B,1,k], broken bool [B].
MS_EAGLE_OP(GrowRoot) {
  return guard(extra, [&] {
    const Arguments args("GrowRoot", 13, count, data, ranks, shapes, types);
    const Index batch = args.dim(1, 0, "tokens"), branch = args.dim(1, 2, "tokens"), size = 1 + branch;
    const int32_t* root = args.ints(0, "root", {batch});
    const int32_t* tokens = args.ints(1, "tokens", {batch, 1, branch});
    const float* log_probs = args.floats(2, "log_probs", {batch, 1, branch});
    const Grown grown(args, 3, batch, size, branch, 1);
    for (Index b = 0; b < batch; ++b) {
      grown.tokens[b * size] = root[b];
      grown.scores[b * size] = 0.0f;
      grown.parents[b * size] = grown.depths[b * size] = 0;
      grown.broken[b] = any_nan(log_probs + b * branch, branch);
      for (Index j = 0; j < branch; ++j) {
        const Index child = b * branch + j, node = b * size + 1 + j;
        grown.tokens[node] = grown.beam_tokens[child] = tokens[child];
        grown.scores[node] = grown.beam_scores[child] = score_of(log_probs[child]);
        grown.parents[node] = grown.beam_rows[child] = 0;
        grown.depths[node] = 1;
        grown.beam_nodes[child] = static_cast<int32_t>(1 + j);
        grown.lineage[child] = static_cast<int32_t>(j);
      }
    }
  });
}

// pool tokens int32 [B,P], scores [B,P], parents int32 [B,P], depths int32 [B,P], beam scores [B,k], beam nodes int32
// [B,k], lineage int32 [B,l,k], tokens int32 [B,k,k], log_probs [B,k,k] -> what GrowRoot gives, with k*k entries more
// in the pool and l + 1 levels in the lineage.
MS_EAGLE_OP(GrowLevel) {
  return guard(extra, [&] {
    const Arguments args("GrowLevel", 19, count, data, ranks, shapes, types);
    const Index batch = args.dim(6, 0, "lineage"), levels = args.dim(6, 1, "lineage");
    const Index branch = args.dim(6, 2, "lineage"), made = branch * branch;
    const PoolIn pool(args, batch);
    const float* beam_scores = args.floats(4, "beam scores", {batch, branch});
    const int32_t* beam_nodes = args.ints(5, "beam nodes", {batch, branch});
    const int32_t* lineage = args.ints(6, "lineage", {batch, levels, branch});
    const int32_t* tokens = args.ints(7, "tokens", {batch, branch, branch});
    const float* log_probs = args.floats(8, "log_probs", {batch, branch, branch});
    const Index size = pool.size + made;
    const Grown grown(args, 9, batch, size, branch, levels + 1);
    check_range(args, "beam nodes", beam_nodes, batch * branch, pool.size);
    std::vector<int32_t> order(made);
    for (Index b = 0; b < batch; ++b) {
      const auto copy = [&](const auto* from, auto* to) {
        std::copy_n(from + b * pool.size, pool.size, to + b * size);
        return to + b * size + pool.size;
      };
      int32_t* new_tokens = copy(pool.tokens, grown.tokens);
      float* scores = copy(pool.scores, grown.scores);
      int32_t* parents = copy(pool.parents, grown.parents);
      int32_t* depths = copy(pool.depths, grown.depths);
      grown.broken[b] = any_nan(log_probs + b * made, made);
      for (Index i = 0; i < made; ++i) {
        const Index parent = b * branch + i / branch;
        new_tokens[i] = tokens[b * made + i];
        scores[i] = beam_scores[parent] + score_of(log_probs[b * made + i]);
        parents[i] = beam_nodes[parent];
        depths[i] = static_cast<int32_t>(levels + 1);
        order[i] = static_cast<int32_t>(i);
      }
      std::partial_sort(order.begin(), order.begin() + branch, order.end(), Better{scores});
      for (Index j = 0; j < branch; ++j) {
        const Index to = b * branch + j, row = order[j] / branch;
        grown.beam_tokens[to] = new_tokens[order[j]];
        grown.beam_scores[to] = scores[order[j]];
        grown.beam_nodes[to] = static_cast<int32_t>(pool.size + order[j]);
        grown.beam_rows[to] = static_cast<int32_t>(row);
        for (Index level = 0; level < levels; ++level)
          grown.lineage[(b * (levels + 1) + level) * branch + j] = lineage[(b * levels + level) * branch + row];
        grown.lineage[(b * (levels + 1) + levels) * branch + j] = static_cast<int32_t>(j);
      }
    }
  });
}

// pool tokens int32 [B,P], scores [B,P], parents int32 [B,P], depths int32 [B,P], log confidence [1], start int32 [B],
// active bool [B], trash int32 [1] -> tokens, parents, depths int32 [B,N], laid bool [B,N], valid bool [B,N], scores
// [B,N], ancestors int32 [B,D+1,N], then what TreeRows gives: the N best of the pool, the root among them, as rows.
MS_EAGLE_OP(LayTree) {
  return guard(extra, [&] {
    const Arguments args("LayTree", 19, count, data, ranks, shapes, types);
    const Index batch = args.dim(14, 0, "ancestors"), levels = args.dim(14, 1, "ancestors");
    const Index rows = args.dim(14, 2, "ancestors");
    const PoolIn pool(args, batch);
    const Index size = pool.size;
    const float least = args.floats(4, "log confidence", {1})[0];
    TreeBatch tree{batch, rows, levels};
    tree.start = args.ints(5, "start", {batch});
    const bool* active = args.bools(6, "active", {batch});
    tree.trash = args.ints(7, "trash", {1})[0];
    int32_t* tokens = args.ints(8, "tokens", {batch, rows});
    int32_t* parents = args.ints(9, "parents", {batch, rows});
    int32_t* depths = args.ints(10, "depths", {batch, rows});
    bool* laid = args.bools(11, "laid", {batch, rows});
    bool* valid = args.bools(12, "valid", {batch, rows});
    float* scores = args.floats(13, "scores", {batch, rows});
    int32_t* ancestors = args.ints(14, "ancestors", {batch, levels, rows});
    tree.positions = args.ints(15, "positions", {batch, rows});
    tree.slots = args.ints(16, "slots", {batch, rows});
    tree.visible = args.ints(17, "visible", {batch, rows, tree.room() + 2});
    tree.paths = args.ints(18, "paths", {batch, levels, rows});
    if (rows > size)
      args.fail("a tree of " + std::to_string(rows) + " rows; expected at most the pool's " + std::to_string(size));
    check_range(args, "start", tree.start, batch, INT32_MAX - rows - levels);
    check_range(args, "pool parents", pool.parents, batch * size, size);
    check_range(args, "pool depths", pool.depths, batch * size, levels);
    std::vector<int32_t> order(size), row_of(size);
    for (Index b = 0; b < batch; ++b) {
      const Index from = b * size, to = b * rows;
      for (Index i = 0; i < size; ++i) order[i] = static_cast<int32_t>(i);
      // In this order a parent precedes its child, so the first ones are closed under parent.
      std::partial_sort(order.begin(), order.begin() + rows, order.end(), Better{pool.scores + from});
      std::sort(order.begin(), order.begin() + rows);
      std::fill(row_of.begin(), row_of.end(), 0);
      Index kept = 0;
      for (Index i = 0; i < rows; ++i) {
        const Index node = from + order[i];
        if (!(pool.scores[node] >= least)) continue;
        row_of[order[i]] = static_cast<int32_t>(kept);
        const Index row = to + kept++;
        tokens[row] = pool.tokens[node];
        parents[row] = row_of[pool.parents[node]];
        depths[row] = pool.depths[node];
        scores[row] = pool.scores[node];
        laid[row] = true;
      }
      for (Index row = to + kept; row < to + rows; ++row) {
        tokens[row] = parents[row] = depths[row] = 0;
        scores[row] = 0.0f;
        laid[row] = false;
      }
      for (Index r = 0; r < rows; ++r) {
        valid[to + r] = active[b] && (r == 0 || (laid[to + r] && tree.start[b] > 0));
        int32_t row = static_cast<int32_t>(r);
        for (Index level = 0; level < levels; ++level) {
          ancestors[(b * levels + level) * rows + r] = row;
          row = parents[to + row];
        }
      }
    }
    tree.tokens = tokens;
    tree.depths = depths;
    tree.valid = valid;
    tree.ancestors = ancestors;
    place_tree(args, tree);
  });
}

// tokens, parents, depths int32 [B,N], valid bool [B,N], ancestors int32 [B,D+1,N], choices int32 [B,N], active bool [B]
// -> accepted int32 [B], path int32 [B,D+1], emitted int32 [B,D+1], count int32 [B].
MS_EAGLE_OP(AcceptRows) {
  return guard(extra, [&] {
    const Arguments args("AcceptRows", 11, count, data, ranks, shapes, types);
    const Index batch = args.dim(4, 0, "ancestors"), levels = args.dim(4, 1, "ancestors");
    const Index rows = args.dim(4, 2, "ancestors");
    const int32_t* tokens = args.ints(0, "tokens", {batch, rows});
    const int32_t* parents = args.ints(1, "parents", {batch, rows});
    const int32_t* depths = args.ints(2, "depths", {batch, rows});
    const bool* valid = args.bools(3, "valid", {batch, rows});
    const int32_t* ancestors = args.ints(4, "ancestors", {batch, levels, rows});
    const int32_t* choices = args.ints(5, "choices", {batch, rows});
    const bool* active = args.bools(6, "active", {batch});
    check_range(args, "parents", parents, batch * rows, rows);
    check_range(args, "depths", depths, batch * rows, levels);
    check_range(args, "ancestors", ancestors, batch * levels * rows, rows);
    int32_t* accepted = args.ints(7, "accepted", {batch});
    int32_t* path = args.ints(8, "path", {batch, levels});
    int32_t* emitted = args.ints(9, "emitted", {batch, levels});
    int32_t* emitted_count = args.ints(10, "count", {batch});
    std::fill(accepted, accepted + batch, 0);
    std::fill(path, path + batch * levels, 0);
    for (Index b = 0; b < batch; ++b) {
      const Index from = b * rows;
      const auto matches = [&](Index row) {
        return active[b] && (row == 0 || (valid[from + row] && tokens[from + row] == choices[from + parents[from + row]]));
      };
      for (Index row = 0; row < rows; ++row) {
        bool reached = true;
        for (Index level = 0; reached && level < levels; ++level)
          reached = matches(ancestors[(b * levels + level) * rows + row]);
        if (!reached) continue;
        path[b * levels + depths[from + row]] = static_cast<int32_t>(row);
        accepted[b] = std::max(accepted[b], depths[from + row]);
      }
      emitted_count[b] = active[b] ? accepted[b] + 1 : 0;
      for (Index depth = 0; depth < levels; ++depth)
        emitted[b * levels + depth] =
            depth < emitted_count[b] ? choices[from + path[b * levels + depth]] : 0;
    }
  });
}

// path int32 [B,D+1], count int32 [B], start int32 [B], trash int32 [1] -> from int32 [B,D+1], to int32 [B,D+1], the
// slots that a commit moves from and to.
MS_EAGLE_OP(PathSlots) {
  return guard(extra, [&] {
    const Arguments args("PathSlots", 6, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "path"), levels = args.dim(0, 1, "path");
    const int32_t* path = args.ints(0, "path", {batch, levels});
    const int32_t* used = args.ints(1, "count", {batch});
    const int32_t* start = args.ints(2, "start", {batch});
    const int32_t trash = args.ints(3, "trash", {1})[0];
    check_range(args, "path", path, batch * levels, Index{1} << 30);
    check_range(args, "start", start, batch, Index{1} << 30);
    check_range(args, "count", used, batch, levels + 1);
    int32_t* from = args.ints(4, "from", {batch, levels});
    int32_t* to = args.ints(5, "to", {batch, levels});
    for (Index i = 0; i < batch * levels; ++i) {
      const Index b = i / levels, depth = i % levels;
      from[i] = depth < used[b] ? start[b] + path[i] : trash;
      to[i] = depth < used[b] ? static_cast<int32_t>(start[b] + depth) : trash;
    }
  });
}

// count int32 [B], teacher's fault bool [B], drafter's fault bool [B], start int32 [B], emitted int32 [B,T] -> int32
// [B,2+T]: what the host reads. A drafter that has read nothing, where `start` is 0, is not at fault.
MS_EAGLE_OP(ReportRows) {
  return guard(extra, [&] {
    const Arguments args("ReportRows", 6, count, data, ranks, shapes, types);
    const Index batch = args.dim(4, 0, "emitted"), width = args.dim(4, 1, "emitted");
    const int32_t* used = args.ints(0, "count", {batch});
    const bool* teacher = args.bools(1, "teacher's fault", {batch});
    const bool* drafter = args.bools(2, "drafter's fault", {batch});
    const int32_t* start = args.ints(3, "start", {batch});
    const int32_t* emitted = args.ints(4, "emitted", {batch, width});
    int32_t* report = args.ints(5, "result", {batch, 2 + width});
    for (Index b = 0; b < batch; ++b) {
      int32_t* line = report + b * (2 + width);
      line[0] = used[b];
      line[1] = teacher[b] ? 1 : drafter[b] && start[b] > 0 ? 2 : 0;
      std::copy_n(emitted + b * width, width, line + 2);
    }
  });
}
