// What an exchange of rows between processes needs besides the rows: distinct codes, and sums.
#include "route.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "memory.h"
#include "threads.h"

namespace shoal {
int64_t first_outside_rows(const int64_t* ids, size_t n, int64_t rows) {
  uint64_t largest = 0;  // as unsigned, so that a negative id is a large one
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<uint64_t>(ids[i]));
  if (largest < static_cast<uint64_t>(rows)) return -1;
  for (size_t i = 0; i < n; ++i)
    if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows)) return static_cast<int64_t>(i);
  return -1;
}

// Codes as shoal/embedding/rows/placement.py defines them.
void codes_of(const int64_t* ids, size_t n, int64_t rows, int64_t padding, int64_t factor,
              int64_t* out) {
  if (factor == 1)
    std::copy_n(ids, n, out);
  else
    for (size_t i = 0; i < n; ++i)
      out[i] = static_cast<int64_t>(static_cast<uint64_t>(ids[i]) * static_cast<uint64_t>(factor) %
                                    static_cast<uint64_t>(rows));
  if (padding >= 0)
    for (size_t i = 0; i < n; ++i)
      if (ids[i] == padding) out[i] = rows;
}

size_t distinct_codes(const int64_t* codes, size_t n, int64_t limit, int64_t* unique,
                      int64_t* inverse) {
  thread_local std::vector<uint8_t> marks;   // all zero between calls
  thread_local std::vector<uint32_t> place;  // of marked codes only
  const auto slots = static_cast<size_t>(limit + 7) / 8 * 8;
  if (marks.size() < slots) {
    marks.resize(slots);
    place.resize(slots);
  }
  uint8_t* mark = marks.data();
  for (size_t i = 0; i < n; ++i) mark[codes[i]] = 1;
  size_t count = 0;
  for (size_t base = 0; base < slots; base += 8) {
    uint64_t eight;
    std::memcpy(&eight, mark + base, 8);
    if (eight == 0) continue;
    for (size_t k = base; k < base + 8; ++k)
      if (mark[k]) {
        place[k] = static_cast<uint32_t>(count);
        unique[count++] = static_cast<int64_t>(k);
      }
    std::memset(mark + base, 0, 8);
  }
  for (size_t i = 0; i < n; ++i) inverse[i] = place[static_cast<size_t>(codes[i])];
  return count;
}

void add_rows(float* total, size_t rows, size_t dim, const int64_t* places, const float* grads,
              size_t n, bool begun, const IdBags& bags, int threads) {
  // Few parts for little work; each part has its own rows, so sums keep the order of arrival.
  const size_t most = n * dim / (size_t{1} << 16) + 1;
  const int parts = static_cast<int>(std::min<size_t>(most, static_cast<size_t>(threads)));
  constexpr size_t ahead = 8;
  Pool::run(threads, parts, [&](int part) {
    const auto low = static_cast<int64_t>(rows * static_cast<size_t>(part) / static_cast<size_t>(parts));
    const auto high = static_cast<int64_t>(rows * static_cast<size_t>(part + 1) / static_cast<size_t>(parts));
    std::vector<uint8_t> seen(static_cast<size_t>(high - low), begun ? 1 : 0);
    size_t bag = 0;
    for (size_t i = 0; i < n; ++i) {
      if (i + ahead < n) {
        const char* next = reinterpret_cast<const char*>(total + static_cast<size_t>(places[i + ahead]) * dim);
        for (size_t b = 0; b < dim * sizeof(float) && b < 512; b += 64) prefetch_write(next + b);
      }
      if (bags.starts != nullptr)
        while (bags.starts[bag + 1] <= static_cast<int64_t>(i)) ++bag;
      const int64_t row = places[i];
      if (row < low || row >= high) continue;
      float* to = total + static_cast<size_t>(row) * dim;
      const float* from = grads + (bags.starts == nullptr ? i : bag) * dim;
      if (bags.weights != nullptr) {
        const float weight = bags.weights[i];
        const bool first = !seen[static_cast<size_t>(row - low)];
        seen[static_cast<size_t>(row - low)] = 1;
        for (size_t c = 0; c < dim; ++c) to[c] = (first ? 0.0f : to[c]) + weight * from[c];
      } else if (seen[static_cast<size_t>(row - low)]) {
        for (size_t c = 0; c < dim; ++c) to[c] += from[c];
      } else {
        seen[static_cast<size_t>(row - low)] = 1;
        std::memcpy(to, from, dim * sizeof(float));
      }
    }
    for (int64_t row = low; row < high; ++row)
      if (!seen[static_cast<size_t>(row - low)])
        std::memset(total + static_cast<size_t>(row) * dim, 0, dim * sizeof(float));
  });
}

}  // namespace shoal
