#include <tutti/kernels/copy.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tutti {

void copy_past_caches(void* destination, const void* source, std::size_t bytes) {
#if defined(__x86_64__)
  constexpr std::size_t kLine = 64;
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  const std::size_t to_line = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t begin = std::min(bytes, to_line);
  std::memcpy(to, from, begin);
  std::size_t at = begin;
  for (; at + kLine <= bytes; at += kLine) {
    for (std::size_t i = at; i < at + kLine; i += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
  }
  _mm_sfence();  // before anybody is told that it is there
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(destination, source, bytes);
#endif
}

std::size_t largest_cache_bytes() {
  static const std::size_t bytes = [] {
    const long largest = std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), ::sysconf(_SC_LEVEL2_CACHE_SIZE));
    return static_cast<std::size_t>(std::max(0L, largest));
  }();
  return bytes;
}

}  // namespace tutti
