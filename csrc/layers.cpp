#include "layers.h"

#include <algorithm>

#include "memory.h"
#include "threads.h"

namespace shoal {
namespace {

typedef float Four __attribute__((vector_size(16), aligned(4)));

inline Four load(const float* from) { return *reinterpret_cast<const Four*>(from); }
inline void store(float* to, Four x) { *reinterpret_cast<Four*>(to) = x; }

// work(number) for so many blocks of so many values each, by as many threads as pay off.
template <class Work>
void for_blocks(size_t blocks, size_t values, int threads, const Work& work) {
  constexpr size_t enough = 1 << 16;  // values that are worth another thread
  const size_t most = static_cast<size_t>(std::max(threads, 1));
  const size_t parts = std::min({std::max<size_t>(blocks * values / enough, 1), most, blocks});
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const auto p = static_cast<size_t>(part);
    for (size_t k = blocks * p / parts; k < blocks * (p + 1) / parts; ++k) work(k);
  });
}

size_t blocks_of(size_t n, size_t size) { return (n + size - 1) / size; }

// 4 * V columns of one bag: they stay in registers over all its places.
template <size_t V>
void sum_columns(const Bags& bags, int64_t begin, int64_t end, size_t column, float* out) {
  constexpr int64_t ahead = 8;
  const auto row = [&](int64_t place) {
    const int64_t id = bags.ids == nullptr ? place : bags.ids[place];
    return bags.x + static_cast<size_t>(id) * bags.dim + column;
  };
  Four sum[V] = {};
  for (int64_t p = begin; p < end; ++p) {
    if (p + ahead < end)
      for (size_t c = 0; c < 4 * V; c += 16) prefetch_read(row(p + ahead) + c);
    const float* from = row(p);
    if (bags.weights == nullptr) {
      for (size_t v = 0; v < V; ++v) sum[v] += load(from + 4 * v);
    } else {
      const float weight = bags.weights[p];
      for (size_t v = 0; v < V; ++v) sum[v] += weight * load(from + 4 * v);
    }
  }
  for (size_t v = 0; v < V; ++v) store(out + column + 4 * v, sum[v]);
}

void sum_bag(const Bags& bags, int64_t begin, int64_t end, float* out) {
  const size_t dim = bags.dim;
  size_t c = 0;
  for (; c + 64 <= dim; c += 64) sum_columns<16>(bags, begin, end, c, out);
  for (; c + 16 <= dim; c += 16) sum_columns<4>(bags, begin, end, c, out);
  for (; c + 8 <= dim; c += 8) sum_columns<2>(bags, begin, end, c, out);
  if (c < dim && dim >= 8) {  // so that they end with the row; some are made twice
    sum_columns<2>(bags, begin, end, dim - 8, out);
    return;
  }
  for (; c < dim; ++c) {
    float sum = 0;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t id = bags.ids == nullptr ? p : bags.ids[p];
      const float value = bags.x[static_cast<size_t>(id) * dim + c];
      sum += bags.weights == nullptr ? value : bags.weights[p] * value;
    }
    out[c] = sum;
  }
}

}  // namespace

void sum_bags(const Bags& bags, float* out, int threads) {
  constexpr size_t some = 16;  // bags of a block
  const auto places = static_cast<size_t>(bags.count ? bags.starts[bags.count] : 0);
  const size_t blocks = blocks_of(bags.count, some);
  for_blocks(blocks, blocks ? places * bags.dim / blocks : 0, threads, [&](size_t block) {
    for (size_t k = block * some; k < std::min(bags.count, (block + 1) * some); ++k)
      sum_bag(bags, bags.starts[k], bags.starts[k + 1], out + k * bags.dim);
  });
}

}  // namespace shoal
