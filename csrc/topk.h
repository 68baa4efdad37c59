// The k largest scores of each row of a tile, block of columns after block, while a block is still in
// the cache: a row keeps those above its k-th largest so far, which few of the scores are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

struct TopK {
  size_t rows = 0, k = 0, room = 0;  // room: kept of a row before the k largest are told apart, > k
  float* values = nullptr;           // [rows, room]
  int32_t* places = nullptr;         // [rows, room]
  int32_t* counts = nullptr;         // [rows], zeros at first
  float* limits = nullptr;           // [rows], -inf at first
};

// Scores [rows, columns], the next row `stride` behind; the first column is item number `first`.
// -inf and NaN are never kept.
void topk_add(const TopK& kept, const float* scores, size_t stride, size_t columns, int32_t first);

// What may not come, row by row: places masked[offsets[r]] to masked[offsets[r + 1]], ascending.
struct Masked {
  const int64_t* offsets = nullptr;  // [rows + 1]
  const int32_t* places = nullptr;
};

constexpr size_t kTopKBlock = 256;  // columns of a block

// The same of products: queries [rows, dim] times columns that lie in blocks [dim, kTopKBlock], the
// last one filled up. A few rows of scores at a time, which never leave the cache.
void topk_products(const TopK& kept, const float* queries, size_t dim, const float* blocks,
                   size_t columns, const Masked& masked);

// The best first (of equal ones the lower place): values [rows, k] and places [rows, k]; -inf and 0
// where a row has fewer.
void topk_finish(const TopK& kept, float* values, int64_t* places);

}  // namespace shoal
