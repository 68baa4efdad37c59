// The inner loops of a softmax over a catalogue and of small products. Compiled once per
// instruction set, as kernels.h; here with fused multiply-add where there is one, since sums are
// not promised bit for bit between machines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace shoal {

constexpr size_t kBlock = 64;      // rows whose logits are made at a time, in the first cache
constexpr float kLowest = -1e30f;  // below every logit, and finite: less itself it is 0

// A table's rows and the positions that are compared with them, for catalogue.h.
struct Compared {
  size_t n = 0, width = 0;     // positions; with zeros up to a whole vector
  size_t dim = 0, columns = 0;  // with zeros up to whole tiles
  size_t k = 0;                // rows
  float* values = nullptr;     // exponentials [k, width]
  float* tops = nullptr;       // [blocks, width]: what those of a block are relative to
  const float* states = nullptr;  // packed, as the kernel wants them
};

// What the forward pass of a block of rows reads, and what it adds to.
struct Pass {
  Compared of;
  const float *rows = nullptr, *bias = nullptr;  // [k, dim]; [k] or null
  const int64_t *others = nullptr, *others_end = nullptr;  // rows that are no candidates, ascending
};
struct Pooled {
  float* tops = nullptr;     // [width], the highest logits
  double* totals = nullptr;  // [width], sums of exponentials
  float* rows = nullptr;     // [width, columns], sums of exponential * row
};

// What the step of a block of rows reads.
struct Descent {
  Compared of;
  const float *highest = nullptr, *shares = nullptr;  // [n]
  const int64_t* places = nullptr;                    // [n]
  float truth = 0;
  Rule rule;
  Learned rows, bias;
};

struct SoftmaxKernels {
  const char* name;
  size_t lanes;    // positions come in multiples of it
  size_t columns;  // of a tile
  // Writes hidden [n, dim] as a Pass (by_position) or a Descent (by_column) reads it.
  void (*by_position)(const float* hidden, const Compared& of, float* packed);
  void (*by_column)(const float* hidden, const Compared& of, float* packed);
  // Rows first ... last - 1, at most kBlock.
  void (*pass)(const Pass&, size_t first, size_t last, const Pooled&);
  // scratch [kBlock * columns + width]
  void (*descend)(const Descent&, size_t first, size_t last, float* scratch);
  // See softmax.h and products.h.
  void (*exponentials)(float* x, size_t k, float* highest, float* total);
  void (*product)(const float* a, const float* b, float* out, size_t m, size_t k, size_t n,
                  float* edge);  // [k, columns]
};

const SoftmaxKernels& softmax_kernels();

}  // namespace shoal
