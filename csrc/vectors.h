// Vectors by GCC's and Clang's extension: four floats are one register on every machine.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace shoal {

typedef float Four __attribute__((vector_size(16)));
typedef uint32_t FourWords __attribute__((vector_size(16)));

inline Four load(const float* from) {
  Four x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

// As load, for vectors whose lanes are used one by one: compilers that see where they come from
// would load every lane by itself.
inline Four load_lanes(const float* from) {
  Four x = load(from);
#if defined(__aarch64__)
  asm("" : "+w"(x));
#elif defined(__x86_64__)
  asm("" : "+x"(x));
#endif
  return x;
}

inline void store(float* to, Four x) { __builtin_memcpy(to, &x, sizeof x); }

inline Four all(float x) { return Four{x, x, x, x}; }

inline Four larger(Four a, Four b) { return a > b ? a : b; }

// e^x for x <= 0: 2^i * e^f with |f| <= ln 2 / 2 and a polynomial (the coefficients of Cephes).
// Below -87 the answer is 0; what is computed on the way there does not matter.
inline Four exponential(Four x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves a whole number in the low bits
  const Four shifted = x * all(1.44269504f) + all(kRound);
  const Four whole = shifted - all(kRound);
  Four f = x - whole * all(0.693359375f);
  f = f - whole * all(-2.12194440e-4f);
  Four y = all(1.9875691500e-4f);
  y = y * f + all(1.3981999507e-3f);
  y = y * f + all(8.3334519073e-3f);
  y = y * f + all(4.1665795894e-2f);
  y = y * f + all(1.6666665459e-1f);
  y = y * f + all(5.0000001201e-1f);
  y = y * (f * f) + (f + all(1.0f));
  const FourWords bits = (FourWords)y + ((FourWords)shifted << 23);  // may wrap, where it is 0
  return (Four)(bits & (FourWords)(x > all(-87.0f)));
}

inline Four root(Four x) {
#if defined(__aarch64__)
  return (Four)vsqrtq_f32((float32x4_t)x);
#else
  for (int i = 0; i < 4; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

}  // namespace shoal
