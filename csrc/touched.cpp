#include "touched.h"

#include <algorithm>
#include <cstring>

#include "dedupe.h"
#include "memory.h"
#include "route.h"
#include "threads.h"

namespace shoal {
namespace {

constexpr int64_t kDense = 64;      // a slot for every code, where there are so few for each id
constexpr size_t kLeast = 1 << 16;  // values that are worth a thread
constexpr size_t kCached = 1 << 19;  // bytes of sums that stay in the cache

}  // namespace

Touched::Touched(const std::vector<Ids>& lookups, int64_t limit) {
  std::vector<int64_t> all;
  for (const Ids& some : lookups) {
    lengths_.push_back(some.n);
    all.insert(all.end(), some.at, some.at + some.n);
  }
  const size_t n = all.size();
  places_.resize(n);
  if (limit >= 0 && limit <= kDense * static_cast<int64_t>(n)) {
    ids_.resize(n);
    ids_.resize(distinct_codes(all.data(), n, limit, ids_.data(), places_.data()));
  } else {
    Scratch& s = scratch();
    distinct_ids(s, all.data(), n, [](int64_t) { return true; });
    ids_.assign(s.ids.begin(), s.ids.begin() + static_cast<ptrdiff_t>(s.distinct));
    std::copy_n(s.distinct_of.begin(), n, places_.begin());
  }
  times_.resize(ids_.size());
  for (const int64_t place : places_) ++times_[static_cast<size_t>(place)];
}

void Touched::write_sums(const std::vector<const float*>& values, size_t dim, float scale,
                         float* out, int threads) const {
  const size_t rows = ids_.size(), n = places_.size();
  const auto parts = static_cast<int>(std::min(n * dim / kLeast + 1, static_cast<size_t>(threads)));
  const bool far = rows * dim * sizeof(float) > kCached;
  Pool::run(threads, parts, [&](int part) {  // each has its own rows: the order of arrival is kept
    const auto p = static_cast<size_t>(part), whole = static_cast<size_t>(parts);
    const size_t low = rows * p / whole, high = rows * (p + 1) / whole;
    std::vector<uint32_t> left(times_.begin() + static_cast<ptrdiff_t>(low),
                               times_.begin() + static_cast<ptrdiff_t>(high));
    const int64_t* place = places_.data();
    const int64_t* const end = place + n;
    for (size_t k = 0; k < values.size(); ++k) {
      const float* from = values[k];
      for (size_t i = 0; i < lengths_[k]; ++i, ++place, from += dim) {
        if (far && place + kAhead < end) {
          const char* next = reinterpret_cast<const char*>(out + static_cast<size_t>(place[kAhead]) * dim);
          for (size_t b = 0; b < dim * sizeof(float) && b < 512; b += 64) prefetch_write(next + b);
        }
        const auto row = static_cast<size_t>(*place);
        if (row < low || row >= high) continue;
        float* to = out + row * dim;
        if (left[row - low] == times_[row])
          std::memcpy(to, from, dim * sizeof(float));
        else
          for (size_t c = 0; c < dim; ++c) to[c] += from[c];
        if (--left[row - low] == 0)  // the last one, and the row is in the cache
          for (size_t c = 0; c < dim; ++c) to[c] *= scale;
      }
    }
  });
}

}  // namespace shoal
