// Products of matrices in tiles that stay in registers, for the instruction set that a file is
// compiled for.
#pragma once

#include "vectors.h"

namespace shoal {
namespace SHOAL_ISA {
namespace {

// Tiles of a product: high * wide sums, two factors and one more in registers. Where there are 32
// registers (ARM, AVX-512) 16 sums, else 8, which is what keeps two multipliers busy.
#if defined(__aarch64__)
constexpr size_t kHigh = 8, kWide = 2, kLow = 4, kLong = 4;
#elif defined(__AVX512F__)
constexpr size_t kHigh = 8, kWide = 2, kLow = 8, kLong = 2;
#else
constexpr size_t kHigh = 4, kWide = 2, kLow = 4, kLong = 2;
#endif
constexpr size_t kColumns = kLong * kLanes;  // of a tile of kLow rows or positions

// out [High, Wide * kLanes] = begun [High] + a [High][k] @ b [k, Wide * kLanes], of which `height`
// rows are stored. Rows of b lie `stride` apart, those of out `width`.
template <size_t High, size_t Wide>
__attribute__((noinline)) void multiply(const float* const* a, const float* b, size_t stride,
                                        size_t k, const float* begun, float* out, size_t width,
                                        size_t height) {
  Vector sums[High][Wide];
  for (size_t i = 0; i < High; ++i)
    for (Vector& sum : sums[i]) sum = all(begun[i]);
  size_t c = 0;
  for (; c + 4 <= k; c += 4) {
    Spread left[High];
    for (size_t i = 0; i < High; ++i) left[i] = Spread(a[i] + c);
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) {
      Vector right[Wide];
      for (size_t v = 0; v < Wide; ++v)
        right[v] = load(b + (c + static_cast<size_t>(lane)) * stride + kLanes * v);
      for (size_t i = 0; i < High; ++i)
        for (size_t v = 0; v < Wide; ++v) sums[i][v] += right[v] * left[i][lane];
    }
  }
  for (; c < k; ++c)
    for (size_t i = 0; i < High; ++i)
      for (size_t v = 0; v < Wide; ++v) sums[i][v] += load(b + c * stride + kLanes * v) * all(a[i][c]);
#pragma GCC unroll 8
  for (size_t i = 0; i < High; ++i) {  // by number, or the sums would have to lie in memory
    if (i == height) return;
    for (size_t v = 0; v < Wide; ++v) store(out + i * width + kLanes * v, sums[i][v]);
  }
}

constexpr float kZeros[16] = {};

// out [kLow, kColumns] += a [k, kLow].T @ b [k, kColumns]; rows lie `height` and `stride` apart.
__attribute__((noinline)) void multiply_turned(const float* a, size_t height, const float* b,
                                               size_t stride, size_t k, float* out, size_t width) {
  Vector sums[kLow][kLong];
  for (size_t i = 0; i < kLow; ++i)
    for (size_t v = 0; v < kLong; ++v) sums[i][v] = load(out + i * width + kLanes * v);
  for (size_t r = 0; r < k; ++r) {
    Spread left[kLow / 4];
    for (size_t i = 0; i < kLow / 4; ++i) left[i] = Spread(a + r * height + 4 * i);
    Vector right[kLong];
    for (size_t v = 0; v < kLong; ++v) right[v] = load(b + r * stride + kLanes * v);
#pragma GCC unroll 8
    for (size_t i = 0; i < kLow; ++i)
      for (size_t v = 0; v < kLong; ++v) sums[i][v] += right[v] * left[i / 4][static_cast<int>(i % 4)];
  }
  for (size_t i = 0; i < kLow; ++i)
    for (size_t v = 0; v < kLong; ++v) store(out + i * width + kLanes * v, sums[i][v]);
}

}  // namespace
}  // namespace SHOAL_ISA
}  // namespace shoal
