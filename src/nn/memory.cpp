#include <tutti/nn/memory.hpp>

#include <malloc.h>

#include <cstdlib>
#include <string_view>

namespace tutti {
namespace {

bool try_to_keep() {
  const char* wish = std::getenv("TUTTI_KEEP_MEMORY");
  if (wish != nullptr && std::string_view(wish) == "0") return false;
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (std::getenv(name) != nullptr) return false;
  }
  constexpr int kNever = 1 << 30;
  // As large as the heap of a thread: one that is empty is given back unless so much may lie idle.
  constexpr int kHeap = 64 << 20;
  return mallopt(M_MMAP_THRESHOLD, kNever) == 1 && mallopt(M_TRIM_THRESHOLD, kNever) == 1 &&
         mallopt(M_TOP_PAD, kHeap) == 1;
}

}  // namespace

bool keep_freed_memory() {
  static const bool is_kept = try_to_keep();
  return is_kept;
}

}  // namespace tutti
