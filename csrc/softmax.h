// The two steps of a softmax over a catalogue by themselves: few positions against many rows, and
// exponentials. float32; results do not hang on the number of threads.
#pragma once

#include <cstddef>

namespace shoal {

// out[p, r] = <hidden[p], rows[r]> + bias[r]; hidden [n, dim], rows [k, dim], bias [k] or null.
void logits(const float* hidden, size_t n, const float* rows, size_t k, size_t dim,
            const float* bias, float* out, int threads);

// Of every row of x [n, k]: its highest value, then x = exp(x - highest) in place, and their sum.
// -inf becomes 0. Within 2 units in the last place of the right exponential.
void exponentials(float* x, size_t n, size_t k, float* highest, float* totals, int threads);

}  // namespace shoal
