// Copies of what is too large to be found in a cache again.
#pragma once

#include <cstddef>

namespace tutti {

// As memcpy, but past the caches: they keep what they hold, and nothing is read only to be overwritten.
void copy_past_caches(void* destination, const void* source, std::size_t bytes);

// Of the largest cache of this machine; 0 where it does not say.
std::size_t largest_cache_bytes();

}  // namespace tutti
