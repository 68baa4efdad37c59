// Steps of layers that torch makes in several passes over memory, each in one. Sums are taken in
// blocks of rows that do not depend on the number of threads: nor do results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dropout.h"

namespace shoal {

// x [rows, width] = relu(x + bias), in place; with `drop` times the mask of positions first,
// first + 1, ...
void activate(float* x, const float* bias, size_t rows, size_t width, const Dropout* drop,
              uint64_t first, int threads);

// back [rows, width] = grad where made is above 0, else 0; sums [width] of its columns.
void activate_back(const float* grad, const float* made, size_t rows, size_t width, float* back,
                   float* sums, int threads);

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
