// What exported functions check before they touch memory. Arrays come as addresses; how long
// they are is in the arguments beside them, and what they hold must lie within one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace shoal {

inline void need(bool sound, const char* what) {
  if (!sound) throw std::invalid_argument(what);
}

// a * b, where that can be counted.
inline size_t times(size_t a, size_t b) {
  size_t product;
  need(!__builtin_mul_overflow(a, b, &product), "sizes whose product no memory holds");
  return product;
}

// An array of n values of `size` bytes: it is somewhere, unless it is empty.
inline void need_array(uintptr_t address, size_t n, size_t size, const char* what) {
  need(address != 0 || n == 0, what);
  need(times(n, size) <= static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()), what);
}

// Whether 0 <= values[i] < limit for all; one comparison each, because a negative one is large.
template <typename T>
bool all_below(const T* values, size_t n, uint64_t limit) {
  uint64_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto value = static_cast<uint64_t>(values[i]);
    largest = value > largest ? value : largest;
  }
  return n == 0 || largest < limit;
}

// Whether offsets [n + 1] ascend from 0 or more to `limit` or less.
inline bool ascend(const int64_t* offsets, size_t n, uint64_t limit) {
  bool sound = offsets[0] >= 0 && static_cast<uint64_t>(offsets[n]) <= limit;
  for (size_t i = 0; i < n; ++i) sound &= offsets[i] <= offsets[i + 1];
  return sound;
}

}  // namespace shoal
