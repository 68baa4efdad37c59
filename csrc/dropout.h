// Masks of dropout, pure functions of (key, position): neither threads nor instruction sets change
// them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

// out[i] = 0 with probability p, otherwise 1 / (1 - p); 0 < p < 1. After 2^32 values they repeat.
void dropout_mask(size_t n, uint64_t key, double p, float* out, int threads);

}  // namespace shoal
