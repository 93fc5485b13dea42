#include "arguments.h"

#include <new>

namespace ms_eagle {

namespace {

thread_local std::string message;

// No tensor of a model comes near; products of two sizes then stay within 64 bits.
constexpr Index kLargest = Index{1} << 40;

std::string show(const Index* shape, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

Arguments::Arguments(const char* op, int expected, int count, void** data, int* ranks, Index** shapes,
                     const char** types)
    : op_(op), count_(count), data_(data), ranks_(ranks), shapes_(shapes), types_(types) {
  if (count != expected)
    fail("got " + std::to_string(count) + " tensors; expected " + std::to_string(expected));
  if (!data || !ranks || !shapes || !types) fail("got no tensors at all");
  for (int at = 0; at < count; ++at) {
    const std::string name = "tensor " + std::to_string(at);
    if (ranks[at] < 1 || ranks[at] > 8 || !shapes[at] || !types[at]) fail(name + " has no usable shape or dtype");
    Index size = 1;
    for (int i = 0; i < ranks[at]; ++i) {
      const Index length = shapes[at][i];
      if (length < 1 || length > kLargest / size)
        fail(name + " has the impossible shape " + show(shapes[at], ranks[at]));
      size *= length;
    }
    if (!data[at]) fail(name + " has no memory");
  }
}

Index Arguments::dim(int at, int axis, const char* name) const {
  if (axis >= ranks_[at])
    fail(std::string(name) + " has shape " + show(shapes_[at], ranks_[at]) + "; expected at least " +
         std::to_string(axis + 1) + " dimensions");
  return shapes_[at][axis];
}

void* Arguments::tensor(int at, const char* name, const char* type, std::initializer_list<Index> shape) const {
  if (std::strcmp(types_[at], type) != 0)
    fail(std::string(name) + " has dtype " + types_[at] + "; expected " + type);
  bool same = ranks_[at] == static_cast<int>(shape.size());
  for (int i = 0; same && i < ranks_[at]; ++i) same = shapes_[at][i] == shape.begin()[i];
  if (!same)
    fail(std::string(name) + " has shape " + show(shapes_[at], ranks_[at]) + "; expected " +
         show(shape.begin(), static_cast<int>(shape.size())));
  return data_[at];
}

float* Arguments::floats(int at, const char* name, std::initializer_list<Index> shape) const {
  return static_cast<float*>(tensor(at, name, "float32", shape));
}

int32_t* Arguments::ints(int at, const char* name, std::initializer_list<Index> shape) const {
  return static_cast<int32_t*>(tensor(at, name, "int32", shape));
}

bool* Arguments::bools(int at, const char* name, std::initializer_list<Index> shape) const {
  return static_cast<bool*>(tensor(at, name, "bool", shape));
}

uint8_t* Arguments::bytes(int at, const char* name, std::initializer_list<Index> shape) const {
  return static_cast<uint8_t*>(tensor(at, name, "uint8", shape));
}

float* Arguments::optional_floats(int at, const char* name, std::initializer_list<Index> shape) const {
  const bool absent = ranks_[at] == 1 && shapes_[at][0] == 1 && !(shape.size() == 1 && *shape.begin() == 1);
  return absent ? nullptr : floats(at, name, shape);
}

void Arguments::fail(const std::string& what) const { throw BadCall(std::string(op_) + ": " + what); }

int guarded(void* extra, void (*body)(void*), void* context) {
  try {
    body(context);
    return 0;
  } catch (const std::bad_alloc&) {
    message = "out of memory for the working space of an op";
  } catch (const std::exception& error) {
    message = error.what();
  }
  if (extra) throw std::runtime_error(message);
  return 1;
}

const char* last_error() { return message.c_str(); }

}  // namespace ms_eagle
