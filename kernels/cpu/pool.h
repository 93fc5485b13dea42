// A small thread pool of the process's own: every engine shares it.
//
// Work is a number of items that any thread may take; no result depends on which thread takes which.
// Waiting is passive but for a short spin that bridges the gap between two phases of one op: workers
// that spin longer fight MindSpore's own threads for the cores.
#pragma once

#include <cstdint>

namespace ms_eagle {

// Call `item(context, i)` for every i in [0, count), on the pool's threads and the caller's.
// When another thread is using the pool the caller does all of it by itself.
void run_items(int64_t count, void (*item)(void*, int64_t), void* context);

// `item(i)` must not throw: it may run on a thread that nobody watches.
template <class Item>
void parallel(int64_t count, const Item& item) {
  const auto call = [](void* context, int64_t i) { (*static_cast<const Item*>(context))(i); };
  run_items(count, call, const_cast<Item*>(&item));
}

// Threads that share the work, the caller included; takes effect at the next call.
void set_threads(int count);
int threads();

}  // namespace ms_eagle
