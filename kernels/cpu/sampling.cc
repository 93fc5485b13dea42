#include "sampling.h"

#include <algorithm>
#include <limits>

namespace ms_eagle {

namespace {

constexpr int kScoreBits = 22, kUnitBits = 24, kWithinBits = 13;
constexpr int32_t kMostScore = static_cast<int32_t>(kBins * kWithin - 8);  // the largest float32 below 2^27
constexpr float kBinNats = 1.0f / (1 << (kScoreBits - kWithinBits));
constexpr Index kLanes = 16;  // results of the searches do not depend on it

float penalised(float logit, float penalty) {
  return (logit > 0.0f ? logit : 0.0f) / penalty + (logit < 0.0f ? logit : 0.0f) * penalty;
}

// The whole part of total * units / 2^24; total below 2^62, units in 0..2^24.
int64_t times_fraction(int64_t total, int64_t units) {
  const int64_t high = total >> kUnitBits, low = total - (high << kUnitBits);
  return high * units + (low * units >> kUnitBits);
}

// The lowest index of the largest value; NaN loses against everything.
Index best_of(const float* x, Index count) {
  float top[kLanes];
  std::fill(top, top + kLanes, -std::numeric_limits<float>::infinity());
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (Index j = 0; j < kLanes; ++j) top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
  float best = *std::max_element(top, top + kLanes);
  for (; i < count; ++i) best = x[i] > best ? x[i] : best;
  const float* found = std::find(x, x + count, best);
  return found == x + count ? 0 : found - x;
}

// The scores of a row, summed up by bins; prefixes of it, best tokens first.
class Scored {
 public:
  // Where a prefix ends: at the `rank`-th token, by index, of a score; and what it weighs.
  struct Prefix {
    int32_t score;
    int64_t rank, weight;
  };

  Scored(const float* logits, Index vocabulary, float best, float temperature, const float* decay, RowSpace& space,
         bool count_tokens)
      : scores_(space.scores.data()), vocabulary_(vocabulary), decay_(decay), space_(space) {
    const float unit = temperature * (1.0f / (1 << kScoreBits));
    for (Index i = 0; i < vocabulary; ++i) {
      const float steps = (best - logits[i]) / unit, most = static_cast<float>(kMostScore);
      const float bounded = steps < most ? steps : most;  // a NaN becomes the worst score
      scores_[i] = static_cast<int32_t>(bounded > 0.0f ? bounded : 0.0f);
    }
    std::fill(space.weights.begin(), space.weights.end(), 0);
    for (Index i = 0; i < vocabulary; ++i) {
      const int32_t score = scores_[i];
      space.weights[score >> kWithinBits] += weight_of(score);
    }
    if (!count_tokens) return;
    std::fill(space.counts.begin(), space.counts.end(), 0);
    for (Index i = 0; i < vocabulary; ++i) ++space.counts[scores_[i] >> kWithinBits];
  }

  int64_t total() const { return sum_before(kBins); }

  int64_t weight_of(int32_t score) const {
    const float step = (1.0f + 0.5f * kBinNats) -
                       static_cast<float>(score & (kWithin - 1)) * (1.0f / (1 << kScoreBits));
    return static_cast<int64_t>(decay_[score >> kWithinBits] * step);
  }

  // Weight of the best `count` tokens, ties by index; count in 1..vocabulary.
  int64_t weight_of_best(int64_t count) {
    Index bin = 0;
    int64_t before = 0;
    while (before + space_.counts[bin] < count) before += space_.counts[bin++];
    count_within(bin);
    int64_t weight = sum_before(bin);
    for (Index low = 0;; ++low) {
      const int64_t here = std::min<int64_t>(space_.within[low], count - before);
      weight += here * weight_of(score_at(bin, low));
      before += here;
      if (before == count) return weight;
    }
  }

  // Weight of all tokens whose score is at most `limit`.
  int64_t weight_within(int32_t limit) {
    const Index bin = limit >> kWithinBits;
    count_within(bin);
    int64_t weight = sum_before(bin);
    for (Index low = 0; low <= (limit & (kWithin - 1)); ++low)
      weight += space_.within[low] * weight_of(score_at(bin, low));
    return weight;
  }

  // The shortest prefix that weighs `target` at least; target in 1..total().
  Prefix reach(int64_t target) {
    Index bin = 0;
    int64_t before = 0;
    while (bin + 1 < kBins && before + space_.weights[bin] < target) before += space_.weights[bin++];
    count_within(bin);
    for (Index low = 0; low < kWithin; ++low) {
      const int64_t each = weight_of(score_at(bin, low)), all = space_.within[low] * each;
      if (space_.within[low] > 0 && before + all >= target) {
        const int64_t rank = (target - before + each - 1) / each;
        return {score_at(bin, low), rank, before + rank * each};
      }
      before += all;
    }
    return {0, 1, before};  // no weight at all: the row is broken
  }

  // Index of the `rank`-th token, from 1, of a score; some index if there are fewer.
  int32_t index_of(int32_t score, int64_t rank) const {
    for (Index i = 0; i < vocabulary_; ++i)
      if (scores_[i] == score && --rank <= 0) return static_cast<int32_t>(i);
    return static_cast<int32_t>(vocabulary_ - 1);
  }

 private:
  static int32_t score_at(Index bin, Index low) { return static_cast<int32_t>(bin * kWithin + low); }

  int64_t sum_before(Index bin) const {
    int64_t sum = 0;
    for (Index i = 0; i < bin; ++i) sum += space_.weights[i];
    return sum;
  }

  void count_within(Index bin) {
    if (bin == counted_) return;
    counted_ = bin;
    std::fill(space_.within.begin(), space_.within.end(), 0);
    const int32_t first = score_at(bin, 0);
    Index i = 0;
    for (; i + kLanes <= vocabulary_; i += kLanes) {
      int32_t hits = 0;
      for (Index j = 0; j < kLanes; ++j) hits += static_cast<uint32_t>(scores_[i + j] - first) < kWithin;
      for (Index j = 0; hits > 0 && j < kLanes; ++j) count_one(scores_[i + j] - first);
    }
    for (; i < vocabulary_; ++i) count_one(scores_[i] - first);
  }

  void count_one(int32_t low) {
    if (static_cast<uint32_t>(low) < kWithin) ++space_.within[low];
  }

  int32_t* scores_;
  Index vocabulary_;
  const float* decay_;
  RowSpace& space_;
  Index counted_ = -1;
};

// A number as an integer within bounds; NaN gives the lower one.
int64_t bounded(float value, int64_t low, int64_t high) {
  if (!(value > static_cast<float>(low))) return low;
  return value < static_cast<float>(high) ? static_cast<int64_t>(value) : high;
}

}  // namespace

int32_t choose_row(const float* logits, Index vocabulary, const bool* seen, const int32_t* own, Index count,
                   Index own_stride, int32_t length, const Sampling& sampling, float uniform, const float* decay,
                   RowSpace& space, bool* broken) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float* given = logits;
  int32_t bad = 0, alive = 0;
  for (Index i = 0; i < vocabulary; ++i) {
    bad |= !(logits[i] <= kLargest);
    alive |= logits[i] >= -kLargest;
  }
  if (sampling.penalty != 1.0f) {
    for (Index i = 0; i < vocabulary; ++i)
      space.logits[i] = seen[i] ? penalised(logits[i], sampling.penalty) : logits[i];
    for (Index i = 0; i < count; ++i) {
      const Index token = std::clamp<Index>(own[i * own_stride], 0, vocabulary - 1);
      space.logits[token] = penalised(logits[token], sampling.penalty);
    }
    logits = space.logits.data();
  }
  if (static_cast<float>(length) < sampling.min_length) {
    if (logits != space.logits.data()) std::copy(logits, logits + vocabulary, space.logits.begin());
    for (const float end : sampling.ends)
      space.logits[std::clamp<Index>(static_cast<Index>(end), 0, vocabulary - 1)] =
          -std::numeric_limits<float>::infinity();
    logits = space.logits.data();
    alive = 0;  // something else than an end must be left
    for (Index i = 0; i < vocabulary && !alive; ++i)
      alive = given[i] >= -kLargest && std::count(std::begin(sampling.ends), std::end(sampling.ends), static_cast<float>(i)) == 0;
  }
  *broken = bad || !alive;
  const Index greedy = best_of(logits, vocabulary);
  if (!(sampling.temperature > 0.0f)) return static_cast<int32_t>(greedy);
  const int64_t top_k = bounded(sampling.top_k, 1, vocabulary);
  const int64_t one = int64_t{1} << kUnitBits, top_p = bounded(sampling.top_p * static_cast<float>(one), 1, one);
  const auto nats = static_cast<int32_t>(
      bounded(sampling.min_p_nats * static_cast<float>(1 << kScoreBits), 0, kMostScore));
  Scored scored(logits, vocabulary, logits[greedy], sampling.temperature, decay, space, top_k < vocabulary);
  // Every filter keeps a best-first prefix, so together they keep the lightest of their prefixes.
  int64_t mass = top_k < vocabulary ? scored.weight_of_best(top_k) : scored.total();
  if (top_p < one) {
    const auto nucleus = scored.reach(std::max<int64_t>(1, times_fraction(mass, top_p)));
    const int64_t crossing = scored.weight_of(nucleus.score);
    mass = nucleus.weight;
    if (sampling.keep_crossing == 0.0f && mass > crossing) mass -= crossing;  // the best token stays
  }
  if (nats < kMostScore) mass = std::min(mass, scored.weight_within(nats));
  const int64_t draw = bounded(uniform * static_cast<float>(one), 0, one - 1);
  const auto end = scored.reach(times_fraction(mass, draw) + 1);
  return scored.index_of(end.score, end.rank);
}

}  // namespace ms_eagle
