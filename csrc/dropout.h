// Masks of dropout, pure functions of (key, position): neither threads nor instruction sets change
// them, nor does how many of the positions are asked for at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

// Position i is 0 with probability p, otherwise 1 / (1 - p); 0 < p < 1. They repeat after 2^32.
struct Dropout {
  uint64_t key = 0;
  double p = 0;
  int threads = 1;
};

// out[i] is position first + i.
void dropout_mask(const Dropout& how, uint64_t first, size_t n, float* out);

// out[r, c] is position (first + rows[r]) * stride + c, c below width.
void dropout_rows(const Dropout& how, uint64_t first, const int64_t* rows, size_t count,
                  size_t width, size_t stride, float* out);

}  // namespace shoal
