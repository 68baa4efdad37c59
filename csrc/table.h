// Table: the rows of one embedding table, fixed or growing, and what is done with them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dedupe.h"
#include "index.h"
#include "kernels.h"
#include "memory.h"
#include "random.h"
#include "threads.h"

namespace shoal {

struct Spec {
  int dim = 0;
  int64_t rows = -1;  // -1: grows
  bool has_padding = false;
  int64_t padding = 0;
  bool half = false;
  Recipe recipe;
  Hyper hyper;
};

// A share of a growing table's ids: its own index and its own slabs of records.
struct Shard {
  Index index;
  std::vector<Pages> slabs;
  uint32_t used = 0;  // rows handed out so far
};

// One push as the optimizer needs it.
struct Push {
  const int64_t* ids = nullptr;
  size_t n = 0;
  const float* grads = nullptr;
  const uint32_t* source = nullptr;    // see Apply
  const float* coefficient = nullptr;  // see Apply
  float size = 0, eps = 0, lr = 0, keep = 1;
  uint64_t step = 0;
};

class Table {
 public:
  explicit Table(const Spec& spec, int threads);

  bool grows() const { return spec_.rows < 0; }
  int dim() const { return spec_.dim; }
  size_t size() const;   // rows held
  size_t bytes() const;  // memory they take, with their index
  SharedLock& guard() { return guard_; }

  // The first id that a fixed table has no row for, or -1 as a position when all are inside.
  int64_t first_outside(const int64_t* ids, size_t n) const;

  // All below: the caller holds the guard (shared to read, alone to write).
  void pull(const int64_t* ids, size_t n, float* out) const;
  // Part `part` of `parts` of a push; parts touch different rows and may run at once.
  void push(const Push& push, int part, int parts);
  void sorted_ids(int64_t* out) const;
  // Values and state of rows that are held; states[k] is the k-th piece, [n] or [n, dim].
  void read(const int64_t* ids, size_t n, float* values, float* const* states) const;
  void write(const int64_t* ids, size_t n, const float* values, const float* const* states);

  // Pooled rows: out[b] = sum of coefficient[i] * row of ids[i] over offsets[b] <= i <
  // offsets[b + 1], for the bags first to last - 1; null coefficients are 1.
  void pull_pooled(const int64_t* ids, const int64_t* offsets, size_t first, size_t last,
                   const float* coefficient, float* out) const;
  // out[i] = dot product of the row of ids[i] and grads[source[i]]: what the coefficients get.
  void dot(const int64_t* ids, size_t n, const uint32_t* source, const float* grads,
           float* out) const;

 private:
  static constexpr int kShards = 32;
  static size_t shard_of(uint64_t hash) { return hash & (kShards - 1); }

  bool is_padding(int64_t id) const { return spec_.has_padding && id == spec_.padding; }
  char* fixed_record(int64_t row) const {
    return pages_.data() + static_cast<size_t>(row) * layout_.stride;
  }
  char* slab_record(const Shard& shard, uint32_t row) const {
    return shard.slabs[row >> slab_shift_].data() +
           static_cast<size_t>(row & ((1u << slab_shift_) - 1)) * layout_.stride;
  }
  void begin_record(char* record, int64_t id) const;
  void initial_values(int64_t id, float* out) const;
  char* find_or_insert(int64_t id, uint64_t hash);
  void find(const int64_t* ids, size_t n, const char** records) const;
  const char* find_hashed(int64_t id, uint64_t hash) const;

  Spec spec_;
  Layout layout_;
  std::vector<size_t> state_sizes_;  // floats of each piece of state
  std::vector<float> state_begin_;   // what each piece holds at first
  Pages pages_;                      // fixed tables
  std::vector<Shard> shards_;        // growing tables
  int slab_shift_ = 0;
  SharedLock guard_;
};

}  // namespace shoal
