// Distinct codes and sums of rows, for exchanges between processes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace shoal {

// The position of the first id outside 0 .. rows-1, or -1.
int64_t first_outside_rows(const int64_t* ids, size_t n, int64_t rows);

// ids -> codes grouped by owner; the padding id (-1: none) becomes `rows`.
void codes_of(const int64_t* ids, size_t n, int64_t rows, int64_t padding, int64_t factor,
              int64_t* out);

// Distinct codes of 0 .. limit-1, ascending, and the place of each among them; how many there are.
size_t distinct_codes(const int64_t* codes, size_t n, int64_t limit, int64_t* unique,
                      int64_t* inverse);

// total[places[i]] += grads[i] in order of i, or the gradient of its bag times its weight where
// there are bags; not `begun`: total is written, not read.
void add_rows(float* total, size_t rows, size_t dim, const int64_t* places, const float* grads,
              size_t n, bool begun, const IdBags& bags, int threads);

}  // namespace shoal
