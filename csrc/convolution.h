// A layer of a graph convolution with weights, around its products of matrices: each step in one pass
// over memory. Of vectors x and what the graph makes of them, s:
//
//   [s + x, s * x]  ->  (product)  ->  y = leaky_relu(. + bias), dropped  ->  y / its length
//
// Rows are nodes; what is made for all layers lies side by side, so that rows have a stride there.
#pragma once

#include <cstddef>

#include "dropout.h"

namespace shoal {

struct Layer {
  size_t nodes = 0, width = 0;
  size_t stride = 0;    // from one row to the next, of vectors of length 1 and of their gradients
  float slope = 0;      // of what is below 0
  float shortest = 0;   // vectors of less are not stretched any further
};

// out [nodes, 2 * dim] = [s + x, s * x].
void join_sides(const float* s, const float* x, size_t nodes, size_t dim, float* out, int threads);

// Gradients of that [nodes, 2 * dim] to both: of_s, of_x [nodes, dim].
void part_sides(const float* grads, const float* s, const float* x, size_t nodes, size_t dim,
                float* of_s, float* of_x, int threads);

// y [nodes, width] = leaky_relu(y + bias), in place and dropped; unit [nodes, width] of stride:
// y / its length; lengths [nodes].
void finish_layer(const Layer& layer, float* y, const float* bias, const Dropout* drop, float* unit,
                  float* lengths, int threads);

// back [nodes, width]: the gradient to what finish_layer was given, from those to the unit vectors
// (of stride) and, where there are any, to y; sums [width] of its columns. dropped: what is 0 was.
struct Finished {
  const float* y = nullptr;
  const float* unit = nullptr;     // of stride
  const float* lengths = nullptr;
  const float* grads = nullptr;    // to the unit vectors, of stride
  const float* of_y = nullptr;     // [nodes, width] or null
  float scale = 1;                 // what dropout leaves is times this
  bool dropped = false;
};
void finish_layer_back(const Layer& layer, const Finished& of, float* back, float* sums,
                       int threads);

}  // namespace shoal
