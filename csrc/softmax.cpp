// Compiled with fused multiply-add where there is one: sums here are not promised bit for bit.
#include "softmax.h"

#include <algorithm>
#include <limits>

#include "vectors.h"

namespace shoal {
namespace {

constexpr size_t kTile = 4;
constexpr size_t kStep = 16;  // exponentials under way at once

// A tile of logits: every load of a row serves four positions and the other way round.
inline void tile(const float* const* hidden, const float* const* rows, size_t dim,
                 Four out[kTile]) {
  Four sums[kTile][kTile];
  for (auto& line : sums)
    for (Four& sum : line) sum = all(0.0f);
  size_t c = 0;
  for (; c + 4 <= dim; c += 4) {
    Four row[kTile];
    for (size_t j = 0; j < kTile; ++j) row[j] = load(rows[j] + c);
    for (size_t i = 0; i < kTile; ++i) {
      const Four state = load(hidden[i] + c);
      for (size_t j = 0; j < kTile; ++j) sums[i][j] += state * row[j];
    }
  }
  for (size_t i = 0; i < kTile; ++i) {
    // Four sums of four lanes each -> one vector of sums.
    const Four a = sums[i][0], b = sums[i][1], d = sums[i][2], e = sums[i][3];
    const Four ab = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
    const Four de = __builtin_shufflevector(d, e, 0, 2, 4, 6) + __builtin_shufflevector(d, e, 1, 3, 5, 7);
    out[i] = __builtin_shufflevector(ab, de, 0, 2, 4, 6) + __builtin_shufflevector(ab, de, 1, 3, 5, 7);
    for (size_t rest = c; rest < dim; ++rest)
      for (size_t j = 0; j < kTile; ++j) out[i][j] += hidden[i][rest] * rows[j][rest];
  }
}

}  // namespace

void logits(const float* hidden, size_t n, const float* rows, size_t k, size_t dim,
            const float* bias, float* out) {
  Four made[kTile];
  const float *states[kTile], *items[kTile];
  for (size_t r = 0; r < k; r += kTile) {
    const size_t width = std::min(kTile, k - r);
    // At the edges the last one is computed again and not stored.
    for (size_t j = 0; j < kTile; ++j) items[j] = rows + (r + std::min(j, width - 1)) * dim;
    Four added = all(0.0f);
    for (size_t j = 0; j < width && bias != nullptr; ++j) added[j] = bias[r + j];
    for (size_t p = 0; p < n; p += kTile) {
      const size_t height = std::min(kTile, n - p);
      for (size_t i = 0; i < kTile; ++i) states[i] = hidden + (p + std::min(i, height - 1)) * dim;
      tile(states, items, dim, made);
      for (size_t i = 0; i < height; ++i) {
        const Four sum = made[i] + added;
        float* to = out + (p + i) * k + r;
        if (width == kTile)
          store(to, sum);
        else
          for (size_t j = 0; j < width; ++j) to[j] = sum[j];
      }
    }
  }
}

void exponentials(float* x, size_t n, size_t k, float* highest, float* totals) {
  for (size_t p = 0; p < n; ++p) {
    float* row = x + p * k;
    Four most = all(-std::numeric_limits<float>::infinity());
    size_t c = 0;
    for (; c + 4 <= k; c += 4) {
      const Four here = load(row + c);
      most = here > most ? here : most;
    }
    float top = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
    for (size_t rest = c; rest < k; ++rest) top = std::max(top, row[rest]);
    double total = 0.0;
    c = 0;
    while (c + kStep <= k) {
      // Float sums of a thousand or so at a time, so that a long row loses nothing.
      const size_t stop = std::min(k - k % kStep, c + 64 * kStep);
      Four sums[kStep / 4] = {};
      for (; c < stop; c += kStep)
        for (size_t u = 0; u < kStep / 4; ++u) {
          const Four y = exponential(load(row + c + 4 * u) - all(top));
          store(row + c + 4 * u, y);
          sums[u] += y;
        }
      for (const Four& sum : sums) total += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    for (; c < k; ++c) {
      const Four y = exponential(all(row[c] - top));
      row[c] = y[0];
      total += y[0];
    }
    highest[p] = top;
    totals[p] = static_cast<float>(total);
  }
}

}  // namespace shoal
