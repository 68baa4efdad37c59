#include "pairs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "memory.h"
#include "threads.h"

namespace shoal {
namespace {

typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(16), aligned(4)));

// Pairs whose losses are summed together: a product of so many numbers between 1 and 2 is a double.
constexpr size_t kBlock = 64;

// e^x for x <= 0, as in vectors.h; 0 below -87.
inline Four exponential(Four x) {
  constexpr float kRound = 12582912.0f;
  const Four shifted = x * 1.44269504f + kRound, whole = shifted - kRound;
  const Four f = x - whole * 0.693359375f - whole * -2.12194440e-4f;
  Four y = f * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * f + 8.3334519073e-3f;
  y = y * f + 4.1665795894e-2f;
  y = y * f + 1.6666665459e-1f;
  y = y * f + 5.0000001201e-1f;
  y = y * (f * f) + (f + 1.0f);
  const Words bits = (Words)y + ((Words)shifted << 23);
  return (Four)(bits & (Words)(x > -87.0f));
}

// Calls work(first, last) with blocks of pairs, each thread with a share of them.
template <typename Work>
void for_blocks(size_t count, int threads, Work work) {
  const size_t blocks = (count + kBlock - 1) / kBlock;
  Pool::run(threads, threads, [&](int part) {
    const auto p = static_cast<size_t>(part), parts = static_cast<size_t>(threads);
    for (size_t b = blocks * p / parts; b < blocks * (p + 1) / parts; ++b)
      work(b * kBlock, std::min(count, (b + 1) * kBlock));
  });
}

// Sixteen sums side by side, then four, then one: the order in which torch sums on ARM, so that
// results there have its bits.
float margin_of(const float* __restrict q, const float* __restrict p, const float* __restrict n,
                size_t dim) {
  constexpr size_t lanes = 16;
  float sums[lanes] = {};
  size_t c = 0;
  for (; c + lanes <= dim; c += lanes)
    for (size_t k = 0; k < lanes; ++k) sums[k] += q[c + k] * (p[c + k] - n[c + k]);
  for (size_t k = 4; k < lanes; ++k) sums[k % 4] += sums[k];
  float total = 0;
  for (; c < dim; ++c) total += q[c] * (p[c] - n[c]);
  for (size_t k = 0; k < 4; ++k) total += sums[k];
  return total;
}

// The loss of so many pairs, where margin(i) is that of pair i.
// -ln sigmoid(m) = max(-m, 0) + ln(1 + e^-|m|), and the logarithms of a block are one: that of the
// product.
template <typename Margin>
double sum_losses(size_t count, float* slopes, int threads, Margin margin) {
  std::vector<double> losses((count + kBlock - 1) / kBlock);
  for_blocks(count, threads, [&](size_t first, size_t last) {
    float margins[kBlock] = {}, decays[kBlock];
    for (size_t i = first; i < last; ++i) margins[i - first] = margin(i);
    for (size_t k = 0; k < kBlock; k += 4) {
      const Four m = *reinterpret_cast<const Four*>(margins + k);
      *reinterpret_cast<Four*>(decays + k) = exponential(m < 0 ? m : -m);
    }
    double sum = 0, products[2] = {1, 1};
    for (size_t i = first; i < last; ++i) {
      const float m = margins[i - first], decay = decays[i - first];
      sum += m >= 0 ? 0.0 : -double{m};  // NaN stays
      products[i & 1] *= 1.0 + double{decay};
      const float share = decay / (1.0f + decay);
      slopes[i] = m < 0 ? 1.0f - share : share;
    }
    losses[first / kBlock] = sum + std::log(products[0] * products[1]);
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total;
}

const float* row_of(const PlacedPairs& pairs, int64_t place) {
  return pairs.rows + static_cast<size_t>(place) * pairs.dim;
}

// Lets the rows of the pair that comes some pairs later be fetched; rows is what they are of.
void fetch_later(const PlacedPairs& pairs, size_t i, const float* rows) {
  constexpr size_t later = 6, line = 16;
  if (i + later >= pairs.count) return;
  for (const int64_t* places : {pairs.queries, pairs.positives, pairs.negatives}) {
    const float* row = rows + static_cast<size_t>(places[i + later]) * pairs.dim;
    for (size_t c = 0; c < pairs.dim; c += line) prefetch_read(row + c);
  }
}

}  // namespace

double pair_loss(const Pairs& pairs, float* slopes, int threads) {
  const size_t dim = pairs.dim;
  return sum_losses(pairs.count, slopes, threads, [&](size_t i) {
    return margin_of(pairs.queries + i * dim, pairs.positives + i * dim, pairs.negatives + i * dim,
                     dim);
  });
}

double pair_loss(const PlacedPairs& pairs, float* slopes, int threads) {
  return sum_losses(pairs.count, slopes, threads, [&](size_t i) {
    fetch_later(pairs, i, pairs.rows);
    return margin_of(row_of(pairs, pairs.queries[i]), row_of(pairs, pairs.positives[i]),
                     row_of(pairs, pairs.negatives[i]), pairs.dim);
  });
}

void pair_gradients(const Pairs& pairs, const PairGradients& out, int threads) {
  const size_t dim = pairs.dim;
  for_blocks(pairs.count, threads, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const float* __restrict q = pairs.queries + i * dim;
      const float* __restrict p = pairs.positives + i * dim;
      const float* __restrict n = pairs.negatives + i * dim;
      float* __restrict of_query = out.queries + i * dim;
      float* __restrict of_positive = out.positives + i * dim;
      float* __restrict of_negative = out.negatives + i * dim;
      const float g = -out.scale * out.slopes[i];
      // Three loops: six streams at once would push each other out of the cache's few ways.
      for (size_t c = 0; c < dim; ++c) of_query[c] = g * (p[c] - n[c]);
      for (size_t c = 0; c < dim; ++c) of_positive[c] = g * q[c];
      for (size_t c = 0; c < dim; ++c) of_negative[c] = -(g * q[c]);
    }
  });
}

// A thread makes some columns of all rows.
void pair_gradients(const PlacedPairs& pairs, const float* slopes, float scale, float* out,
                    int threads) {
  const auto parts = std::min(static_cast<size_t>(std::max(threads, 1)),
                              std::max<size_t>(pairs.dim / 16, 1));
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const auto p = static_cast<size_t>(part);
    const size_t first = pairs.dim * p / parts, width = pairs.dim * (p + 1) / parts - first;
    for (size_t row = 0; row < pairs.n; ++row)
      std::fill_n(out + row * pairs.dim + first, width, 0.0f);
    const auto gradient = [&](int64_t place) {
      return out + static_cast<size_t>(place) * pairs.dim + first;
    };
    for (size_t i = 0; i < pairs.count; ++i) {
      fetch_later(pairs, i, pairs.rows);
      fetch_later(pairs, i, out);
      const float g = -scale * slopes[i];
      const float* query = row_of(pairs, pairs.queries[i]) + first;
      const float* positive = row_of(pairs, pairs.positives[i]) + first;
      const float* negative = row_of(pairs, pairs.negatives[i]) + first;
      float* __restrict to = gradient(pairs.queries[i]);
      for (size_t c = 0; c < width; ++c) to[c] += g * (positive[c] - negative[c]);
      to = gradient(pairs.positives[i]);
      for (size_t c = 0; c < width; ++c) to[c] += g * query[c];
      to = gradient(pairs.negatives[i]);
      for (size_t c = 0; c < width; ++c) to[c] -= g * query[c];
    }
  });
}

}  // namespace shoal
