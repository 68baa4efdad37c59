// Many small products of matrices (attention), for which torch makes one call each.
#pragma once

#include <cstddef>

namespace shoal {

// out[i] = a[i] @ b[i] for i < count; a [count, m, k], b [count, k, n], out [count, m, n].
void products(const float* a, const float* b, float* out, size_t count, size_t m, size_t k,
              size_t n);

}  // namespace shoal
