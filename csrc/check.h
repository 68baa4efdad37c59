// What the parts of the sanitizers' program share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "random.h"

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);        \
      std::abort();                                                               \
    }                                                                             \
  } while (0)

namespace shoal {

inline uint64_t random_word() {
  static uint64_t state = 1;
  return mix(state += kIncrement);
}

inline std::vector<float> random_floats(size_t n) {
  std::vector<float> made(n);
  for (float& x : made) x = static_cast<float>(random_word() % 2001) / 1000.0f - 1.0f;
  return made;
}

void check_filter();   // check_filter.cpp
void check_lanes();    // check_lanes.cpp

}  // namespace shoal
