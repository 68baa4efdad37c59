// Features of a sample that look at each other: see features_attend in shoal/models/nn/columns.py.
// All that a few samples make stays in the first cache and is made again on the way back.
#pragma once

#include <cstddef>

#include "layers.h"

namespace shoal {

// Of every feature x_i of a sample weight makes query, key, value and same, `heads` of each, and it
// becomes relu(same_i + sum over j of softmax over j of <query_i, key_j> / sqrt(width) * value_j).
struct Attend {
  Vectors x;
  const float* weight = nullptr;  // [4 * heads * width, x.dim]
  size_t heads = 0, width = 0;    // width: of a head
};

// out [samples, count, heads * width]
void attend(const Attend& of, float* out, int threads);

// Gradients to x, which lie as x does, and to the weight; grads as out above. Sums are taken over
// parts of the samples that do not depend on the number of threads.
void attend_back(const Attend& of, const float* grads, float* of_x, float* of_weight, int threads);

// The inner loops, once per instruction set.
struct AttendKernels {
  size_t side;   // samples at a time
  size_t lanes;  // of a sum of gradients to a weight
  // Floats that they work on.
  size_t (*room)(const Attend&);
  // Samples first ... first + n - 1, at most `side`; turned: the weight
  // [x.dim, 4 * heads * width].
  void (*forward)(const Attend&, const float* turned, size_t first, size_t n, float* work,
                  float* out);
  // Adds to sums [4 * heads * width, x.dim, lanes].
  void (*back)(const Attend&, const float* turned, size_t first, size_t n, const float* grads,
               float* work, float* of_x, float* sums);
};

const AttendKernels& attend_kernels();

}  // namespace shoal
