// Sums of rows. Results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

// Bags: out[k] = the sum over places p from starts[k] to starts[k + 1] - 1 of
// weights[p] * x[ids[p]]; x [n, dim], out [count, dim]. No weights: 1 each; no ids: p itself.
struct Bags {
  const float* x = nullptr;
  const int64_t* starts = nullptr;
  const int64_t* ids = nullptr;
  const float* weights = nullptr;
  size_t count = 0, dim = 0;
};
void sum_bags(const Bags& bags, float* out, int threads);

}  // namespace shoal
