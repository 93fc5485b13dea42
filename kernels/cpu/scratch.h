// Working space of one op, kept by its thread from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ms_eagle {

// One op's working space; a thread runs one op at a time. The memory grows to the largest op's need and stays.
class Scratch {
 public:
  // Room for `floats` floats in all, over all calls of `take`, which may ask for at most `kParts` arrays.
  explicit Scratch(int64_t floats) {
    buffer().reserve_for(static_cast<size_t>(floats) + kParts * kAlign);
    next_ = buffer().data();
  }

  float* take(int64_t floats) {
    float* here = next_;
    next_ += (floats + kAlign - 1) / kAlign * kAlign;
    return here;
  }

 private:
  static constexpr int64_t kAlign = 16, kParts = 16;

  struct Buffer {
    std::vector<float> memory;
    void reserve_for(size_t floats) {
      if (memory.size() < floats) memory.resize(floats);
    }
    float* data() {
      const auto at = reinterpret_cast<uintptr_t>(memory.data());
      return memory.data() + (64 - at % 64) % 64 / sizeof(float);
    }
  };

  static Buffer& buffer() {
    thread_local Buffer mine;
    return mine;
  }

  float* next_;
};

}  // namespace ms_eagle
