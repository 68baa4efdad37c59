#include "sampler.h"

#include <algorithm>

#include "random.h"

namespace shoal {
namespace {

constexpr uint64_t kStart = 0x2545F4914F6CDD1Dull;  // of hash64 in shoal/data/random.py

// A floating-point product and nothing else: the same item on every machine.
inline int64_t choose(const Draws& draws, uint64_t bits, double scale) {
  const double coin = static_cast<double>(bits >> 11) * scale;
  const auto slot = static_cast<int64_t>(coin);
  if (draws.keep == nullptr) return slot + 1;
  return (coin - static_cast<double>(slot) < draws.keep[slot] ? slot : draws.alias[slot]) + 1;
}

}  // namespace

bool KnownPairs::contains(int64_t user, int64_t item) const {
  const int64_t pair = user * num_items + item;
  if (bitmap != nullptr) return (bitmap[pair >> 3] >> (pair & 7) & 1) != 0;
  return std::binary_search(keys + starts[user], keys + starts[user + 1], pair);
}

int64_t draw_negatives(const KnownPairs& known, const Draws& draws, const int64_t* users,
                       const int64_t* index, size_t n, size_t num, int64_t* out) {
  const double scale = static_cast<double>(known.num_items - 1) * 0x1p-53;
  int64_t left = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t user = users[i];
    if (user < 0 || user >= known.num_users) return -1;
    const uint64_t entry = static_cast<uint64_t>(index[i]) << draws.column_bits;
    for (size_t column = 0; column < num; ++column) {
      const uint64_t bits = mix(draws.key + (entry + column) * kIncrement);
      int64_t item = choose(draws, bits, scale);
      int attempt = 1;
      for (; attempt < draws.max_attempts && known.contains(user, item); ++attempt)
        item = choose(draws, mix(kStart + (bits + static_cast<uint64_t>(attempt)) * kIncrement), scale);
      if (attempt == draws.max_attempts && known.contains(user, item)) {
        item = 0;
        ++left;
      }
      *out++ = item;
    }
  }
  return left;
}

}  // namespace shoal
