#include "layers.h"

#include <algorithm>
#include <vector>

#include "memory.h"
#include "threads.h"

namespace shoal {
namespace {

typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef int32_t Bits __attribute__((vector_size(16), aligned(4)));

inline Four load(const float* from) { return *reinterpret_cast<const Four*>(from); }
inline void store(float* to, Four x) { *reinterpret_cast<Four*>(to) = x; }

constexpr size_t kRows = 128;   // of a block, whose sums are made together
constexpr size_t kPart = 1024;  // values of a mask at a time: it stays in the first cache

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

}  // namespace

void activate(float* x, const float* bias, size_t rows, size_t width, const Dropout* drop,
              uint64_t first, int threads) {
  for_blocks(blocks_of(rows, kRows), kRows * width, threads, [&](size_t block) {
    const size_t begin = block * kRows, end = std::min(rows, begin + kRows);
    for (size_t r = begin; r < end; ++r) {
      float* __restrict to = x + r * width;
      for (size_t c = 0; c < width; ++c) {
        const float made = to[c] + bias[c];
        to[c] = made > 0 ? made : 0.0f;
      }
    }
    if (drop == nullptr) return;
    float mask[kPart];
    const Dropout alone{drop->key, drop->p, 1};
    for (size_t done = begin * width; done < end * width; done += kPart) {
      const size_t n = std::min(kPart, end * width - done);
      dropout_mask(alone, first + done, n, mask);
      float* __restrict to = x + done;
      for (size_t i = 0; i < n; ++i) to[i] *= mask[i];
    }
  });
}

void activate_back(const float* grad, const float* made, size_t rows, size_t width, float* back,
                   float* sums, int threads) {
  const size_t blocks = blocks_of(rows, kRows);
  std::vector<float> parts(blocks * width, 0.0f);
  for_blocks(blocks, kRows * width, threads, [&](size_t block) {
    float* __restrict sum = parts.data() + block * width;
    for (size_t r = block * kRows; r < std::min(rows, (block + 1) * kRows); ++r) {
      const float* __restrict g = grad + r * width;
      const float* __restrict m = made + r * width;
      float* __restrict to = back + r * width;
      size_t c = 0;
      for (; c + 4 <= width; c += 4) {  // by hand: GCC would branch at every value
        const Four kept = (Four)((Bits)load(g + c) & (Bits)(load(m + c) > 0));
        store(to + c, kept);
        store(sum + c, load(sum + c) + kept);
      }
      for (; c < width; ++c) {
        to[c] = m[c] > 0 ? g[c] : 0.0f;
        sum[c] += to[c];
      }
    }
  });
  std::fill_n(sums, width, 0.0f);
  for (size_t block = 0; block < blocks; ++block)
    for (size_t c = 0; c < width; ++c) sums[c] += parts[block * width + c];
}

namespace {

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

void spread_bags(const Bags& bags, const float* grads, size_t places, float* out) {
  const size_t dim = bags.dim;
  std::fill_n(out, static_cast<size_t>(bags.starts[0]) * dim, 0.0f);
  for (size_t k = 0; k < bags.count; ++k) {
    const float* __restrict from = grads + k * dim;
    for (int64_t p = bags.starts[k]; p < bags.starts[k + 1]; ++p) {
      float* __restrict to = out + static_cast<size_t>(p) * dim;
      const float weight = bags.weights == nullptr ? 1.0f : bags.weights[p];
      for (size_t c = 0; c < dim; ++c) to[c] = weight * from[c];
    }
  }
  const auto end = static_cast<size_t>(bags.starts[bags.count]);
  std::fill_n(out + end * dim, (places - end) * dim, 0.0f);
}

void share_bags(const Bags& bags, int64_t padding, float* shares) {
  for (size_t k = 0; k < bags.count; ++k) {
    int64_t found = 0;
    for (int64_t p = bags.starts[k]; p < bags.starts[k + 1]; ++p) found += bags.ids[p] != padding;
    shares[k] = 1.0f / static_cast<float>(std::max<int64_t>(found, 1));
  }
}

namespace {

// So many samples stand side by side in vectors, each value of theirs a column.
constexpr size_t kSide = 16;
struct Column {
  Four x[kSide / 4];
};

// Values [samples, n] of up to kSide samples as columns [n], and back; `next`: from one to the next.
void to_columns(const float* x, size_t next, size_t samples, size_t n, Column* out) {
  for (size_t s = 0; s < kSide; ++s)
    for (size_t i = 0; i < n; ++i)
      reinterpret_cast<float*>(out + i)[s] = s < samples ? x[s * next + i] : 0.0f;
}

void from_columns(const Column* columns, size_t next, size_t samples, size_t n, float* out) {
  for (size_t s = 0; s < samples; ++s)
    for (size_t i = 0; i < n; ++i)
      out[s * next + i] = reinterpret_cast<const float*>(columns + i)[s];
}

// All vectors of a block of samples as columns [count, dim].
void vector_columns(const Vectors& vectors, size_t begin, size_t samples, Column* out) {
  for (size_t i = 0; i < vectors.count; ++i)
    to_columns(vectors.x + i * vectors.apart + begin * vectors.next, vectors.next, samples,
               vectors.dim, out + i * vectors.dim);
}

template <class Work>
void for_samples(const Vectors& vectors, int threads, const Work& work) {
  const size_t values = kSide * vectors.count * vectors.count * vectors.dim;
  for_blocks(blocks_of(vectors.samples, kSide), values, threads, [&](size_t block) {
    work(block * kSide, std::min(kSide, vectors.samples - block * kSide));
  });
}

}  // namespace

void dots(const Vectors& vectors, float* out, int threads) {
  const size_t n = vectors.count, dim = vectors.dim, pairs = n * (n - 1) / 2;
  for_samples(vectors, threads, [&](size_t begin, size_t samples) {
    thread_local std::vector<Column> columns;
    columns.resize(n * dim + pairs);
    Column* const made = columns.data() + n * dim;
    vector_columns(vectors, begin, samples, columns.data());
    for (size_t i = 1, pair = 0; i < n; ++i)
      for (size_t j = 0; j < i; ++j, ++pair) {
        const Column *left = columns.data() + i * dim, *right = columns.data() + j * dim;
        Column sum = {};
        for (size_t c = 0; c < dim; ++c)
          for (size_t v = 0; v < kSide / 4; ++v) sum.x[v] += left[c].x[v] * right[c].x[v];
        made[pair] = sum;
      }
    from_columns(made, pairs, samples, pairs, out + begin * pairs);
  });
}

void dots_back(const Vectors& vectors, const float* grads, float* out, int threads) {
  const size_t n = vectors.count, dim = vectors.dim, pairs = n * (n - 1) / 2;
  for_samples(vectors, threads, [&](size_t begin, size_t samples) {
    thread_local std::vector<Column> columns;
    columns.resize(n * dim + pairs + dim);
    Column* const given = columns.data() + n * dim;
    Column* const back = given + pairs;
    vector_columns(vectors, begin, samples, columns.data());
    to_columns(grads + begin * pairs, pairs, samples, pairs, given);
    for (size_t i = 0; i < n; ++i) {
      std::fill_n(back, dim, Column{});
      for (size_t j = 0; j < n; ++j) {
        if (j == i) continue;
        const size_t high = std::max(i, j), low = std::min(i, j);
        const Column grad = given[high * (high - 1) / 2 + low];
        const Column* other = columns.data() + j * dim;
        for (size_t c = 0; c < dim; ++c)
          for (size_t v = 0; v < kSide / 4; ++v) back[c].x[v] += grad.x[v] * other[c].x[v];
      }
      from_columns(back, vectors.next, samples, dim,
                   out + i * vectors.apart + begin * vectors.next);
    }
  });
}

namespace {

// work(at, from, n) for stretches of n values that lie together in every vector: `at` where they
// begin among [samples, dim], `from` in the first vector.
template <class Work>
void for_stretches(const Vectors& vectors, const Work& work) {
  const size_t values = vectors.samples * vectors.dim;
  const size_t most = vectors.next == vectors.dim ? kPart : std::min(kPart, vectors.dim);
  for (size_t at = 0, n; at < values; at += n) {
    const size_t sample = at / vectors.dim, column = at % vectors.dim;
    const size_t rest = vectors.next == vectors.dim ? values - at : vectors.dim - column;
    n = std::min(most, rest);
    work(at, sample * vectors.next + column, n);
  }
}

}  // namespace

void pair_products(const Vectors& vectors, float* out, float* total) {
  for_stretches(vectors, [&](size_t at, size_t from, size_t n) {
    float sums[kPart], squares[kPart];
    std::fill_n(sums, n, 0.0f);
    std::fill_n(squares, n, 0.0f);
    for (size_t i = 0; i < vectors.count; ++i) {
      const float* x = vectors.x + i * vectors.apart + from;
      for (size_t c = 0; c < n; ++c) {
        sums[c] += x[c];
        squares[c] += x[c] * x[c];
      }
    }
    for (size_t c = 0; c < n; ++c) total[at + c] = sums[c];
    for (size_t c = 0; c < n; ++c) out[at + c] = 0.5f * (sums[c] * sums[c] - squares[c]);
  });
}

void pair_products_back(const Vectors& vectors, const float* total, const float* grads,
                        float* out) {
  for_stretches(vectors, [&](size_t at, size_t from, size_t n) {
    for (size_t i = 0; i < vectors.count; ++i) {
      const float* __restrict x = vectors.x + i * vectors.apart + from;
      const float* __restrict sum = total + at;
      const float* __restrict grad = grads + at;
      float* __restrict to = out + i * vectors.apart + from;
      for (size_t c = 0; c < n; ++c) to[c] = (sum[c] - x[c]) * grad[c];
    }
  });
}

}  // namespace shoal
