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

// What goes back to the places of bags: out[p] = weights[p] * grads[k] of the bag k that p is in, or
// 0 in none; grads [count, dim], out [places, dim]. Bags as above, less x and ids.
void spread_bags(const Bags& bags, const float* grads, size_t places, float* out);

// shares[k] = 1 / how many of a bag's ids are not `padding`, of 1 at the least.
void share_bags(const Bags& bags, int64_t padding, float* shares);

// Vectors of samples: vector i of sample b begins at x + i * apart + b * next.
struct Vectors {
  const float* x = nullptr;
  size_t count = 0, dim = 0, samples = 0;
  size_t apart = 0, next = 0;
};

// out [samples, pairs] = <v_i, v_j> of all pairs i > j, in order of i, then j.
void dots(const Vectors& vectors, float* out, int threads);

// Their gradients to the vectors, which lie as those do.
void dots_back(const Vectors& vectors, const float* grads, float* out, int threads);

// out [samples, dim] = the sum over all pairs of v_i * v_j, element by element; total [samples, dim]
// = the sum of all vectors.
void pair_products(const Vectors& vectors, float* out, float* total);

// Their gradients to the vectors, which lie as those do; grads [samples, dim].
void pair_products_back(const Vectors& vectors, const float* total, const float* grads, float* out);

}  // namespace shoal
