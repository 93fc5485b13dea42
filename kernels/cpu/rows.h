// The rows of a draft tree as a batch of the teacher.
#pragma once

#include "arguments.h"

namespace ms_eagle {

struct TreeBatch {
  Index batch, rows, levels;  // levels: depths 0 to the deepest
  int32_t trash = 0;
  const int32_t* start = nullptr;      // [batch], committed tokens
  const int32_t* tokens = nullptr;     // [batch, rows]
  const int32_t* depths = nullptr;     // [batch, rows]
  const bool* valid = nullptr;         // [batch, rows]
  const int32_t* ancestors = nullptr;  // [batch, levels, rows], the row itself first
  int32_t* positions = nullptr;        // [batch, rows]
  int32_t* slots = nullptr;            // [batch, rows]
  int32_t* visible = nullptr;          // [batch, rows, 2 + room()]
  int32_t* paths = nullptr;            // [batch, levels, rows], tokens of the ancestors

  Index room() const { return levels > 2 ? levels - 1 : 1; }
};

// Fill positions, slots, visible and paths; depths, ancestors and start have been checked against their ranges.
void place_tree(const Arguments& args, const TreeBatch& tree);

}  // namespace ms_eagle
