// Negative items, drawn as shoal/data/sampler.py defines it: that is the reference, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

// Known (user, item) pairs: keys user * num_items + item, as a bitmap or sorted.
struct KnownPairs {
  int64_t num_users = 0, num_items = 0;
  const uint8_t* bitmap = nullptr;  // null: search
  const int64_t* keys = nullptr;
  const int64_t* starts = nullptr;  // [num_users + 1], of each user's keys

  bool contains(int64_t user, int64_t item) const;
};

struct Draws {
  uint64_t key = 0;            // the hash of seed and epoch
  const double* keep = nullptr;  // null: uniform; otherwise the alias table
  const int64_t* alias = nullptr;
  int column_bits = 0, max_attempts = 0;
};

// Negatives of n samples: out [n, num]. 0 where every attempt was seen. Returns how many those are,
// or -1 for a user who is not there.
int64_t draw_negatives(const KnownPairs& known, const Draws& draws, const int64_t* users,
                       const int64_t* index, size_t n, size_t num, int64_t* out);

}  // namespace shoal
