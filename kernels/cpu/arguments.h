// What an op is called with, checked before anything is touched; errors carry a sentence.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace ms_eagle {

using Index = int64_t;

// A call that an op refuses.
struct BadCall : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The inputs and outputs of one call, in the form MindSpore hands them to an ahead-of-time op.
class Arguments {
 public:
  // Throws unless there are exactly `expected` tensors, each with a shape and memory behind it.
  Arguments(const char* op, int expected, int count, void** data, int* ranks, Index** shapes, const char** types);

  // Size of one dimension; throws when the tensor does not have it.
  Index dim(int at, int axis, const char* name) const;
  int rank(int at) const { return ranks_[at]; }

  // The memory of tensor `at` after comparing its dtype and its shape with what is expected.
  float* floats(int at, const char* name, std::initializer_list<Index> shape) const;
  int32_t* ints(int at, const char* name, std::initializer_list<Index> shape) const;
  bool* bools(int at, const char* name, std::initializer_list<Index> shape) const;
  uint8_t* bytes(int at, const char* name, std::initializer_list<Index> shape) const;

  // Whether tensor `at` has this dtype, such as "uint8".
  bool holds(int at, const char* type) const { return std::strcmp(types_[at], type) == 0; }

  // Like `floats`, but a tensor of one single zero-dimensional-like entry, shape [1], stands for "absent".
  float* optional_floats(int at, const char* name, std::initializer_list<Index> shape) const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void* tensor(int at, const char* name, const char* type, std::initializer_list<Index> shape) const;

  const char* op_;
  int count_;
  void** data_;
  int* ranks_;
  Index** shapes_;
  const char** types_;
};

// Run `body` and turn what it throws into the op's return value. `extra` is what MindSpore passes: under
// MindSpore an exception reaches the user with its text, from ctypes the text waits in `last_error`.
int guarded(void* extra, void (*body)(void*), void* context);

template <class Body>
int guard(void* extra, Body&& body) {
  return guarded(extra, [](void* context) { (*static_cast<Body*>(context))(); }, &body);
}

const char* last_error();

}  // namespace ms_eagle
