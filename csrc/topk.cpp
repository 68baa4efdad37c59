#include "topk.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "floats.h"
#include "softmax_kernels.h"

namespace shoal {
namespace {

// Scores that are looked at together: a group, and where it has one to keep, the parts of it.
constexpr size_t kGroup = 64, kPart = 8;

typedef float Four __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

constexpr float kLeast = -std::numeric_limits<float>::infinity();

struct One {
  float value;
  int32_t place;
};

bool better(const One& a, const One& b) {
  return a.value > b.value || (a.value == b.value && a.place < b.place);
}

// Whether one of n scores is above the limit. Spelled in vectors: compilers make a loop of it else.
template <size_t n>
bool any_above(const float* scores, float limit) {
  const Four limits = {limit, limit, limit, limit};
  Ints found = {0, 0, 0, 0};
  for (size_t j = 0; j < n; j += 4) {
    Four four;
    std::memcpy(&four, scores + j, sizeof four);
    found |= four > limits;
  }
  uint64_t halves[2];
  std::memcpy(halves, &found, sizeof halves);
  return (halves[0] | halves[1]) != 0;
}

class Row {
 public:
  Row(const TopK& kept, size_t row, std::vector<One>& scratch)
      : k_(kept.k),
        room_(kept.room),
        values_(kept.values + row * kept.room),
        places_(kept.places + row * kept.room),
        count_(kept.counts[row]),
        limit_(kept.limits[row]),
        scratch_(scratch) {}

  float limit() const { return limit_; }

  void offer(float value, int32_t place) {
    if (!(value > limit_)) return;
    values_[count_] = value;
    places_[count_] = place;
    if (++count_ == static_cast<int32_t>(room_)) shrink();
  }

  // Keep the k best; what comes later must be above the least of them.
  void shrink() {
    load();
    std::nth_element(scratch_.begin(), scratch_.begin() + (k_ - 1), scratch_.end(), better);
    limit_ = scratch_[k_ - 1].value;
    count_ = static_cast<int32_t>(k_);
    for (size_t i = 0; i < k_; ++i) {
      values_[i] = scratch_[i].value;
      places_[i] = scratch_[i].place;
    }
  }

  const std::vector<One>& sorted() {
    load();
    const size_t wanted = std::min(k_, scratch_.size());
    std::partial_sort(scratch_.begin(), scratch_.begin() + wanted, scratch_.end(), better);
    scratch_.resize(wanted);
    return scratch_;
  }

 private:
  void load() {
    scratch_.resize(count_);
    for (int32_t i = 0; i < count_; ++i) {
      // NaN is in no order: sorting would lose its way. It is never offered, but may be given.
      const float value = values_[i] == values_[i] ? values_[i] : kLeast;
      scratch_[i] = {value, places_[i]};
    }
  }

  size_t k_, room_;
  float* values_;
  int32_t* places_;
  int32_t& count_;
  float& limit_;
  std::vector<One>& scratch_;
};

void scan(Row& row, const float* scores, size_t columns, int32_t first) {
  size_t c = 0;
  for (; c + kGroup <= columns; c += kGroup) {
    if (!any_above<kGroup>(scores + c, row.limit())) continue;
    for (size_t part = c; part < c + kGroup; part += kPart) {
      if (!any_above<kPart>(scores + part, row.limit())) continue;
      for (size_t j = part; j < part + kPart; ++j)
        row.offer(scores[j], first + static_cast<int32_t>(j));
    }
  }
  for (; c < columns; ++c) row.offer(scores[c], first + static_cast<int32_t>(c));
}

}  // namespace

void topk_add(const TopK& kept, const float* scores, size_t stride, size_t columns, int32_t first) {
  std::vector<One> scratch;
  scratch.reserve(kept.room);
  for (size_t r = 0; r < kept.rows; ++r, scores += stride) {
    Row row(kept, r, scratch);
    scan(row, scores, columns, first);
  }
}

void topk_products(const TopK& kept, const float* queries, size_t dim, const float* blocks,
                   size_t columns, const Masked& masked) {
  constexpr size_t kHigh = 16;  // rows of scores at a time: 16 KiB
  const SoftmaxKernels& kernels = softmax_kernels();
  Floats scores(kHigh * kTopKBlock), edge(dim * kernels.columns);
  std::vector<One> scratch;
  scratch.reserve(kept.room);
  std::vector<int64_t> next(masked.offsets, masked.offsets + kept.rows);
  for (size_t first = 0; first < columns; first += kTopKBlock, blocks += dim * kTopKBlock) {
    const size_t wide = std::min(kTopKBlock, columns - first);
    for (size_t begin = 0; begin < kept.rows; begin += kHigh) {
      const size_t high = std::min(kHigh, kept.rows - begin);
      kernels.product(queries + begin * dim, blocks, scores.data(), high, dim, kTopKBlock,
                      edge.data());
      for (size_t i = 0; i < high; ++i) {
        float* line = scores.data() + i * kTopKBlock;
        const size_t r = begin + i;
        for (int64_t& n = next[r]; n < masked.offsets[r + 1]; ++n) {
          const auto place = static_cast<size_t>(masked.places[n]);
          if (place >= first + wide) break;
          if (place >= first) line[place - first] = kLeast;
        }
        Row row(kept, r, scratch);
        scan(row, line, wide, static_cast<int32_t>(first));
      }
    }
  }
}

void topk_finish(const TopK& kept, float* values, int64_t* places) {
  std::vector<One> scratch;
  scratch.reserve(kept.room);
  for (size_t r = 0; r < kept.rows; ++r, values += kept.k, places += kept.k) {
    Row row(kept, r, scratch);
    const auto& best = row.sorted();
    for (size_t i = 0; i < kept.k; ++i) {
      values[i] = i < best.size() ? best[i].value : kLeast;
      places[i] = i < best.size() ? best[i].place : 0;
    }
  }
}

}  // namespace shoal
