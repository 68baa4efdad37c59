// Table: the rows of one embedding table, fixed or growing, and what is done with them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "dedupe.h"
#include "index.h"
#include "kernels.h"
#include "memory.h"
#include "random.h"
#include "pull_cache.h"
#include "threads.h"

namespace shoal {

// A piece of a row's state, and what it holds at first.
struct Piece {
  bool per_value = true;  // dim floats; false: one
  float begin = 0;
};

// Row k of a share of a table is id (first + k) * factor mod rows of it; 0 rows: it is id k.
struct Numbering {
  int64_t first = 0, factor = 1, rows = 0;
};

struct Spec {
  int dim = 0;
  int64_t rows = -1;  // -1: grows
  bool has_padding = false;
  int64_t padding = 0;
  bool half = false;
  Numbering numbering;  // for the noise of rounding
  Recipe recipe;
  Hyper hyper;
  std::vector<Piece> state;  // in the order that the optimizer's kernel has it
  // Growing tables: whether rows carry counters, and the score from which an id has a row.
  bool counted = false;
  float admit_score = 0, show_coefficient = 1, click_coefficient = 1;
  size_t bloom_counters = 0;  // 0: ids without a row are counted exactly
};

// How often an id was pushed, how often with a click, and in which step last.
struct Counters {
  float show = 0, click = 0;
  uint32_t last_step = 0;
};

// How a Bloom filter's counters lie: which shard and which bytes of it an id counts in. Raise it
// with any change of that (shards, hash, probes): filters in checkpoints then no longer fit.
constexpr int64_t kBloomLayout = 1;

// Counters of many rows as Python holds them; null: not wanted.
struct CounterArrays {
  float* show = nullptr;
  float* click = nullptr;
  int64_t* last_step = nullptr;
};

// What `shrink` drops; see shoal/embedding/rows/admission.py.
struct Shrink {
  float min_score = 0, min_norm = 0;
  int64_t max_age = -1, capacity = -1;  // -1: no limit
  bool least_recent = false;            // capacity drops by last step instead of by show
  uint64_t step = 0;
};

// A share of a growing table's ids: its own index and its own slabs of records.
struct Shard {
  Index index;
  std::vector<Pages> slabs;
  uint32_t offset = 0;  // rows of the first slab that are left out
  uint32_t used = 0;    // rows handed out so far
  std::vector<uint32_t> free;
  std::vector<uint8_t> changed;  // by row: the generation of its last change
  // Ids that are not admitted yet: exact counters, or a counting Bloom filter.
  Index pending;
  std::vector<Counters> pending_counters;
  std::vector<uint32_t> pending_free;
  std::vector<uint8_t> bloom;
};

// One push as the optimizer needs it.
struct Push {
  const int64_t* ids = nullptr;
  size_t n = 0;
  const float* grads = nullptr;   // [n, dim]; of bags [bags, dim]
  IdBags bags;                    // no bags: each id has its own gradient
  const float* clicks = nullptr;  // [n]; null: none
  const float* shows = nullptr;   // [n]: how often each was shown; null: once
  StepNumbers now;
  uint64_t step = 0;
};

class Table {
 public:
  explicit Table(const Spec& spec, int threads);

  bool grows() const { return spec_.rows < 0; }
  int dim() const { return spec_.dim; }
  bool counted() const { return spec_.counted; }
  size_t num_states() const { return state_sizes_.size(); }
  size_t size() const;   // rows held
  size_t bytes() const;  // memory they take, with their index
  SharedLock& guard() { return guard_; }

  // The first id that a fixed table has no row for, or -1 as a position when all are inside.
  int64_t first_outside(const int64_t* ids, size_t n) const;

  // All below: the caller holds the guard (shared to read, alone to write).
  void pull(const int64_t* ids, size_t n, float* out) const;
  // Sums of bags first to last - 1, into out [bags, dim].
  void pull_bags(const int64_t* ids, size_t n, const IdBags& bags, size_t first, size_t last,
                 float* out) const;
  // Part `part` of `parts` of a push; parts touch different rows and may run at once.
  void push(const Push& push, int part, int parts);
  // Ids held, ascending; those changed after a mark; those not admitted yet; those dropped.
  std::vector<int64_t> sorted_ids() const;
  std::vector<int64_t> changed_ids(uint64_t since) const;
  std::vector<int64_t> pending_ids() const;
  std::vector<int64_t> dropped_ids(uint64_t since) const;
  // Values and state of rows that are held; states[k] is the k-th piece, [n] or [n, dim].
  void read(const int64_t* ids, size_t n, float* values, float* const* states,
            const CounterArrays& counters) const;
  void write(const int64_t* ids, size_t n, const float* values, const float* const* states,
             const CounterArrays& counters);
  void read_pending(const int64_t* ids, size_t n, const CounterArrays& out) const;
  void write_pending(const int64_t* ids, size_t n, const CounterArrays& in);
  // Bytes [start, start + n) of the Bloom filter, one shard's after the other's.
  size_t bloom_bytes() const { return shards_.size() * bloom_share(); }
  void read_bloom(size_t start, size_t n, uint8_t* out) const;
  void write_bloom(size_t start, size_t n, const uint8_t* in);

  // Begins a new generation of changes; returns the mark that ends the one before.
  uint64_t mark();
  uint64_t oldest_mark() const { return generation_base_; }
  void decay(float factor);
  size_t shrink(const Shrink& rule);  // returns how many rows went

 private:
  static constexpr int kShards = 32;
  static size_t shard_of(uint64_t hash) { return hash & (kShards - 1); }
  size_t bloom_share() const { return shards_.empty() ? 0 : shards_[0].bloom.size(); }
  template <typename Copy>
  void each_bloom_stretch(size_t start, size_t n, Copy copy) const;

  bool is_padding(int64_t id) const { return spec_.has_padding && id == spec_.padding; }
  char* fixed_record(int64_t row) const {
    return pages_.data() + static_cast<size_t>(row) * layout_.stride;
  }
  char* slab_record(const Shard& shard, uint32_t row) const {
    const size_t place = size_t{row} + shard.offset;
    return shard.slabs[place >> slab_shift_].data() +
           (place & ((size_t{1} << slab_shift_) - 1)) * layout_.stride;
  }
  void begin_record(char* record, int64_t id) const;
  void initial_values(int64_t id, float* out) const;
  void look_up(const int64_t* ids, size_t n, uint64_t* hashes, uint32_t* rows) const;
  void find(const int64_t* ids, size_t n, const char** records, uint32_t* rows = nullptr) const;
  void prefetch_values(const char* record) const {
    const size_t bytes = layout_.state < 512 ? layout_.state : 512;  // the hardware does the rest
    for (size_t b = 0; b < bytes; b += 64) prefetch_read(record + b);
  }
  void prefetch_record(const char* record) const {
    const size_t bytes = layout_.stride < 512 ? layout_.stride : 512;  // likewise
    for (size_t b = 0; b < bytes; b += 64) prefetch_read(record + b);
  }
  void find_or_insert(const Push& push, Scratch& s);
  // take(i, record) for each of ids [n] of a growing table, in order; null: it has no row.
  template <typename Take>
  void each_record(const int64_t* ids, size_t n, Take take) const;
  void apply(Scratch& s, const float* grads, const float* weights, const StepNumbers& now,
             uint64_t step);
  uint32_t insert(Shard& shard, int64_t id, uint64_t hash);
  char* admitted_record(Shard& shard, uint32_t row, const Push& push, int64_t id, uint64_t hash,
                        float shows, float clicks);
  bool admit(Shard& shard, int64_t id, uint64_t hash, Counters& counters);
  void forget_pending(Shard& shard, int64_t id, uint64_t hash);
  void drop(Shard& shard, int64_t id, uint32_t row);
  float score(const Counters& c) const {
    return spec_.show_coefficient * (c.show - c.click) + spec_.click_coefficient * c.click;
  }
  Counters counters_at(const char* record) const;
  void set_counters(char* record, const Counters& counters) const;
  float norm(const char* record) const;
  void note_change(std::vector<uint8_t>& changed, size_t row) const;

  Spec spec_;
  Layout layout_;
  std::vector<size_t> state_sizes_;  // floats of each piece of state
  std::vector<float> state_begin_;   // what each piece holds at first
  Pages pages_;                      // fixed tables
  std::vector<Shard> shards_;        // growing tables
  mutable PullCache pull_cache_;     // likewise
  int slab_shift_ = 0;
  // Changes are kept from the first mark on: row -> generation, in one byte.
  uint64_t generation_base_ = 0;
  uint8_t generation_ = 0;         // 0: no mark yet
  std::vector<uint8_t> changed_;  // fixed tables
  std::vector<std::pair<int64_t, uint64_t>> dropped_;  // id, absolute generation
  SharedLock guard_;
};

}  // namespace shoal
