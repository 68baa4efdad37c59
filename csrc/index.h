// Index: id -> row number, for tables that grow.
//
// Open addressing with linear probing. The slot of a hash is its top bits scaled to the capacity,
// so slots ascend with the hash whatever the capacity: growing means walking the old array from
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
  size_t size() const { return size_; }
  size_t bytes() const { return new_.slots * kSlot + (old_.slots - frontier_) * kSlot; }

  void prefetch(uint64_t hash) const {
    const Array& array = array_of(hash);
    if (array.slots != 0) prefetch_read(array.pages.data() + array.home(hash) * kSlot);
  }

  uint32_t find(int64_t id, uint64_t hash) const {
    const Array& array = array_of(hash);
    if (array.slots == 0) return kNoRow;
    for (size_t slot = array.home(hash); slot < array.slots; ++slot) {
      const uint32_t row = array.row(slot);
      if (row == 0) return kNoRow;
      if (array.id(slot) == id) return row - 1;
    }
    return kNoRow;
  }

  // Adds an id that is not there.
  void insert(int64_t id, uint64_t hash, uint32_t row) {
    if (size_ + 1 > limit_) grow();
    move_some(kMovesPerInsert);
    while (!place(array_of(hash), id, hash, row)) {  // its run hit the end of the array: rare
      grow();
      move_some(old_.slots);
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
    for (size_t slot = frontier_; slot < old_.slots; ++slot)
      if (old_.row(slot) != 0) visit(old_.id(slot), old_.row(slot) - 1);
    for (size_t slot = 0; slot < new_.slots; ++slot)
      if (new_.row(slot) != 0) visit(new_.id(slot), new_.row(slot) - 1);
  }

 private:
  static constexpr size_t kSlot = 12;  // 8 bytes of id, 4 of row number + 1 (0: empty)
  static constexpr size_t kFirst = 64, kTail = 64;
  static constexpr size_t kMovesPerInsert = 16;  // 6 would do to end before the next growth

  struct Array {
    Pages pages;
    size_t capacity = 0;  // homes
    size_t slots = 0;     // homes and a tail, so that runs never wrap around

    size_t home(uint64_t hash) const { return ((hash >> 32) * capacity) >> 32; }
    int64_t id(size_t slot) const {
      int64_t value;
      std::memcpy(&value, pages.data() + slot * kSlot, 8);
      return value;
    }
    uint32_t row(size_t slot) const {
      uint32_t value;
      std::memcpy(&value, pages.data() + slot * kSlot + 8, 4);
      return value;
    }
    void set(size_t slot, int64_t id, uint32_t row) {
      std::memcpy(pages.data() + slot * kSlot, &id, 8);
      std::memcpy(pages.data() + slot * kSlot + 8, &row, 4);
    }
  };

  const Array& array_of(uint64_t hash) const {
    return old_.slots != 0 && old_.home(hash) >= frontier_ ? old_ : new_;
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

  // At most 3/4 full; a quarter larger each time keeps it above 3/5: 16 to 20 bytes per row.
  void grow() {
    move_some(old_.slots);
    size_t capacity = new_.capacity == 0 ? kFirst : new_.capacity + new_.capacity / 4;
    if (new_.capacity != 0 && new_.capacity < (kFirst << 6)) capacity = new_.capacity * 2;
    old_ = std::move(new_);
    frontier_ = 0;
    new_ = Array();
    new_.capacity = capacity;
    new_.slots = capacity + kTail;
    new_.pages = Pages(new_.slots * kSlot);
    limit_ = capacity - capacity / 4;
  }

  void move_some(size_t slots) {
    if (old_.slots == 0) return;
    size_t left = slots;
    const size_t begin = frontier_;
    while (frontier_ < old_.slots) {
      const uint32_t row = old_.row(frontier_);
      if (row == 0) {
        if (left == 0) break;  // the frontier may rest only on an empty slot
      } else {
        const int64_t id = old_.id(frontier_);
        if (!place(new_, id, hash_id(id), row - 1)) overflow();
      }
      ++frontier_;
      if (left > 0) --left;
    }
    if (frontier_ == old_.slots) {
      old_ = Array();
      frontier_ = 0;
    } else if (frontier_ / kReleaseSlots != begin / kReleaseSlots) {
      old_.pages.release(begin / kReleaseSlots * kReleaseSlots * kSlot,
                         frontier_ / kReleaseSlots * kReleaseSlots * kSlot);
    }
  }

  static constexpr size_t kReleaseSlots = size_t{1} << 18;  // 3 MiB

  // The new array's tail is full while the old one empties: begin a still larger one at once.
  void overflow() {
    Array larger;
    larger.capacity = new_.capacity * 2;
    larger.slots = larger.capacity + kTail;
    while (true) {
      larger.pages = Pages(larger.slots * kSlot);
      bool fits = true;
      for (size_t slot = 0; fits && slot < new_.slots; ++slot)
        if (new_.row(slot) != 0)
          fits = place(larger, new_.id(slot), hash_id(new_.id(slot)), new_.row(slot) - 1);
      if (fits) break;
      larger.slots += larger.slots / 2;
    }
    new_ = std::move(larger);
    limit_ = new_.capacity - new_.capacity / 4;
    const int64_t id = old_.id(frontier_);
    if (!place(new_, id, hash_id(id), old_.row(frontier_) - 1)) overflow();
  }

  Array old_, new_;
  size_t frontier_ = 0;
  size_t size_ = 0, limit_ = 0;
};

}  // namespace shoal
