#include "softmax.h"

#include <algorithm>

#include "floats.h"
#include "softmax_kernels.h"
#include "threads.h"

namespace shoal {
namespace {

constexpr size_t kEnough = 1 << 16;  // values that are worth another thread

// How many parts `units` pieces of work of `each` values are cut into.
size_t parts_of(size_t units, size_t each, int threads) {
  const size_t most = std::min(units, static_cast<size_t>(std::max(threads, 1)));
  return std::clamp<size_t>(units * each / kEnough, 1, std::max<size_t>(most, 1));
}

}  // namespace

void logits(const float* hidden, size_t n, const float* rows, size_t k, size_t dim,
            const float* bias, float* out, int threads) {
  const SoftmaxKernels& kernels = softmax_kernels();
  Pass pass;
  pass.of.n = n, pass.of.width = (n + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  pass.of.dim = dim, pass.of.k = k;
  pass.rows = rows, pass.bias = bias;
  Floats states(pass.of.width * dim);
  kernels.by_position(hidden, pass.of, states.data());
  pass.of.states = states.data();
  const size_t blocks = (k + kBlock - 1) / kBlock, parts = parts_of(blocks, kBlock * n, threads);
  Pool::run(threads, static_cast<int>(parts), [&](int part) {
    Floats scratch(kBlock * pass.of.width);
    const size_t last = blocks * (static_cast<size_t>(part) + 1) / parts;
    for (size_t r = blocks * static_cast<size_t>(part) / parts; r < last; ++r)
      kernels.logits(pass, r * kBlock, std::min(k, (r + 1) * kBlock), scratch.data(), out);
  });
}

void exponentials(float* x, size_t n, size_t k, float* highest, float* totals, int threads) {
  const size_t parts = parts_of(n, k, threads);
  Pool::run(threads, static_cast<int>(parts), [&](int part) {
    const size_t last = n * (static_cast<size_t>(part) + 1) / parts;
    for (size_t p = n * static_cast<size_t>(part) / parts; p < last; ++p)
      softmax_kernels().exponentials(x + p * k, k, highest + p, totals + p);
  });
}

}  // namespace shoal
