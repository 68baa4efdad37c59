// A softmax over all rows of a table, read once for the loss and once more for their step, so that
// the gradient of the table never exists. float32; results do not hang on the number of threads.
//
//   `exponentials_of` makes, of hidden [n, dim] and rows [k, dim], the exponentials of the logits,
//   and of every position the highest logit, the sum of exponentials and that of exponential * row;
//   `step_rows` has the gradients of a block of rows in the first cache, and applies the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace shoal {

// Exponentials [k, width] and what they are relative to, [blocks, width]: the highest logit known
// when a block of rows was made. Both are the caller's memory; see the sizes below.
struct Exponentials {
  size_t n = 0, k = 0;
  float* values = nullptr;
  float* tops = nullptr;
};

size_t padded(size_t n);     // width: positions, and zeros up to a whole vector
size_t num_blocks(size_t k);  // of rows

struct Positions {
  const float* hidden = nullptr;  // [n, dim]
  size_t dim = 0;
};

// Rows that are no candidates are others[0] < others[1] < ...; bias [k] may be null.
// highest [n], totals [n] (relative to highest), pooled [n, dim] = sum of exponential * row.
void exponentials_of(const Positions& positions, const float* rows, const float* bias,
                     const int64_t* others, size_t num_others, const Exponentials& out,
                     float* highest, float* totals, float* pooled, int threads);

// The gradient of the logit of row r at position p is shares[p] * exponential, less `truth` where r
// is places[p] (-1: no row); it is left in `made`. Exponentials are relative to highest [n].
void step_rows(const Positions& positions, const Exponentials& made, const float* highest,
               const float* shares, const int64_t* places, float truth, const Rule& rule,
               const Learned& rows, const Learned& bias, int threads);

}  // namespace shoal
