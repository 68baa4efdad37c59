// Index: id -> row number, for tables that grow.
//
// Open addressing with linear probing over buckets of five that fill a cache line each: most
// lookups then cost one miss. The bucket of a hash is its top bits scaled to the capacity,
// so buckets ascend with the hash whatever the capacity: growing means walking the old array from
// the front and appending to the new one. That walk is spread over later inserts. Everything
// below `frontier_` has moved; it only ever stands behind an empty slot, so one comparison
// says which array a hash belongs to. Pages of the old array go back to the kernel as it passes.
#pragma once

#include <cstdint>
#include <cstring>

#include "memory.h"
#include "random.h"

namespace shoal {

constexpr uint32_t kNoRow = 0xFFFFFFFFu;

inline uint64_t hash_id(int64_t id) { return mix(static_cast<uint64_t>(id) + kIncrement); }

class Index {
 public:
  static constexpr size_t kFirst = 16;  // buckets to begin with, or a few more
  explicit Index(size_t first = kFirst) : first_(first) {}
  size_t size() const { return size_; }
  // Memory in use: pages of a growing index come into being as the walk reaches them.
  size_t bytes() const {
    const size_t touched = old().slots == 0 ? fresh().slots : fresh().slots * frontier_ / old().slots;
    return (touched + old().slots - frontier_) / kBucket * sizeof(Bucket);
  }

  static constexpr size_t kBucket = 5;
  struct Bucket {
    int64_t id[kBucket];
    uint32_t row[kBucket];  // row number + 1; 0: empty
    uint32_t spare;
  };
  static_assert(sizeof(Bucket) == 64, "a bucket is a cache line");

  const Bucket* first_bucket(uint64_t hash) const {
    static const Bucket none = {};
    const Array& array = array_of(hash);
    return array.slots == 0 ? &none : &array.bucket(array.home_bucket(hash));
  }
  static uint32_t find(int64_t id, const Bucket* bucket) {
    uint32_t row = find_in(id, *bucket);
    while (goes_on(row, *bucket)) row = find_in(id, *++bucket);
    return row;
  }
  uint32_t find(int64_t id, uint64_t hash) const { return find(id, first_bucket(hash)); }

  // Rows of up to kMany ids, of any indexes, given their first buckets (which are moved on).
  static constexpr size_t kMany = 64;
  static void find_all(const int64_t* ids, const Bucket** buckets, size_t n, uint32_t* rows) {
    prefetch_all(buckets, n);
    size_t further[kMany + 1], left = 0;  // one id in ten is not in its first bucket
    for (size_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch_read(buckets[i + kAhead]);
      rows[i] = find_in(ids[i], *buckets[i]);
      const size_t more = goes_on(rows[i], *buckets[i]) ? 1 : 0;
      prefetch_read(buckets[i] += more);
      further[left] = i;
      left += more;
    }
    for (size_t k = 0; k < left; ++k)
      rows[further[k]] = find(ids[further[k]], buckets[further[k]]);
  }

  // Adds an id that is not there.
  void insert(int64_t id, uint64_t hash, uint32_t row) {
    if (size_ + 1 > limit_) grow();
    move_some(kMovesPerInsert);
    if (!place(array_of(hash), id, hash, row)) {
      move_some(old().slots);
      while (!place(fresh(), id, hash, row)) widen();
    }
    ++size_;
  }

  // Takes out an id that is there, closing the gap so that runs stay whole.
  void erase(int64_t id, uint64_t hash) {
    Array& array = array_of(hash);
    size_t gap = array.home(hash);
    while (array.id(gap) != id || array.row(gap) == 0) ++gap;
    for (size_t slot = gap + 1; slot < array.slots && array.row(slot) != 0; ++slot) {
      if (array.home(hash_id(array.id(slot))) <= gap) {
        array.set(gap, array.id(slot), array.row(slot));
        gap = slot;
      }
    }
    array.set(gap, 0, 0);
    --size_;
  }

  // Calls visit(id, row) for every entry.
  template <typename Visit>
  void each(Visit visit) const {
    for (size_t slot = frontier_; slot < old().slots; ++slot)
      if (old().row(slot) != 0) visit(old().id(slot), old().row(slot) - 1);
    for (size_t slot = 0; slot < fresh().slots; ++slot)
      if (fresh().row(slot) != 0) visit(fresh().id(slot), fresh().row(slot) - 1);
  }

 private:
  static constexpr size_t kTail = 16;               // buckets
  static constexpr size_t kMovesPerInsert = 16;     // 6 would do to end before the next growth
  static constexpr size_t kReleaseSlots = kBucket << 15;  // 2 MiB

  // Slots are numbered through all buckets; a hash's home is the first slot of its bucket.
  struct Array {
    Pages pages;
    size_t capacity = 0;  // buckets that are homes
    size_t slots = 0;     // of these and of a tail, so that runs never wrap around

    Bucket& bucket(size_t b) const { return reinterpret_cast<Bucket*>(pages.data())[b]; }
    size_t home_bucket(uint64_t hash) const { return ((hash >> 32) * capacity) >> 32; }
    size_t home(uint64_t hash) const { return home_bucket(hash) * kBucket; }
    int64_t id(size_t slot) const { return bucket(slot / kBucket).id[slot % kBucket]; }
    uint32_t row(size_t slot) const { return bucket(slot / kBucket).row[slot % kBucket]; }
    void set(size_t slot, int64_t id, uint32_t row) {
      bucket(slot / kBucket).id[slot % kBucket] = id;
      bucket(slot / kBucket).row[slot % kBucket] = row;
    }
    void allocate(size_t buckets, size_t tail) {
      capacity = buckets;
      slots = (buckets + tail) * kBucket;
      pages = Pages((buckets + tail + 1) * sizeof(Bucket));  // the last one stays empty
    }
  };

  Array& old() { return arrays_[0]; }
  const Array& old() const { return arrays_[0]; }
  Array& fresh() { return arrays_[1]; }
  const Array& fresh() const { return arrays_[1]; }

  static uint32_t find_in(int64_t id, const Bucket& bucket) {
    uint32_t found = 0;  // without branches: where in the bucket an id lies cannot be guessed
    for (size_t k = 0; k < kBucket; ++k)
      found |= bucket.row[k] & (0u - static_cast<uint32_t>(bucket.id[k] == id));
    return found - 1;  // kNoRow if there is none
  }
  // Whether an id that a bucket does not hold may be in the next: buckets fill from the front,
  // and there is an empty one at the end.
  static bool goes_on(uint32_t row, const Bucket& bucket) {
    return (row == kNoRow) & (bucket.row[kBucket - 1] != 0);
  }

  const Array& array_of(uint64_t hash) const {
    // Without a branch: during a walk nobody can guess which of the two it is.
    const bool moved = (old().slots == 0) | (old().home(hash) < frontier_);
    return arrays_[moved];
  }
  Array& array_of(uint64_t hash) {
    return const_cast<Array&>(static_cast<const Index*>(this)->array_of(hash));
  }

  static bool place(Array& array, int64_t id, uint64_t hash, uint32_t row) {
    for (size_t slot = array.home(hash); slot < array.slots; ++slot) {
      if (array.row(slot) != 0) continue;
      array.set(slot, id, row + 1);
      return true;
    }
    return false;
  }

  // At most 3/4 full; a quarter larger each time keeps it above 3/5: 17 to 22 bytes per row.
  void grow() {
    move_some(old().slots);
    size_t capacity = fresh().capacity == 0 ? first_ : fresh().capacity + fresh().capacity / 4;
    if (fresh().capacity != 0 && fresh().capacity < (kFirst << 2)) capacity = fresh().capacity * 2;
    old() = std::move(fresh());
    frontier_ = 0;
    fresh() = Array();
    fresh().allocate(capacity, tail_);
    limit_ = kBucket * capacity / 4 * 3;
  }

  void move_some(size_t slots) {
    if (old().slots == 0) return;
    size_t left = slots;
    const size_t begin = frontier_;
    while (frontier_ < old().slots) {
      const uint32_t row = old().row(frontier_);
      if (row == 0) {
        if (left == 0) break;  // the frontier may rest only on an empty slot
      } else {
        const int64_t id = old().id(frontier_);
        while (!place(fresh(), id, hash_id(id), row - 1)) widen();
      }
      ++frontier_;
      if (left > 0) --left;
    }
    if (frontier_ == old().slots) {
      old() = Array();
      frontier_ = 0;
    } else if (frontier_ / kReleaseSlots != begin / kReleaseSlots) {
      old().pages.release(begin / kReleaseSlots * kReleaseSlots / kBucket * sizeof(Bucket),
                         frontier_ / kReleaseSlots * kReleaseSlots / kBucket * sizeof(Bucket));
    }
  }

  // A run reached the end of the array. It takes many ids whose hashes agree in 32 bits: no
  // accident, but whoever chooses the ids must get a slow table, not a broken one.
  void widen() {
    Array wider;
    for (bool fits = false; !fits;) {
      tail_ *= 4;
      wider = Array();
      wider.allocate(fresh().capacity, tail_);
      fits = true;
      for (size_t slot = 0; fits && slot < fresh().slots; ++slot)
        if (fresh().row(slot) != 0)
          fits = place(wider, fresh().id(slot), hash_id(fresh().id(slot)), fresh().row(slot) - 1);
    }
    fresh() = std::move(wider);
  }

  Array arrays_[2];
  size_t frontier_ = 0;
  size_t size_ = 0, limit_ = 0, tail_ = kTail, first_;
};

}  // namespace shoal
