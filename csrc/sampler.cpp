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
  for (size_t i = 0; i < n; ++i)
    if (users[i] < 0 || users[i] >= known.num_users) return -1;
  int64_t left = 0;
  // First attempts of a block, all of them, then the others of those that were in vain: whether one
  // was cannot be guessed, and a wrong guess costs as much as several draws.
  constexpr size_t block = 128;
  uint64_t bits[block];
  size_t vain[block + 1];
  const size_t total = n * num;
  for (size_t begin = 0; begin < total; begin += block) {
    const size_t count = std::min(block, total - begin);
    size_t found = 0;
    for (size_t k = 0, i = begin / num, column = begin % num; k < count; ++k) {
      const uint64_t entry = (static_cast<uint64_t>(index[i]) << draws.column_bits) + column;
      bits[k] = mix(draws.key + entry * kIncrement);
      const int64_t item = out[begin + k] = choose(draws, bits[k], scale);
      vain[found] = k;
      found += known.contains(users[i], item) ? 1 : 0;
      const bool next = ++column == num;
      i += next ? 1 : 0;
      column = next ? 0 : column;
    }
    for (size_t v = 0; v < found; ++v) {
      const size_t k = vain[v];
      const int64_t user = users[(begin + k) / num];
      int64_t item = out[begin + k];
      int attempt = 1;
      for (; attempt < draws.max_attempts && known.contains(user, item); ++attempt)
        item = choose(draws, mix(kStart + (bits[k] + static_cast<uint64_t>(attempt)) * kIncrement),
                      scale);
      if (attempt == draws.max_attempts && known.contains(user, item)) {
        item = 0;
        ++left;
      }
      out[begin + k] = item;
    }
  }
  return left;
}

}  // namespace shoal
