// Large pages for weights: streaming half a gigabyte through 4 KiB pages spends a tenth of its time on
// translating addresses.

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif
#endif

// Ask the system to hold this memory in pages of 2 MiB now. Advice: where it is refused nothing changes.
extern "C" __attribute__((visibility("default"))) void ms_eagle_settle(void* memory, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  // Page by page, borders included: one that cannot be had must not keep the others small.
  for (uintptr_t page = begin / kPage * kPage; page < begin + static_cast<uintptr_t>(bytes); page += kPage)
    madvise(reinterpret_cast<void*>(page), kPage, MADV_COLLAPSE);
#else
  (void)memory;
  (void)bytes;
#endif
}
