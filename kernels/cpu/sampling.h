// Choosing one token of a row by seeded sampling: ms_eagle/sampling/choice.py and fixed_point.py in one pass over the row.
//
// Floats end at a score and a weight for each token, formed by the same operations in the same order as there;
// everything after them is exact, so the choice is bit for bit the one made there.
#pragma once

#include <cstdint>
#include <vector>

#include "panel.h"

namespace ms_eagle {

constexpr Index kBins = 1 << 14;    // of scores by their high bits
constexpr Index kWithin = 1 << 13;  // scores in one bin
constexpr Index kEnds = 8;          // tokens that may end a sequence
constexpr Index kParams = 7 + kEnds;

// One request's options, see ms_eagle/sampling/options.py.
struct Sampling {
  float temperature, top_k, top_p, min_p_nats, penalty, keep_crossing, min_length, ends[kEnds];
};
static_assert(sizeof(Sampling) == kParams * sizeof(float), "a row of params");

// Working space of one thread.
struct RowSpace {
  explicit RowSpace(Index vocabulary)
      : logits(vocabulary), scores(vocabulary), weights(kBins), counts(kBins), within(kWithin) {}

  std::vector<float> logits;
  std::vector<int32_t> scores;
  std::vector<int64_t> weights;  // sums by bin
  std::vector<int32_t> counts;   // tokens by bin
  std::vector<int32_t> within;   // tokens by score, within one bin
};

// A token of logits[vocabulary] to follow `length` others; seen[vocabulary] and the tokens own[count] are penalised,
// `uniform` is in [0, 1).
//   decay: 2^40 exp(-bin), [kBins]
//   broken: set when a logit is NaN or +inf, or none is above -inf; the choice is then some token in range
int32_t choose_row(const float* logits, Index vocabulary, const bool* seen, const int32_t* own, Index count,
                   Index own_stride, int32_t length, const Sampling& sampling, float uniform, const float* decay,
                   RowSpace& space, bool* broken);

}  // namespace ms_eagle
