#include "softmax.h"

#include <algorithm>

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

void exponentials(float* x, size_t n, size_t k, float* highest, float* totals, int threads) {
  const size_t parts = parts_of(n, k, threads);
  Pool::run(threads, static_cast<int>(parts), [&](int part) {
    const size_t last = n * (static_cast<size_t>(part) + 1) / parts;
    for (size_t p = n * static_cast<size_t>(part) / parts; p < last; ++p)
      softmax_kernels().exponentials(x + p * k, k, highest + p, totals + p);
  });
}

}  // namespace shoal
