// A multi-layer perceptron, forward and back, a few samples at a time: what they make stays in the
// cache, and relu, bias and dropout cost no passes over memory. See MLP in shoal/models/nn/mlp.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dropout.h"

namespace shoal {

// relu(x * mask @ weight.T + bias); the mask is that of positions first, first + 1, ..., p 0: none.
struct Layer {
  const float* weight = nullptr;  // [out, in]
  const float* bias = nullptr;    // [out]
  size_t in = 0, out = 0;
  Dropout drop;
  uint64_t first = 0;
};

struct LayerBack {
  float* weight = nullptr;
  float* bias = nullptr;
};

// x [rows, layers[0].in]; made[k] [rows, layers[k].out], dropped as the next layer would drop it;
// null: of a layer before the last, it is not kept.
void perceptron(const std::vector<Layer>& layers, const float* x, size_t rows,
                const std::vector<float*>& made, int threads);

// Gradients to all layers and, unless it is null, to x; grads are those of the last of `made`. Sums
// are taken over parts of the samples that do not depend on the number of threads.
void perceptron_back(const std::vector<Layer>& layers, const float* x, size_t rows,
                     const std::vector<const float*>& made, const float* grads, float* of_x,
                     const std::vector<LayerBack>& to, int threads);

// The inner loops, once per instruction set. Matrices are written in tiles of so many `columns`, zeros
// behind the last: [tiles][height, columns].
struct PerceptronKernels {
  size_t columns;
  // out [rows, tiles * columns] = a @ tiles; rows of a lie `apart` from each other.
  void (*product)(const float* a, size_t apart, size_t rows, const float* tiles, size_t height,
                  size_t width, float* out);
  // out [width_a, width_b] += a.T @ b; a [rows, width_a], b [rows, width_b], whole tiles both.
  void (*add_turned)(const float* a, size_t width_a, const float* b, size_t width_b, size_t rows,
                     float* out);
  // x [rows, width], `apart`, = relu(x + bias), to `to` [rows, width].
  void (*activate)(const float* x, size_t apart, const float* bias, size_t rows, size_t width,
                   float* to);
  // grad [rows, width], `apart`, is scaled where made [rows, width] is above 0 and else 0; its
  // columns are added to sums [width].
  void (*activate_back)(float* grad, size_t apart, const float* made, float scale, size_t rows,
                        size_t width, float* sums);
};

const PerceptronKernels& perceptron_kernels();

}  // namespace shoal
