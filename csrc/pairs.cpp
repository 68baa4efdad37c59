#include "pairs.h"

#include "threads.h"

namespace shoal {
namespace {

// Calls work with every pair, each thread with a share of them.
template <typename Work>
void for_each_pair(size_t count, int threads, Work work) {
  Pool::run(threads, threads, [&](int part) {
    const auto p = static_cast<size_t>(part), parts = static_cast<size_t>(threads);
    for (size_t i = count * p / parts; i < count * (p + 1) / parts; ++i) work(i);
  });
}

}  // namespace

// Sixteen sums side by side, then four, then one: the order in which torch sums on ARM, so that
// results there have its bits.
void pair_margins(const Pairs& pairs, float* out, int threads) {
  constexpr size_t lanes = 16;
  const size_t dim = pairs.dim;
  for_each_pair(pairs.count, threads, [&](size_t i) {
    const float* __restrict q = pairs.queries + i * dim;
    const float* __restrict p = pairs.positives + i * dim;
    const float* __restrict n = pairs.negatives + i * dim;
    float sums[lanes] = {};
    size_t c = 0;
    for (; c + lanes <= dim; c += lanes)
      for (size_t k = 0; k < lanes; ++k) sums[k] += q[c + k] * (p[c + k] - n[c + k]);
    for (size_t k = 4; k < lanes; ++k) sums[k % 4] += sums[k];
    float total = 0;
    for (; c < dim; ++c) total += q[c] * (p[c] - n[c]);
    for (size_t k = 0; k < 4; ++k) total += sums[k];
    out[i] = total;
  });
}

void pair_gradients(const Pairs& pairs, const PairGradients& out, int threads) {
  const size_t dim = pairs.dim;
  for_each_pair(pairs.count, threads, [&](size_t i) {
    const float* __restrict q = pairs.queries + i * dim;
    const float* __restrict p = pairs.positives + i * dim;
    const float* __restrict n = pairs.negatives + i * dim;
    float* __restrict of_query = out.queries + i * dim;
    float* __restrict of_positive = out.positives + i * dim;
    float* __restrict of_negative = out.negatives + i * dim;
    // sigmoid(margin) - 1, without the loss of digits that the difference would have
    const float share = out.decays[i] / (1.0f + out.decays[i]);
    const float g = -out.scale * (out.margins[i] < 0 ? 1.0f - share : share);
    // Three loops: six streams at once would push each other out of the cache's few ways.
    for (size_t c = 0; c < dim; ++c) of_query[c] = g * (p[c] - n[c]);
    for (size_t c = 0; c < dim; ++c) of_positive[c] = g * q[c];
    for (size_t c = 0; c < dim; ++c) of_negative[c] = -(g * q[c]);
  });
}

}  // namespace shoal
