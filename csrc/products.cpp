// Compiled with fused multiply-add where there is one.
#include "products.h"

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace shoal {
namespace {

constexpr size_t kWide = 16;

// out [4][kWide] = a [4][k] @ b [k, kWide]; rows of b lie `stride` apart.
__attribute__((noinline)) void tile(const float* const* a, const float* b, size_t stride, size_t k,
                                    Four (&out)[4][4]) {
  Four sums[4][4] = {};
  size_t c = 0;
  for (; c + 4 <= k; c += 4) {
    Four row[4];
    for (size_t i = 0; i < 4; ++i) row[i] = load_lanes(a[i] + c);
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane)
      for (size_t j = 0; j < 4; ++j) {
        const Four x = load(b + (c + static_cast<size_t>(lane)) * stride + 4 * j);
        for (size_t i = 0; i < 4; ++i) sums[i][j] += x * all(row[i][lane]);
      }
  }
  for (; c < k; ++c)
    for (size_t j = 0; j < 4; ++j)
      for (size_t i = 0; i < 4; ++i) sums[i][j] += load(b + c * stride + 4 * j) * all(a[i][c]);
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 4; ++j) out[i][j] = sums[i][j];
}

}  // namespace

void products(const float* a, const float* b, float* out, size_t count, size_t m, size_t k,
              size_t n) {
  std::vector<float> edge(n % kWide == 0 ? 0 : k * kWide, 0.0f);  // columns beyond the last are 0
  for (size_t one = 0; one < count; ++one, a += m * k, b += k * n, out += m * n)
    for (size_t c = 0; c < n; c += kWide) {
      const size_t wide = std::min(kWide, n - c);
      const float* from = b + c;
      if (wide < kWide) {
        for (size_t r = 0; r < k; ++r) std::copy_n(from + r * n, wide, edge.data() + r * kWide);
        from = edge.data();
      }
      for (size_t r = 0; r < m; r += 4) {
        const float* rows[4];
        for (size_t i = 0; i < 4; ++i) rows[i] = a + std::min(r + i, m - 1) * k;
        Four made[4][4];
        tile(rows, from, wide < kWide ? kWide : n, k, made);
        for (size_t i = 0; i < std::min<size_t>(4, m - r); ++i)
          __builtin_memcpy(out + (r + i) * n + c, made[i], wide * sizeof(float));
      }
    }
}

}  // namespace shoal
