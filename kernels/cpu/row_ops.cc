// Where the rows of a batch stand, where their keys and values go, and what they see.
//
// `visible` is described in attention.h: its form is int32 [B, N, 2 + X].

#include "rows.h"

#include "ops.h"

namespace ms_eagle {

void place_tree(const Arguments& args, const TreeBatch& tree) {
  const Index batch = tree.batch, levels = tree.levels, rows = tree.rows, room = tree.room();
  std::fill(tree.visible, tree.visible + batch * rows * (room + 2), 0);
  for (Index row = 0; row < batch * rows; ++row) {
    const Index b = row / rows, r = row % rows;
    const int32_t start = tree.start[b];
    const bool valid = tree.valid[row];
    const int32_t* above = tree.ancestors + b * levels * rows + r;
    tree.positions[row] = start + tree.depths[row];
    tree.slots[row] = valid ? static_cast<int32_t>(start + r) : tree.trash;
    for (Index level = 0; level < levels; ++level)
      tree.paths[(b * levels + level) * rows + r] = tree.tokens[b * rows + above[level * rows]];
    Index depth = 0;
    while (depth < levels && above[depth * rows] != 0) ++depth;
    if (depth == levels) args.fail("ancestors of row " + std::to_string(r) + " do not end at the root");
    int32_t* list = tree.visible + row * (room + 2);
    list[0] = valid ? start + 1 : 0;
    list[1] = valid ? static_cast<int32_t>(depth) : 1;
    if (!valid) list[2] = start;
    for (Index i = 0; valid && i < depth; ++i) list[2 + i] = start + above[(depth - 1 - i) * rows];
  }
}

}  // namespace ms_eagle

using namespace ms_eagle;

// mask bool [B,1,N,S], True = discard -> visible int32 [B,N,2+X].
MS_EAGLE_OP(VisibleRows) {
  return guard(extra, [&] {
    const Arguments args("VisibleRows", 2, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "mask"), rows = args.dim(0, 2, "mask"), slots = args.dim(0, 3, "mask");
    const Index room = args.dim(1, 2, "result") - 2;
    if (room < 0) args.fail("result has no room for prefix and count");
    const bool* mask = args.bools(0, "mask", {batch, 1, rows, slots});
    int32_t* lists = args.ints(1, "result", {batch, rows, room + 2});
    for (Index row = 0; row < batch * rows; ++row) {
      // Bytes of a bool tensor are 0 or 1; the C library searches them many at a time.
      const auto* discard = reinterpret_cast<const char*>(mask + row * slots);
      const auto next = [&](Index from, int value) {
        const void* at = std::memchr(discard + from, value, static_cast<size_t>(slots - from));
        return at ? static_cast<const char*>(at) - discard : slots;
      };
      int32_t* list = lists + row * (room + 2);
      const Index prefix = next(0, 1);
      Index found = 0;
      for (Index at = prefix; (at = next(at, 0)) < slots; ++at) {
        if (found == room)
          args.fail("row " + std::to_string(row) + " sees more than " + std::to_string(room) +
                    " slots beyond its first gap; make more room");
        list[2 + found++] = static_cast<int32_t>(at);
      }
      list[0] = static_cast<int32_t>(prefix);
      list[1] = static_cast<int32_t>(found);
      std::fill(list + 2 + found, list + 2 + room, 0);
    }
  });
}

// tokens int32 [B,N], depths int32 [B,N], valid bool [B,N], ancestors int32 [B,D+1,N], start int32 [B], trash int32 [1]
// -> positions int32 [B,N], slots int32 [B,N], visible int32 [B,N,2+D], paths int32 [B,D+1,N]: the rows of a tree after
// `start` committed tokens. A row sees the committed slots and its path; a padded one slot `start` alone.
MS_EAGLE_OP(TreeRows) {
  return guard(extra, [&] {
    const Arguments args("TreeRows", 10, count, data, ranks, shapes, types);
    const Index batch = args.dim(3, 0, "ancestors"), levels = args.dim(3, 1, "ancestors");
    const Index rows = args.dim(3, 2, "ancestors");
    TreeBatch tree{batch, rows, levels};
    tree.tokens = args.ints(0, "tokens", {batch, rows});
    tree.depths = args.ints(1, "depths", {batch, rows});
    tree.valid = args.bools(2, "valid", {batch, rows});
    tree.ancestors = args.ints(3, "ancestors", {batch, levels, rows});
    tree.start = args.ints(4, "start", {batch});
    tree.trash = args.ints(5, "trash", {1})[0];
    check_range(args, "depths", tree.depths, batch * rows, levels);
    check_range(args, "ancestors", tree.ancestors, batch * levels * rows, rows);
    check_range(args, "start", tree.start, batch, INT32_MAX - rows - levels);
    tree.positions = args.ints(6, "positions", {batch, rows});
    tree.slots = args.ints(7, "slots", {batch, rows});
    tree.visible = args.ints(8, "visible", {batch, rows, tree.room() + 2});
    tree.paths = args.ints(9, "paths", {batch, levels, rows});
    place_tree(args, tree);
  });
}

// start int32 [B], active bool [B], lineage int32 [B,l,k], trash int32 [1] -> positions int32 [B,k], slots int32 [B,k],
// visible int32 [B,k,2+l]: the rows of a drafter's level. A row sees the committed slots and its ancestor-or-self in
// each of the level blocks, which follow one another from slot `start` on.
MS_EAGLE_OP(LevelRows) {
  return guard(extra, [&] {
    const Arguments args("LevelRows", 7, count, data, ranks, shapes, types);
    const Index batch = args.dim(2, 0, "lineage"), levels = args.dim(2, 1, "lineage");
    const Index branch = args.dim(2, 2, "lineage");
    const int32_t* start = args.ints(0, "start", {batch});
    const bool* active = args.bools(1, "active", {batch});
    const int32_t* lineage = args.ints(2, "lineage", {batch, levels, branch});
    const int32_t trash = args.ints(3, "trash", {1})[0];
    check_range(args, "start", start, batch, INT32_MAX - levels * branch);
    check_range(args, "lineage", lineage, batch * levels * branch, branch);
    int32_t* positions = args.ints(4, "positions", {batch, branch});
    int32_t* slots = args.ints(5, "slots", {batch, branch});
    int32_t* lists = args.ints(6, "visible", {batch, branch, levels + 2});
    for (Index row = 0; row < batch * branch; ++row) {
      const Index b = row / branch, j = row % branch;
      positions[row] = static_cast<int32_t>(start[b] + levels - 1);
      slots[row] = active[b] ? static_cast<int32_t>(start[b] + (levels - 1) * branch + j) : trash;
      int32_t* list = lists + row * (levels + 2);
      list[0] = start[b];
      list[1] = static_cast<int32_t>(levels);
      for (Index level = 0; level < levels; ++level)
        list[2 + level] =
            static_cast<int32_t>(start[b] + level * branch + lineage[(b * levels + level) * branch + j]);
    }
  });
}

// tokens int32 [B,N], start int32 [B], count int32 [B], trash int32 [1] -> positions int32 [B,N], slots int32 [B,N],
// visible int32 [B,N,3]: the rows of a chunk. Row i stands at start+i and sees slots 0..start+i; a row from `count` on
// stands at `start`, goes to the trash slot and sees slot `start` alone.
MS_EAGLE_OP(ChunkRows) {
  return guard(extra, [&] {
    const Arguments args("ChunkRows", 7, count, data, ranks, shapes, types);
    const Index batch = args.dim(0, 0, "tokens"), rows = args.dim(0, 1, "tokens");
    args.ints(0, "tokens", {batch, rows});
    const int32_t* start = args.ints(1, "start", {batch});
    const int32_t* real = args.ints(2, "count", {batch});
    const int32_t trash = args.ints(3, "trash", {1})[0];
    check_range(args, "start", start, batch, INT32_MAX - rows);
    check_range(args, "count", real, batch, rows + 1);
    int32_t* positions = args.ints(4, "positions", {batch, rows});
    int32_t* slots = args.ints(5, "slots", {batch, rows});
    int32_t* lists = args.ints(6, "visible", {batch, rows, 3});
    for (Index row = 0; row < batch * rows; ++row) {
      const Index b = row / rows, i = row % rows;
      const bool valid = i < real[b];
      const auto place = static_cast<int32_t>(start[b] + i);
      positions[row] = valid ? place : start[b];
      slots[row] = valid ? place : trash;
      int32_t* list = lists + 3 * row;
      list[0] = valid ? place + 1 : 0;
      list[1] = valid ? 0 : 1;
      list[2] = valid ? 0 : start[b];
    }
  });
}
