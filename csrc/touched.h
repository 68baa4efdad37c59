// Rows of a table that a process's lookups touch: found before their gradients are there, so that
// others can be told how many they are; then written as sums, one for each row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

struct Ids {
  const int64_t* at = nullptr;
  size_t n = 0;
};

class Touched {
 public:
  // limit: ids are 0 .. limit-1; below 0: they are any.
  Touched(const std::vector<Ids>& lookups, int64_t limit);

  // Distinct ids; ascending, unless there are few among very many that could be.
  const std::vector<int64_t>& ids() const { return ids_; }
  const std::vector<size_t>& lengths() const { return lengths_; }  // of the lookups

  // out [ids, dim]: the sum of each id's values, in order of arrival, multiplied. values[k] has a
  // row for every id of lookup k.
  void write_sums(const std::vector<const float*>& values, size_t dim, float scale, float* out,
                  int threads) const;

 private:
  std::vector<size_t> lengths_;
  std::vector<int64_t> ids_, places_;  // places: of the lookups' ids among the distinct ones
  std::vector<uint32_t> times_;        // how often each of these comes
};

}  // namespace shoal
