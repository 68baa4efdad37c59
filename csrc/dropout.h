// Dropout whose mask is a pure function of (key, position): nothing needs to be kept for backward,
// and neither threads nor instruction sets change it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

// out[i] = 0 with probability p, otherwise x[i] / (1 - p); 0 < p < 1. out may be x. Of more than
// 2^32 values the masks repeat.
void dropout(const float* x, size_t n, uint64_t key, double p, float* out, int threads);

}  // namespace shoal
