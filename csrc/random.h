// Initial values and rounding noise: pure functions of integers, the same bits on every machine.
// The definition stands in shoal/embedding/init.py; tests hold the two against each other.
#pragma once

#include <cstdint>
#include <cstring>

namespace shoal {

constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15ull;

// splitmix64's finaliser: a bijection of 64 bits.
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

enum class InitKind : int { uniform = 0, normal = 1, constant = 2 };

struct Recipe {
  InitKind kind = InitKind::constant;
  uint64_t key = 0;
  float factor = 0.0f;
};

inline int32_t quarters(uint64_t word) {
  return static_cast<int32_t>((word & 0xFFFF) + (word >> 16 & 0xFFFF) + (word >> 32 & 0xFFFF) +
                              (word >> 48));
}

inline void initial_row(const Recipe& recipe, int64_t id, int dim, float* out) {
  const uint64_t row = mix(static_cast<uint64_t>(id) * kIncrement ^ recipe.key);
  switch (recipe.kind) {
    case InitKind::uniform:
      for (int c = 0; c < dim; ++c) {
        const uint64_t word = mix(row + static_cast<uint64_t>(c + 1) * kIncrement);
        out[c] = static_cast<float>(static_cast<int32_t>(word >> 40) - (1 << 23)) * recipe.factor;
      }
      break;
    case InitKind::normal:
      for (int c = 0; c < dim; ++c) {
        const uint64_t first = mix(row + static_cast<uint64_t>(2 * c + 1) * kIncrement);
        const uint64_t second = mix(row + static_cast<uint64_t>(2 * c + 2) * kIncrement);
        const int32_t sum = quarters(first) + quarters(second);
        out[c] = static_cast<float>(2 * sum - 8 * 65535) * recipe.factor;
      }
      break;
    case InitKind::constant:
      for (int c = 0; c < dim; ++c) out[c] = recipe.factor;
      break;
  }
}

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float widen(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Adds `noise` (16 bits) below the last bit kept; 0x7FFF plus the last bit rounds to nearest even.
inline uint16_t narrow(float x, uint32_t noise) {
  const uint32_t bits = float_bits(x);
  // Infinities and NaNs must not carry over. A choice, not a branch: loops over values have vectors.
  const uint32_t kept = bits >> 16 | ((bits & 0x7FFFFFu) != 0 ? 0x40u : 0u);
  const uint32_t rounded = (bits + noise) >> 16;
  return static_cast<uint16_t>((bits & 0x7F800000u) == 0x7F800000u ? kept : rounded);
}

inline uint16_t nearest(float x) { return narrow(x, 0x7FFFu + (float_bits(x) >> 16 & 1u)); }

}  // namespace shoal
