// Which rows are whose: groups of rows are shared over threads, and their sums are added up.
#include "catalogue.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "floats.h"
#include "softmax_kernels.h"
#include "threads.h"

namespace shoal {
namespace {

constexpr size_t kGroup = 64 * kBlock;  // rows that one thread takes: fixed, and so are all sums

size_t up_to_whole(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

Compared compare(const Positions& positions, const Exponentials& made) {
  Compared of;
  of.n = made.n, of.width = padded(made.n);
  of.dim = positions.dim, of.columns = up_to_whole(positions.dim, softmax_kernels().columns);
  of.k = made.k, of.values = made.values, of.tops = made.tops;
  return of;
}

// What a group of rows makes of every position.
struct Group {
  Floats tops, pooled;         // [width], [width, columns]
  std::vector<double> totals;  // [width]
};

}  // namespace

size_t padded(size_t n) { return up_to_whole(n, softmax_kernels().lanes); }

size_t num_blocks(size_t k) { return (k + kBlock - 1) / kBlock; }

void exponentials_of(const Positions& positions, const float* rows, const float* bias,
                     const int64_t* others, size_t num_others, const Exponentials& out,
                     float* highest, float* totals, float* pooled, int threads) {
  const SoftmaxKernels& kernels = softmax_kernels();
  Pass pass{compare(positions, out), rows, bias, others, others + num_others};
  const size_t width = pass.of.width, dim = pass.of.dim, columns = pass.of.columns;
  Floats states(width * dim);
  kernels.by_position(positions.hidden, pass.of, states.data());
  pass.of.states = states.data();
  std::vector<Group> groups((out.k + kGroup - 1) / kGroup);
  Pool::run(threads, static_cast<int>(groups.size()), [&](int part) {
    const size_t first = static_cast<size_t>(part) * kGroup, last = std::min(out.k, first + kGroup);
    Group& group = groups[static_cast<size_t>(part)];
    group.tops = Floats(width, kLowest);
    group.totals.assign(width, 0.0);
    group.pooled = Floats(width * columns);
    const Pooled to{group.tops.data(), group.totals.data(), group.pooled.data()};
    for (size_t r = first; r < last; r += kBlock)
      kernels.pass(pass, r, std::min(last, r + kBlock), to);
  });
  for (size_t p = 0; p < out.n; ++p) {
    float top = kLowest;
    for (const Group& group : groups) top = std::max(top, group.tops[p]);
    double total = 0.0;
    float* const to = pooled + p * dim;
    std::fill_n(to, dim, 0.0f);
    for (const Group& group : groups) {
      const float part = std::exp(group.tops[p] - top);
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
  const SoftmaxKernels& kernels = softmax_kernels();
  Descent step{compare(positions, made), highest, shares, places, truth, rule, rows, bias};
  const size_t width = step.of.width, columns = step.of.columns;
  Floats states(width * columns);
  kernels.by_column(positions.hidden, step.of, states.data());
  step.of.states = states.data();
  const size_t groups = (made.k + kGroup - 1) / kGroup;
  Pool::run(threads, static_cast<int>(groups), [&](int part) {
    const size_t first = static_cast<size_t>(part) * kGroup, last = std::min(made.k, first + kGroup);
    Floats scratch(kBlock * columns + width);
    for (size_t r = first; r < last; r += kBlock)
      kernels.descend(step, r, std::min(last, r + kBlock), scratch.data());
  });
}

}  // namespace shoal
