#include "pair_attention.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "threads.h"

namespace shoal {
namespace {

typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef int32_t Bits __attribute__((vector_size(16), aligned(4)));
constexpr size_t kSide = 16;   // samples side by side
constexpr size_t kPart = 512;  // samples whose sums one thread makes
constexpr size_t kPairs = 8;   // pairs whose products with gradients are summed together
// Rows of a product whose sums are in registers at a time.
#if defined(__aarch64__)
constexpr size_t kHigh = 4;
#else
constexpr size_t kHigh = 2;
#endif

struct Column {
  Four x[kSide / 4];
};

inline Column times(const Column& a, const Column& b) {
  Column made;
  for (size_t v = 0; v < kSide / 4; ++v) made.x[v] = a.x[v] * b.x[v];
  return made;
}

inline void add(Column& to, float factor, const Column& x) {
  for (size_t v = 0; v < kSide / 4; ++v) to.x[v] += factor * x.x[v];
}

inline void add(Column& to, const Column& a, const Column& b) {
  for (size_t v = 0; v < kSide / 4; ++v) to.x[v] += a.x[v] * b.x[v];
}

inline Column all(float x) {
  Column made;
  for (size_t v = 0; v < kSide / 4; ++v) made.x[v] = x - Four{};
  return made;
}

// a where h is above 0, else 0.
inline Column above(const Column& h, const Column& a) {
  Column made;
  for (size_t v = 0; v < kSide / 4; ++v) made.x[v] = (Four)((Bits)a.x[v] & (Bits)(h.x[v] > 0));
  return made;
}

struct Lanes {
  Four x;  // of one value's sum over samples
};

inline void add_lanes(Lanes& to, const Column& a, const Column& b) {
  Four sum = a.x[0] * b.x[0];
  for (size_t v = 1; v < kSide / 4; ++v) sum += a.x[v] * b.x[v];
  to.x += sum;
}

inline float sum_of(Four x) { return (x[0] + x[1]) + (x[2] + x[3]); }

inline Column read(const float* from, size_t n) {
  Column made = {};
  std::memcpy(&made, from, n * sizeof(float));
  return made;
}

inline void write(float* to, const Column& x, size_t n) { std::memcpy(to, &x, n * sizeof(float)); }

// made[r] += sum over c of matrix[r * down + c * across] * x[c] for R rows.
template <size_t R>
inline void some_rows(const float* matrix, size_t down, size_t columns, size_t across,
                      const Column* x, Column* made) {
  Column sums[R];
  for (size_t r = 0; r < R; ++r) sums[r] = made[r];
  for (size_t c = 0; c < columns; ++c, matrix += across)
    for (size_t r = 0; r < R; ++r) add(sums[r], matrix[r * down], x[c]);
  for (size_t r = 0; r < R; ++r) made[r] = sums[r];
}

// The same for all rows.
inline void multiply(const float* matrix, size_t rows, size_t down, size_t columns, size_t across,
                     const Column* x, Column* made) {
  size_t r = 0;
  for (; r + kHigh <= rows; r += kHigh)
    some_rows<kHigh>(matrix + r * down, down, columns, across, x, made + r);
  for (; r < rows; ++r) some_rows<1>(matrix + r * down, down, columns, across, x, made + r);
}

// to[r, c] += sum over pairs of a[pair, r] * b[pair, c] for R rows and C columns of to.
template <size_t R, size_t C>
inline void some_outer(const Column* a, size_t height, const Column* b, size_t width, size_t pairs,
                       Lanes* to) {
  Four sums[R][C] = {};
  for (size_t pair = 0; pair < pairs; ++pair, a += height, b += width)
    for (size_t v = 0; v < kSide / 4; ++v)
      for (size_t r = 0; r < R; ++r)
        for (size_t c = 0; c < C; ++c) sums[r][c] += a[r].x[v] * b[c].x[v];
  for (size_t r = 0; r < R; ++r)
    for (size_t c = 0; c < C; ++c) to[r * width + c].x += sums[r][c];
}

// The same for all: a [pairs, height], b [pairs, width].
void outer(const Column* a, size_t height, const Column* b, size_t width, size_t pairs, Lanes* to) {
  size_t r = 0;
  for (; r + kHigh <= height; r += kHigh) {
    size_t c = 0;
    for (; c + kHigh <= width; c += kHigh)
      some_outer<kHigh, kHigh>(a + r, height, b + c, width, pairs, to + r * width + c);
    for (; c < width; ++c)
      some_outer<kHigh, 1>(a + r, height, b + c, width, pairs, to + r * width + c);
  }
  for (; r < height; ++r) {
    size_t c = 0;
    for (; c + kHigh <= width; c += kHigh)
      some_outer<1, kHigh>(a + r, height, b + c, width, pairs, to + r * width + c);
    for (; c < width; ++c) some_outer<1, 1>(a + r, height, b + c, width, pairs, to + r * width + c);
  }
}

// What a thread works on: the features of a few samples and what a pair of them makes.
struct Work {
  const PairAttention& of;
  std::vector<Column> features, products, hidden;
  Column* product;  // of the pair at work, among those of several

  explicit Work(const PairAttention& given)
      : of(given), features(of.count * of.dim), products(kPairs * of.dim), hidden(of.hidden),
        product(products.data()) {}

  void begin(size_t first, size_t n) {
    for (size_t k = 0; k < features.size(); ++k)
      features[k] = read(of.columns + k * of.samples + first, n);
  }

  // The product of a pair, and what relu will be taken of.
  void make(size_t i, size_t j) {
    for (size_t c = 0; c < of.dim; ++c)
      product[c] = times(features[i * of.dim + c], features[j * of.dim + c]);
    for (size_t o = 0; o < of.hidden; ++o) hidden[o] = all(of.bias[o]);
    multiply(of.weight, of.hidden, of.dim, of.dim, 1, product, hidden.data());
  }
};

// each(part) for every part of the samples, shared by threads.
template <class Each>
void for_parts(size_t samples, int threads, const Each& each) {
  const size_t parts = (samples + kPart - 1) / kPart;
  const auto most = std::min(static_cast<size_t>(std::max(threads, 1)), parts);
  Pool::run(static_cast<int>(most), static_cast<int>(parts),
            [&](int part) { each(static_cast<size_t>(part)); });
}

}  // namespace

void pair_attention(const PairAttention& of, float* asked, float* values, int threads) {
  for_parts(of.samples, threads, [&](size_t part) {
    Work work(of);
    const size_t end = std::min(of.samples, (part + 1) * kPart);
    for (size_t first = part * kPart; first < end; first += kSide) {
      const size_t n = std::min(kSide, end - first);
      work.begin(first, n);
      size_t place = first;
      for (size_t i = 0; i < of.count; ++i)
        for (size_t j = i + 1; j < of.count; ++j, place += of.samples) {
          work.make(i, j);
          Column ask = {}, value = {};
          for (size_t o = 0; o < of.hidden; ++o)
            add(ask, of.query[o], above(work.hidden[o], work.hidden[o]));
          for (size_t c = 0; c < of.dim; ++c) add(value, of.out[c], work.product[c]);
          write(asked + place, ask, n);
          write(values + place, value, n);
        }
    }
  });
}

void pair_attention_back(const PairAttention& of, const float* of_asked, const float* of_values,
                         const PairAttentionBack& to, int threads) {
  const size_t parts = (of.samples + kPart - 1) / kPart;
  const size_t weights = of.hidden * of.dim, size = weights + 2 * of.hidden + of.dim;
  std::vector<Lanes> sums(parts * size);  // of weight, bias, query and out, part by part
  for_parts(of.samples, threads, [&](size_t part) {
    Work work(of);
    std::vector<Column> back(of.count * of.dim), of_product(of.dim), inners(kPairs * of.hidden);
    Lanes* const of_weight = sums.data() + part * size;
    Lanes *const of_bias = of_weight + weights, *const of_query = of_bias + of.hidden;
    Lanes* const of_out = of_query + of.hidden;
    const Column ones = all(1.0f);
    const size_t end = std::min(of.samples, (part + 1) * kPart);
    for (size_t first = part * kPart; first < end; first += kSide) {
      const size_t n = std::min(kSide, end - first);
      work.begin(first, n);
      std::fill(back.begin(), back.end(), Column{});
      size_t place = first, waiting = 0;
      const auto settle = [&] {
        outer(inners.data(), of.hidden, work.products.data(), of.dim, waiting, of_weight);
        waiting = 0;
      };
      for (size_t i = 0; i < of.count; ++i)
        for (size_t j = i + 1; j < of.count; ++j, place += of.samples) {
          work.product = work.products.data() + waiting * of.dim;
          Column* const inner = inners.data() + waiting * of.hidden;
          work.make(i, j);
          const Column ask = read(of_asked + place, n), value = read(of_values + place, n);
          for (size_t o = 0; o < of.hidden; ++o) {
            const Column made = above(work.hidden[o], work.hidden[o]);
            add_lanes(of_query[o], made, ask);
            inner[o] = above(made, times(ask, all(of.query[o])));
            add_lanes(of_bias[o], inner[o], ones);
          }
          for (size_t c = 0; c < of.dim; ++c) {
            of_product[c] = times(value, all(of.out[c]));
            add_lanes(of_out[c], work.product[c], value);
          }
          multiply(of.weight, of.dim, 1, of.hidden, of.dim, inner, of_product.data());
          for (size_t c = 0; c < of.dim; ++c) {
            add(back[i * of.dim + c], of_product[c], work.features[j * of.dim + c]);
            add(back[j * of.dim + c], of_product[c], work.features[i * of.dim + c]);
          }
          if (++waiting == kPairs) settle();
        }
      settle();
      for (size_t k = 0; k < back.size(); ++k)
        write(to.columns + k * of.samples + first, back[k], n);
    }
  });
  const auto gather = [&](float* out, size_t at, size_t n) {
    for (size_t k = 0; k < n; ++k) {
      Four sum = {};
      for (size_t part = 0; part < parts; ++part) sum += sums[part * size + at + k].x;
      out[k] = sum_of(sum);
    }
  };
  gather(to.weight, 0, weights);
  gather(to.bias, weights, of.hidden);
  gather(to.query, weights + of.hidden, of.hidden);
  gather(to.out, weights + 2 * of.hidden, of.dim);
}

}  // namespace shoal
