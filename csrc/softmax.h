// Exponentials of a softmax by themselves. float32; results do not depend on the number of threads.
#pragma once

#include <cstddef>

namespace shoal {

// Of every row of x [n, k]: its highest value, then x = exp(x - highest) in place, and their sum.
// -inf becomes 0. Within 2 units in the last place of the right exponential.
void exponentials(float* x, size_t n, size_t k, float* highest, float* totals, int threads);

}  // namespace shoal
