// Positions lie in lanes: a vector holds one row's logits of several positions. Products are made
// in tiles that stay in registers. Nothing of the standard library that is no more than inlined
// may be used here: the linker would keep one instruction set's copy of it for all of them.
#include "softmax_kernels.h"

#include <limits>

#include "tiles.h"

#ifndef SHOAL_ISA
#error "SHOAL_ISA names the instruction set of this build"
#endif
#define SHOAL_TEXT(x) #x
#define SHOAL_NAME(x) SHOAL_TEXT(x)

namespace shoal {
namespace SHOAL_ISA {
namespace {

constexpr size_t kTile = kWide * kLanes;     // positions of a tile of logits, kHigh rows each
constexpr size_t kAhead = 32;                // rows that are fetched before they are needed
static_assert(kLow % 4 == 0 && kTile % kLow == 0 && kLanes % 4 == 0, "tiles fit");

inline size_t least(size_t a, size_t b) { return a < b ? a : b; }

// Of nothing there may be no memory either, which the compiler's own functions must not be given.
inline void clear(float* x, size_t n) {
  if (n != 0) __builtin_memset(x, 0, n * sizeof(float));
}

inline void copy(const float* from, size_t n, float* to) {
  if (n != 0) __builtin_memcpy(to, from, n * sizeof(float));
}

// ---- a catalogue ---------------------------------------------------------------------------------

// Tiles of kTile positions, the last ones of fewer vectors: [tiles][dim, positions].
void by_position(const float* hidden, const Compared& of, float* packed) {
  clear(packed, of.width * of.dim);
  for (size_t p = 0; p < of.n; ++p) {
    const size_t first = p / kTile * kTile, tile = least(kTile, of.width - first);
    for (size_t c = 0; c < of.dim; ++c)
      packed[first * of.dim + c * tile + p - first] = hidden[p * of.dim + c];
  }
}

// Tiles of kColumns columns: [tiles, width, kColumns].
void by_column(const float* hidden, const Compared& of, float* packed) {
  clear(packed, of.width * of.columns);
  for (size_t p = 0; p < of.n; ++p)
    for (size_t c = 0; c < of.dim; ++c)
      packed[(c / kColumns * of.width + p) * kColumns + c % kColumns] = hidden[p * of.dim + c];
}

// Logits of a block of rows at all positions, to [kBlock, width].
inline void logits_of(const Pass& pass, size_t first, size_t last, float* to) {
  const Compared& of = pass.of;
  for (size_t r = first; r < last; r += kHigh) {
    const size_t height = least(kHigh, last - r);
    const float* some[kHigh];
    float added[kHigh];
    for (size_t i = 0; i < kHigh; ++i) {  // at the edge the last one is computed again, not stored
      const size_t row = r + least(i, height - 1);
      some[i] = pass.rows + row * of.dim;
      added[i] = pass.bias == nullptr ? 0.0f : pass.bias[row];
    }
    if (r + kAhead + kHigh <= of.k)  // into the second cache: the first one has enough to hold
      for (size_t i = 0; i < kHigh * of.dim; i += 16)
        __builtin_prefetch(pass.rows + (r + kAhead) * of.dim + i, 0, 2);
    float* const here = to + (r - first) * of.width;
    for (size_t p = 0; p < of.width; p += kTile) {
      const float* const states = of.states + p * of.dim;
      if (p + kTile <= of.width)
        multiply<kHigh, kWide>(some, states, kTile, of.dim, added, here + p, of.width, height);
      else
        multiply<kHigh, 1>(some, states, kLanes, of.dim, added, here + p, of.width, height);
    }
  }
  const int64_t* other = pass.others;  // the first that is not below `first`
  for (size_t count = static_cast<size_t>(pass.others_end - other); count > 0;) {
    const size_t half = count / 2;
    const bool below = other[half] < static_cast<int64_t>(first);
    other = below ? other + half + 1 : other;
    count = below ? count - half - 1 : half;
  }
  for (; other < pass.others_end && *other < static_cast<int64_t>(last); ++other)
    for (size_t p = 0; p < of.width; ++p)
      to[(static_cast<size_t>(*other) - first) * of.width + p] = -std::numeric_limits<float>::infinity();
}

// The highest of x [height, kLanes], whose rows lie `width` apart, and of `before`.
__attribute__((noinline)) Vector highest_of(const float* x, size_t height, size_t width,
                                            Vector before) {
  Vector a = before, b = before;  // two under way at once
  size_t r = 0;
  for (; r + 2 <= height; r += 2) {
    a = larger(load(x + r * width), a);
    b = larger(load(x + (r + 1) * width), b);
  }
  if (r < height) a = larger(load(x + r * width), a);
  return larger(a, b);
}

// x = exp(x - top) in place: the sums.
__attribute__((noinline)) Vector exponentials_in(float* x, size_t height, size_t width, Vector top) {
  Vector total = all(0.0f);
  size_t r = 0;
  for (; r + 4 <= height; r += 4) {  // four under way at once
    Vector e[4];
    for (size_t i = 0; i < 4; ++i) e[i] = exponential(load(x + (r + i) * width) - top);
    for (size_t i = 0; i < 4; ++i) store(x + (r + i) * width, e[i]);
    total += (e[0] + e[1]) + (e[2] + e[3]);
  }
  for (; r < height; ++r) {
    const Vector e = exponential(load(x + r * width) - top);
    store(x + r * width, e);
    total += e;
  }
  return total;
}

void pass(const Pass& pass, size_t first, size_t last, const Pooled& pooled) {
  const Compared& of = pass.of;
  const size_t width = of.width, dim = of.dim, columns = of.columns;
  float* const made = of.values + first * width;
  logits_of(pass, first, last, made);
  for (size_t p = 0; p < width; p += kLanes) {
    const Vector before = load(pooled.tops + p);
    const Vector top = highest_of(made + p, last - first, width, before);
    store(pooled.tops + p, top);
    const Vector left = exponential(before - top);  // of what is there already
    for (size_t i = 0; i < kLanes; ++i) {
      if (left[i] == 1.0f) continue;
      pooled.totals[p + i] *= left[i];
      for (size_t c = 0; c < columns; ++c) pooled.rows[(p + i) * columns + c] *= left[i];
    }
    const Vector total = exponentials_in(made + p, last - first, width, top);
    for (size_t i = 0; i < kLanes; ++i) pooled.totals[p + i] += total[i];
  }
  copy(pooled.tops, width, of.tops + first / kBlock * width);
  float edge[kBlock * kColumns];
  for (size_t c = 0; c < dim; c += kColumns) {
    const float* from = pass.rows + first * dim + c;
    size_t stride = dim;
    if (c + kColumns > dim) {
      clear(edge, kBlock * kColumns);
      for (size_t r = 0; r < last - first; ++r) copy(from + r * dim, dim - c, edge + r * kColumns);
      from = edge, stride = kColumns;
    }
    for (size_t p = 0; p < width; p += kLow)
      multiply_turned(made + p, width, from, stride, last - first, pooled.rows + p * columns + c,
                      columns);
  }
}

// The step of a vector; the same expressions as update_rows in shoal/embedding/optim.
template <Optimizer K>
inline void step_one(Vector g, Vector& w, Vector& first, Vector& second, const Rule& rule) {
  g += w * all(rule.decay);
  if constexpr (K == Optimizer::sgd) {
    w -= g * all(rule.size);
  } else if constexpr (K == Optimizer::adagrad) {
    first += g * g;
    w -= all(rule.size) * g / (root(first) + all(rule.eps));
  } else {
    first += (g - first) * all(rule.rest1);
    second += (g * g - second) * all(rule.rest2);
    w = w * all(rule.keep) - all(rule.size) * first / (root(second) + all(rule.eps));
  }
}

// The step of N vectors from a place on: written out so that all are under way at once.
template <Optimizer K, int N>
inline void step_at(const float* grads, const Learned& to, size_t place, const Rule& rule) {
  constexpr int states = K == Optimizer::sgd ? 0 : K == Optimizer::adagrad ? 1 : 2;
  Vector w[N], first[N] = {}, second[N] = {};
  for (int j = 0; j < N; ++j) {
    w[j] = load(to.values + place + kLanes * j);
    if constexpr (states > 0) first[j] = load(to.first + place + kLanes * j);
    if constexpr (states > 1) second[j] = load(to.second + place + kLanes * j);
  }
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) step_one<K>(load(grads + kLanes * j), w[j], first[j], second[j], rule);
  for (int j = 0; j < N; ++j) {
    store(to.values + place + kLanes * j, w[j]);
    if constexpr (states > 0) store(to.first + place + kLanes * j, first[j]);
    if constexpr (states > 1) store(to.second + place + kLanes * j, second[j]);
  }
}

// The step of `count` values in a row; grads may be read up to the next whole vector.
template <Optimizer K>
void step_many(const float* grads, const Learned to, size_t place, size_t count, const Rule rule) {
  size_t c = 0;  // `to` and `rule` are copies: what is stored could not have changed them
  for (; c + 4 * kLanes <= count; c += 4 * kLanes) step_at<K, 4>(grads + c, to, place + c, rule);
  for (; c + kLanes <= count; c += kLanes) step_at<K, 1>(grads + c, to, place + c, rule);
  if (c == count) return;
  float some[3][kLanes] = {};
  float* const parts[3] = {to.values, to.first, to.second};
  for (size_t i = 0; i < 3; ++i)
    if (parts[i] != nullptr) copy(parts[i] + place + c, count - c, some[i]);
  step_at<K, 1>(grads + c, {some[0], some[1], some[2]}, 0, rule);
  for (size_t i = 0; i < 3; ++i)
    if (parts[i] != nullptr) copy(some[i], count - c, parts[i] + place + c);
}

// Exponentials of a block of rows become the gradients of their logits.
inline void weigh(const Descent& step, size_t first, size_t last, float* factors) {
  const Compared& of = step.of;
  const size_t n = of.n, width = of.width;
  const float* tops = of.tops + first / kBlock * width;
  for (size_t p = 0; p < width; ++p) {
    // Positions beyond the last have no states: whatever they weigh comes to nothing.
    factors[p] = p < n ? step.shares[p] * exponential(all(tops[p] - step.highest[p]))[0] : 0.0f;
  }
  for (size_t r = first; r < last; ++r) {
    float* const at = of.values + r * width;
    for (size_t p = 0; p < width; p += kLanes) store(at + p, load(at + p) * load(factors + p));
  }
  for (size_t p = 0; p < n; ++p) {
    const int64_t place = step.places[p];
    if (place >= static_cast<int64_t>(first) && place < static_cast<int64_t>(last))
      of.values[static_cast<size_t>(place) * width + p] -= step.truth;
  }
}

template <Optimizer K>
void descend_by(const Descent& step, size_t first, size_t last, float* scratch) {
  const Compared& of = step.of;
  const size_t width = of.width, dim = of.dim, columns = of.columns;
  float* const grads = scratch;  // [kBlock, columns]
  weigh(step, first, last, scratch + kBlock * columns);
  for (size_t r = first; r < last; r += kLow) {
    const float* from[kLow];
    for (size_t i = 0; i < kLow; ++i) from[i] = of.values + least(r + i, last - 1) * width;
    for (size_t c = 0; c < columns; c += kColumns)
      multiply<kLow, kLong>(from, of.states + c * width, kColumns, width, kZeros,
                            grads + (r - first) * columns + c, columns, kLow);
  }
  if (columns == dim) {  // one long walk, which memory likes best
    step_many<K>(grads, step.rows, first * dim, (last - first) * dim, step.rule);
  } else {
    for (size_t r = first; r < last; ++r)
      step_many<K>(grads + (r - first) * columns, step.rows, r * dim, dim, step.rule);
  }
  if (step.bias.values == nullptr) return;
  float sums[kBlock] = {};
  for (size_t r = first; r < last; ++r) {
    Vector sum = all(0.0f);
    for (size_t p = 0; p < width; p += kLanes) sum += load(of.values + r * width + p);
    sums[r - first] = sum_of(sum);
  }
  step_many<K>(sums, step.bias, first, last - first, step.rule);
}

void descend(const Descent& step, size_t first, size_t last, float* scratch) {
  switch (step.rule.kind) {
    case Optimizer::sgd: return descend_by<Optimizer::sgd>(step, first, last, scratch);
    case Optimizer::adagrad: return descend_by<Optimizer::adagrad>(step, first, last, scratch);
    default: return descend_by<Optimizer::adam>(step, first, last, scratch);  // and adamw
  }
}

// ---- exponentials by themselves, small products -------------------------------------------------

void exponentials(float* x, size_t k, float* highest, float* total) {
  constexpr size_t kStep = 4 * kLanes;  // under way at once
  Vector most = all(-std::numeric_limits<float>::infinity());
  size_t c = 0;
  for (; c + kLanes <= k; c += kLanes) most = larger(load(x + c), most);
  float top = most[0];
  for (size_t i = 1; i < kLanes; ++i) top = most[i] > top ? most[i] : top;
  for (; c < k; ++c) top = x[c] > top ? x[c] : top;
  double sum = 0.0;
  c = 0;
  while (c + kStep <= k) {
    // Float sums of a thousand or so at a time, so that a long row loses nothing.
    const size_t stop = least(k - k % kStep, c + 64 * kStep);
    Vector sums[4] = {};
    for (; c < stop; c += kStep)
      for (size_t u = 0; u < 4; ++u) {
        const Vector y = exponential(load(x + c + kLanes * u) - all(top));
        store(x + c + kLanes * u, y);
        sums[u] += y;
      }
    for (const Vector& one : sums) sum += sum_of(one);
  }
  for (; c < k; c += kLanes) {
    float some[kLanes];
    for (float& one : some) one = -std::numeric_limits<float>::infinity();
    copy(x + c, least(kLanes, k - c), some);
    const Vector y = exponential(load(some) - all(top));
    store(some, y);
    copy(some, least(kLanes, k - c), x + c);
    sum += sum_of(y);
  }
  *highest = top;
  *total = static_cast<float>(sum);
}

void product(const float* a, const float* b, float* out, size_t m, size_t k, size_t n, float* edge) {
  for (size_t c = 0; c < n; c += kColumns) {
    const size_t wide = least(kColumns, n - c);
    const float* from = b + c;
    if (wide < kColumns) {  // columns beyond the last are 0
      clear(edge, k * kColumns);
      for (size_t r = 0; r < k; ++r) copy(from + r * n, wide, edge + r * kColumns);
      from = edge;
    }
    for (size_t r = 0; r < m; r += kLow) {
      const size_t high = least(kLow, m - r);
      const float* rows[kLow];
      for (size_t i = 0; i < kLow; ++i) rows[i] = a + least(r + i, m - 1) * k;
      if (wide == kColumns) {
        multiply<kLow, kLong>(rows, from, n, k, kZeros, out + r * n + c, n, high);
        continue;
      }
      float made[kLow * kColumns];
      multiply<kLow, kLong>(rows, from, kColumns, k, kZeros, made, kColumns, high);
      for (size_t i = 0; i < high; ++i) copy(made + i * kColumns, wide, out + (r + i) * n + c);
    }
  }
}

}  // namespace

extern const SoftmaxKernels softmax_table;
const SoftmaxKernels softmax_table = {
    SHOAL_NAME(SHOAL_ISA), kLanes, kColumns, by_position, by_column,
    pass,                  descend, exponentials, product};

}  // namespace SHOAL_ISA
}  // namespace shoal
