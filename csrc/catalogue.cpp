// Positions lie in lanes: a vector holds one row's logits of four positions. Products are made in
// tiles that stay in registers. Compiled with fused multiply-add where there is one.
#include "catalogue.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace shoal {
namespace {

constexpr size_t kBlock = 64;          // rows whose logits are made at a time, in the first cache
constexpr size_t kGroup = 64 * kBlock;  // rows that one thread takes: fixed, and so are all sums
constexpr size_t kAhead = 32;          // rows that are fetched before they are needed
constexpr size_t kWide = 16;           // columns of a tile
constexpr float kLowest = -1e30f;      // below every logit, and finite: less itself it is 0

size_t columns_of(size_t dim) { return (dim + kWide - 1) / kWide * kWide; }

// Logits of eight rows at 4 * V positions; states [dim, 4 * V], out [8, width].
template <size_t V>
__attribute__((noinline)) void logits_tile(const float* const* rows, const float* states, size_t dim, const float* added,
                 float* out, size_t width, size_t height) {
  Four sums[8][V];
  for (size_t i = 0; i < 8; ++i)
    for (Four& sum : sums[i]) sum = all(added[i]);
  size_t c = 0;
  for (; c + 4 <= dim; c += 4) {
    Four row[8];
    for (size_t i = 0; i < 8; ++i) row[i] = load_lanes(rows[i] + c);
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) {
      Four state[V];
      for (size_t v = 0; v < V; ++v) state[v] = load(states + (c + lane) * 4 * V + 4 * v);
      for (size_t i = 0; i < 8; ++i)
        for (size_t v = 0; v < V; ++v) sums[i][v] += state[v] * all(row[i][lane]);
    }
  }
  for (; c < dim; ++c)
    for (size_t i = 0; i < 8; ++i)
      for (size_t v = 0; v < V; ++v) sums[i][v] += load(states + c * 4 * V + 4 * v) * all(rows[i][c]);
  for (size_t i = 0; i < height; ++i)
    for (size_t v = 0; v < V; ++v) store(out + i * width + 4 * v, sums[i][v]);
}

// States as logits_tile reads them: tiles of eight positions and a last one of four.
std::vector<float> by_position(const Positions& x, size_t n) {
  const size_t width = padded(n);
  std::vector<float> packed(width * x.dim, 0.0f);
  for (size_t p = 0; p < n; ++p) {
    const size_t first = p / 8 * 8, tile = std::min<size_t>(8, width - first);
    for (size_t c = 0; c < x.dim; ++c)
      packed[first * x.dim + c * tile + p - first] = x.hidden[p * x.dim + c];
  }
  return packed;
}

// States in tiles of kWide columns: [columns / kWide, width, kWide].
std::vector<float> by_column(const Positions& x, size_t n) {
  const size_t width = padded(n);
  std::vector<float> packed(width * columns_of(x.dim), 0.0f);
  for (size_t p = 0; p < n; ++p)
    for (size_t c = 0; c < x.dim; ++c)
      packed[(c / kWide * width + p) * kWide + c % kWide] = x.hidden[p * x.dim + c];
  return packed;
}

// The highest of x [height, 4], whose rows lie `width` apart, and of `before`.
__attribute__((noinline)) Four highest_of(const float* x, size_t height, size_t width, Four before) {
  Four a = before, b = before;  // two under way at once
  size_t r = 0;
  for (; r + 2 <= height; r += 2) {
    a = larger(load(x + r * width), a);
    b = larger(load(x + (r + 1) * width), b);
  }
  if (r < height) a = larger(load(x + r * width), a);
  return larger(a, b);
}

// x = exp(x - top) in place: the sums.
__attribute__((noinline)) Four exponentials_in(float* x, size_t height, size_t width, Four top) {
  Four total = all(0.0f);
  size_t r = 0;
  for (; r + 4 <= height; r += 4) {  // four under way at once
    Four e[4];
    for (size_t i = 0; i < 4; ++i) e[i] = exponential(load(x + (r + i) * width) - top);
    for (size_t i = 0; i < 4; ++i) store(x + (r + i) * width, e[i]);
    total += (e[0] + e[1]) + (e[2] + e[3]);
  }
  for (; r < height; ++r) {
    const Four e = exponential(load(x + r * width) - top);
    store(x + r * width, e);
    total += e;
  }
  return total;
}

// pooled [4, kWide] += exponentials[:, 4].T @ rows [height, kWide]
__attribute__((noinline)) void pool_tile(const float* exponentials, size_t width, const float* rows, size_t stride,
               size_t height, float* pooled, size_t columns) {
  Four sums[4][4];
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 4; ++j) sums[i][j] = load(pooled + i * columns + 4 * j);
  for (size_t r = 0; r < height; ++r) {
    const Four e = load_lanes(exponentials + r * width);
    Four row[4];
    for (size_t j = 0; j < 4; ++j) row[j] = load(rows + r * stride + 4 * j);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      for (size_t j = 0; j < 4; ++j) sums[i][j] += row[j] * all(e[i]);
  }
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 4; ++j) store(pooled + i * columns + 4 * j, sums[i][j]);
}

// What a group of rows makes of every position.
struct Group {
  std::vector<float> tops, pooled;  // [width], [width, columns]
  std::vector<double> totals;       // [width]
};

struct Forward {
  const Positions& positions;
  const float *rows, *bias;
  const int64_t *others, *others_end;
  const Exponentials& out;
  const std::vector<float>& states;

  void block(size_t first, size_t last, Group& group) const {
    const size_t width = padded(out.n), dim = positions.dim, columns = columns_of(dim);
    float* const made = out.values + first * width;
    for (size_t r = first; r < last; r += 8) {
      const size_t height = std::min<size_t>(8, last - r);
      const float* some[8];
      float added[8];
      for (size_t i = 0; i < 8; ++i) {  // at the edge the last one is computed again, not stored
        const size_t row = r + std::min(i, height - 1);
        some[i] = rows + row * dim;
        added[i] = bias == nullptr ? 0.0f : bias[row];
      }
      if (r + kAhead + 8 <= out.k)  // into the second cache: the first one has enough to hold
        for (size_t i = 0; i < 8 * dim; i += 16)
          __builtin_prefetch(rows + (r + kAhead) * dim + i, 0, 2);
      float* to = out.values + r * width;
      size_t p = 0;
      for (; p + 8 <= width; p += 8)
        logits_tile<2>(some, states.data() + p * dim, dim, added, to + p, width, height);
      if (p < width)
        logits_tile<1>(some, states.data() + p * dim, dim, added, to + p, width, height);
    }
    const int64_t* other = std::lower_bound(others, others_end, static_cast<int64_t>(first));
    for (; other < others_end && *other < static_cast<int64_t>(last); ++other)
      std::fill_n(out.values + static_cast<size_t>(*other) * width, width, -INFINITY);
    for (size_t p = 0; p < width; p += 4) {
      const Four before = load(group.tops.data() + p);
      const Four top = highest_of(made + p, last - first, width, before);
      store(group.tops.data() + p, top);
      const Four left = exponential(before - top);  // of what is there already
      for (size_t i = 0; i < 4; ++i) {
        if (left[i] == 1.0f) continue;
        group.totals[p + i] *= left[i];
        for (size_t c = 0; c < columns; ++c) group.pooled[(p + i) * columns + c] *= left[i];
      }
      const Four total = exponentials_in(made + p, last - first, width, top);
      for (size_t i = 0; i < 4; ++i) group.totals[p + i] += total[i];
    }
    std::copy_n(group.tops.data(), width, out.tops + first / kBlock * width);
    float edge[kBlock * kWide];
    for (size_t c = 0; c < dim; c += kWide) {
      const float* from = rows + first * dim + c;
      size_t stride = dim;
      if (c + kWide > dim) {
        std::fill_n(edge, kBlock * kWide, 0.0f);
        for (size_t r = 0; r < last - first; ++r)
          std::copy_n(from + r * dim, dim - c, edge + r * kWide);
        from = edge, stride = kWide;
      }
      for (size_t p = 0; p < width; p += 4)
        pool_tile(made + p, width, from, stride, last - first,
                  group.pooled.data() + p * columns + c, columns);
    }
  }
};

// The step of four values; the same expressions as update_rows in shoal/embedding/optim.py.
template <Optimizer K>
inline void step_four(Four g, Four& w, Four& first, Four& second, const Rule& rule) {
  g += w * all(rule.decay);
  if constexpr (K == Optimizer::sgd) {
    w -= g * all(rule.size);
  } else {
    if constexpr (K == Optimizer::adagrad) {
      first += g * g;
      w -= all(rule.size) * g / (root(first) + all(rule.eps));
    } else {
      first += (g - first) * all(rule.rest1);
      second += (g * g - second) * all(rule.rest2);
      w = w * all(rule.keep) - all(rule.size) * first / (root(second) + all(rule.eps));
    }
  }
}

// The step of 4 * N values from a place on: written out so that all are under way at once.
template <Optimizer K, int N>
inline void step_at(const float* grads, const Learned& to, size_t place, const Rule& rule) {
  constexpr int states = K == Optimizer::sgd ? 0 : K == Optimizer::adagrad ? 1 : 2;
  Four w[N], first[N] = {}, second[N] = {};
  for (int j = 0; j < N; ++j) {
    w[j] = load(to.values + place + 4 * j);
    if constexpr (states > 0) first[j] = load(to.first + place + 4 * j);
    if constexpr (states > 1) second[j] = load(to.second + place + 4 * j);
  }
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) step_four<K>(load(grads + 4 * j), w[j], first[j], second[j], rule);
  for (int j = 0; j < N; ++j) {
    store(to.values + place + 4 * j, w[j]);
    if constexpr (states > 0) store(to.first + place + 4 * j, first[j]);
    if constexpr (states > 1) store(to.second + place + 4 * j, second[j]);
  }
}

// The step of `count` values in a row; grads may be read up to the next multiple of four.
template <Optimizer K>
void step_many(const float* grads, const Learned to, size_t place, size_t count, const Rule rule) {
  size_t c = 0;  // `to` and `rule` are copies: what is stored could not have changed them
  for (; c + 16 <= count; c += 16) step_at<K, 4>(grads + c, to, place + c, rule);
  for (; c + 4 <= count; c += 4) step_at<K, 1>(grads + c, to, place + c, rule);
  if (c == count) return;
  float copy[3][4] = {};
  float* const parts[3] = {to.values, to.first, to.second};
  for (size_t k = 0; k < 3; ++k)
    if (parts[k] != nullptr) std::copy_n(parts[k] + place + c, count - c, copy[k]);
  step_at<K, 1>(grads + c, {copy[0], copy[1], copy[2]}, 0, rule);
  for (size_t k = 0; k < 3; ++k)
    if (parts[k] != nullptr) std::copy_n(copy[k], count - c, parts[k] + place + c);
}

struct Step {
  const Positions& positions;
  const Exponentials& made;
  const float *highest, *shares;
  const int64_t* places;
  float truth;
  const Rule& rule;
  const Learned &rows, &bias;
  const std::vector<float>& states;  // by_column

  // Exponentials of a block of rows become the gradients of their logits.
  void weigh(size_t first, size_t last, float* factors) const {
    const size_t n = made.n, width = padded(n);
    const float* tops = made.tops + first / kBlock * width;
    for (size_t p = 0; p < width; ++p) {
      // Positions beyond the last have no states: whatever they weigh comes to nothing.
      factors[p] = p < n ? shares[p] * exponential(all(tops[p] - highest[p]))[0] : 0.0f;
    }
    for (size_t r = first; r < last; ++r) {
      float* const at = made.values + r * width;
      for (size_t p = 0; p < width; p += 4) store(at + p, load(at + p) * load(factors + p));
    }
    for (size_t p = 0; p < n; ++p) {
      const int64_t place = places[p];
      if (place >= static_cast<int64_t>(first) && place < static_cast<int64_t>(last))
        made.values[static_cast<size_t>(place) * width + p] -= truth;
    }
  }

  template <Optimizer K>
  void block(size_t first, size_t last, float* factors, float* grads) const {
    const size_t width = padded(made.n), dim = positions.dim, columns = columns_of(dim);
    weigh(first, last, factors);
    for (size_t r = first; r < last; r += 4) {
      const float* from[4];
      for (size_t i = 0; i < 4; ++i) from[i] = made.values + std::min(r + i, last - 1) * width;
      product(from, states.data(), width, grads + (r - first) * columns, columns);
    }
    if (columns == dim) {  // one long walk, which memory likes best
      step_many<K>(grads, rows, first * dim, (last - first) * dim, rule);
    } else {
      for (size_t r = first; r < last; ++r)
        step_many<K>(grads + (r - first) * columns, rows, r * dim, dim, rule);
    }
    if (bias.values == nullptr) return;
    float sums[kBlock];
    for (size_t r = first; r < last; ++r) {
      Four sum = all(0.0f);
      for (size_t p = 0; p < width; p += 4) sum += load(made.values + r * width + p);
      sums[r - first] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    step_many<K>(sums, bias, first, last - first, rule);
  }

  // Gradients of four rows: weights [4][width] @ states [columns / kWide, width, kWide].
  __attribute__((noinline)) static void product(const float* const* weights, const float* states,
                                                size_t width, float* out, size_t columns) {
    for (size_t c = 0; c < columns; c += kWide, states += width * kWide, out += kWide) {
      Four sums[4][4] = {};
      for (size_t p = 0; p < width; p += 4) {
        Four weight[4];
        for (size_t i = 0; i < 4; ++i) weight[i] = load_lanes(weights[i] + p);
#pragma GCC unroll 4
        for (int lane = 0; lane < 4; ++lane)
          for (size_t j = 0; j < 4; ++j) {
            const Four state = load(states + (p + static_cast<size_t>(lane)) * kWide + 4 * j);
            for (size_t i = 0; i < 4; ++i) sums[i][j] += state * all(weight[i][lane]);
          }
      }
      for (size_t i = 0; i < 4; ++i)
        for (size_t j = 0; j < 4; ++j) store(out + i * columns + 4 * j, sums[i][j]);
    }
  }

  void group(size_t first, size_t last) const {
    std::vector<float> factors(padded(made.n)), grads(kBlock * columns_of(positions.dim));
    for (size_t r = first; r < last; r += kBlock) {
      const size_t end = std::min(last, r + kBlock);
      switch (rule.kind) {
        case Optimizer::sgd: block<Optimizer::sgd>(r, end, factors.data(), grads.data()); break;
        case Optimizer::adagrad: block<Optimizer::adagrad>(r, end, factors.data(), grads.data()); break;
        default: block<Optimizer::adam>(r, end, factors.data(), grads.data());  // and adamw
      }
    }
  }
};

}  // namespace

size_t padded(size_t n) { return (n + 3) / 4 * 4; }

size_t num_blocks(size_t k) { return (k + kBlock - 1) / kBlock; }

void exponentials_of(const Positions& positions, const float* rows, const float* bias,
                     const int64_t* others, size_t num_others, const Exponentials& out,
                     float* highest, float* totals, float* pooled, int threads) {
  const size_t n = out.n, width = padded(n), dim = positions.dim, columns = columns_of(dim);
  const std::vector<float> states = by_position(positions, n);
  const Forward forward{positions, rows, bias, others, others + num_others, out, states};
  std::vector<Group> groups((out.k + kGroup - 1) / kGroup);
  Pool::run(threads, static_cast<int>(groups.size()), [&](int part) {
    const size_t first = static_cast<size_t>(part) * kGroup, last = std::min(out.k, first + kGroup);
    Group& group = groups[static_cast<size_t>(part)];
    group.tops.assign(width, kLowest);
    group.totals.assign(width, 0.0);
    group.pooled.assign(width * columns, 0.0f);
    for (size_t r = first; r < last; r += kBlock)
      forward.block(r, std::min(last, r + kBlock), group);
  });
  for (size_t p = 0; p < n; ++p) {
    float top = kLowest;
    for (const Group& group : groups) top = std::max(top, group.tops[p]);
    double total = 0.0;
    float* const to = pooled + p * dim;
    std::fill_n(to, dim, 0.0f);
    for (const Group& group : groups) {
      const float part = exponential(all(group.tops[p] - top))[0];
      total += part * group.totals[p];
      for (size_t c = 0; c < dim; ++c) to[c] += part * group.pooled[p * columns + c];
    }
    highest[p] = top;
    totals[p] = static_cast<float>(total);
  }
}

void step_rows(const Positions& positions, const Exponentials& made, const float* highest,
               const float* shares, const int64_t* places, float truth, const Rule& rule,
               const Learned& rows, const Learned& bias, int threads) {
  const std::vector<float> states = by_column(positions, made.n);
  const Step step{positions, made, highest, shares, places, truth, rule, rows, bias, states};
  const size_t groups = (made.k + kGroup - 1) / kGroup;
  Pool::run(threads, static_cast<int>(groups), [&](int part) {
    const size_t first = static_cast<size_t>(part) * kGroup;
    step.group(first, std::min(made.k, first + kGroup));
  });
}

}  // namespace shoal
