// PullCache: which rows the last pulls found, so that a push of the same ids need not look again.
//
// A training step pushes the ids that it pulled just before, and in a large table finding a row
// costs as much as reading it. Rows keep their numbers for as long as they are held, whatever is
// inserted meanwhile; only dropping rows makes what is kept here wrong (`forget`).
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "dedupe.h"
#include "index.h"

namespace shoal {

class PullCache {
 public:
  // Ids pulled together, and for each its row or kNoRow.
  struct Stretch {
    std::vector<int64_t> ids;
    std::vector<uint32_t> rows;
    size_t n = 0;  // 0: nothing to be had here
    bool writing = false;
  };

  // For a pull, of which several may run at once: a stretch to fill until `end`. Null: none free,
  // or it would not pay.
  Stretch* begin(const int64_t* ids, size_t n) {
    if (n < kFewest || n > kMost) return nullptr;
    Stretch* mine = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      mine = &stretches_[oldest_];
      if (mine->writing) return nullptr;
      oldest_ = (oldest_ + 1) % kStretches;
      mine->writing = true;
      mine->n = 0;
    }
    at_least(mine->ids, n);
    at_least(mine->rows, n);
    std::copy_n(ids, n, mine->ids.begin());
    return mine;
  }
  void end(Stretch* mine, size_t n) {
    std::lock_guard<std::mutex> lock(mutex_);
    mine->n = n;
    mine->writing = false;
  }

  // All below: while no pull runs.
  void forget() {
    for (Stretch& stretch : stretches_) stretch.n = 0;
  }
  // Rows of the distinct ids of a push, kNoRow where they are not known. The threads of a pull
  // each left a stretch: end to end they make up the push.
  void find(const int64_t* ids, size_t n, Scratch& s) const {
    at_least(s.rows, s.distinct);
    size_t u = 0, begin = 0;
    while (const Stretch* stretch = match(ids + begin, n - begin)) {
      const size_t end = begin + stretch->n;
      for (; u < s.distinct && s.first[u] < end; ++u) {
        const size_t i = s.first[u] - begin;
        s.rows[u] = stretch->ids[i] == s.ids[u] ? stretch->rows[i] : kNoRow;
      }
      begin = end;
    }
    for (; u < s.distinct; ++u) s.rows[u] = kNoRow;
  }

 private:
  static constexpr size_t kFewest = 32, kMost = size_t{1} << 18;  // ids
  static constexpr size_t kStretches = 8;  // pulls by several threads, or of several workers

  // The newest stretch that these ids may begin with: every id is compared later on.
  const Stretch* match(const int64_t* ids, size_t n) const {
    for (size_t age = 1; age <= kStretches; ++age) {
      const Stretch& stretch = stretches_[(oldest_ + kStretches - age) % kStretches];
      const size_t last = stretch.n - 1;
      if (stretch.n != 0 && stretch.n <= n && stretch.ids[0] == ids[0] &&
          stretch.ids[last] == ids[last])
        return &stretch;
    }
    return nullptr;
  }

  Stretch stretches_[kStretches];
  size_t oldest_ = 0;
  std::mutex mutex_;
};

}  // namespace shoal
