// Vectors by GCC's and Clang's extension, as wide as the instruction set that a file is compiled
// for. Everything is in that set's own namespace: the linker must never take one set's code for
// another's.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace shoal {
namespace SHOAL_ISA {

#if defined(__AVX512F__)
constexpr size_t kLanes = 16;
#elif defined(__AVX__)
constexpr size_t kLanes = 8;
#else
constexpr size_t kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef float Four __attribute__((vector_size(16)));

template <typename V = Vector>
inline V load(const float* from) {
  V x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

template <typename V>
inline void store(float* to, V x) {
  __builtin_memcpy(to, &x, sizeof x);
}

inline Vector all(float x) { return x - Vector{}; }

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

inline float sum_of(Vector x) {
  float sums[kLanes];
  store(sums, x);
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// Four floats whose values are used one by one, each in all lanes. ARM multiplies by a lane of a
// register, and compilers that see where it comes from would load every lane by itself; on x86 a
// load into all lanes costs as much as any other.
struct Spread {
#if defined(__aarch64__)
  Four x;
  Spread() = default;
  explicit Spread(const float* from) : x(load<Four>(from)) { asm("" : "+w"(x)); }
#else
  const float* x;
  Spread() = default;
  explicit Spread(const float* from) : x(from) {}
#endif
  Vector operator[](int lane) const { return all(x[lane]); }
};

// e^x for x <= 0: 2^i * e^f with |f| <= ln 2 / 2 and a polynomial (the coefficients of Cephes).
// Below -87 the answer is 0; what is computed on the way there does not matter.
inline Vector exponential(Vector x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves a whole number in the low bits
  const Vector shifted = x * all(1.44269504f) + all(kRound);
  const Vector whole = shifted - all(kRound);
  Vector f = x - whole * all(0.693359375f);
  f = f - whole * all(-2.12194440e-4f);
  Vector y = all(1.9875691500e-4f);
  y = y * f + all(1.3981999507e-3f);
  y = y * f + all(8.3334519073e-3f);
  y = y * f + all(4.1665795894e-2f);
  y = y * f + all(1.6666665459e-1f);
  y = y * f + all(5.0000001201e-1f);
  y = y * (f * f) + (f + all(1.0f));
  const Words bits = (Words)y + ((Words)shifted << 23);  // may wrap, where it is 0
  return (Vector)(bits & (Words)(x > all(-87.0f)));
}

inline Vector root(Vector x) {
#if defined(__aarch64__)
  return (Vector)vsqrtq_f32((float32x4_t)x);
#elif defined(__AVX512F__)
  return (Vector)_mm512_mask_sqrt_ps((__m512)x, 0xFFFF, (__m512)x);  // the plain one warns in GCC 12
#elif defined(__AVX__)
  return (Vector)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
  return (Vector)_mm_sqrt_ps((__m128)x);
#else
  for (size_t i = 0; i < kLanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

}  // namespace SHOAL_ISA
}  // namespace shoal
