#include "graph.h"

#include <algorithm>
#include <vector>

#include "memory.h"
#include "threads.h"

namespace shoal {
namespace {

typedef float Four __attribute__((vector_size(16), aligned(4)));

// Columns that are made together: of every node one cache line.
constexpr size_t kWidth = 16;
struct alignas(64) Line {
  Four x[kWidth / 4];
};

inline Line operator*(Line line, float factor) {
  for (Four& four : line.x) four *= factor;
  return line;
}

Line read(const float* from, size_t columns) {
  Line line = {};
  if (columns == kWidth) {
    for (size_t v = 0; v < kWidth / 4; ++v)
      line.x[v] = *reinterpret_cast<const Four*>(from + 4 * v);
  } else {
    std::copy_n(from, columns, reinterpret_cast<float*>(&line));
  }
  return line;
}

void write(const Line& line, size_t columns, float* to) {
  if (columns == kWidth) {
    for (size_t v = 0; v < kWidth / 4; ++v) *reinterpret_cast<Four*>(to + 4 * v) = line.x[v];
  } else {
    std::copy_n(reinterpret_cast<const float*>(&line), columns, to);
  }
}

// The sum of a node's neighbours. `far`: lines that no near cache holds.
template <bool far>
inline Line gather(const Graph& graph, size_t node, const Line* lines) {
  constexpr int64_t ahead = 16;
  const int64_t end = graph.starts[node + 1];
  Line sum = {};
  for (int64_t p = graph.starts[node]; p < end; ++p) {
    if (far && p + ahead < end) prefetch_read(lines + graph.neighbours[p + ahead]);
    const Line& line = lines[graph.neighbours[p]];
    for (size_t v = 0; v < kWidth / 4; ++v) sum.x[v] += line.x[v];
  }
  return sum;
}

// All layers of some columns. Between layers nodes are kept times their shares.
template <bool far>
void spread_columns(const Graph& graph, const Spreading& of, size_t first, float* out) {
  thread_local std::vector<Line> now, next;
  const size_t columns = std::min(kWidth, of.dim - first);
  now.resize(graph.nodes);
  next.resize(graph.nodes);
  for (size_t k = 0; k < graph.nodes; ++k)
    now[k] = read(of.x + k * of.dim + first, columns) * graph.shares[k];
  for (size_t layer = 1; layer <= of.layers; ++layer) {
    for (size_t k = 0; k < graph.nodes; ++k) {
      Line made = gather<far>(graph, k, now.data()) * graph.shares[k];
      if (of.added != nullptr) {
        const Line begun = read(of.added + k * of.dim + first, columns);
        for (size_t v = 0; v < kWidth / 4; ++v) made.x[v] += begun.x[v];
      }
      if (layer == of.layers)
        write(made * of.scale, columns, out + k * of.dim + first);
      else
        next[k] = made * graph.shares[k];
    }
    std::swap(now, next);
  }
}

}  // namespace

void spread(const Graph& graph, const Spreading& of, float* out, int threads) {
  constexpr size_t near = 1 << 14, enough = 1 << 18;  // nodes; values that are worth another thread
  if (of.layers == 0) {
    for (size_t i = 0; i < graph.nodes * of.dim; ++i) out[i] = of.x[i] * of.scale;
    return;
  }
  const size_t blocks = (of.dim + kWidth - 1) / kWidth;
  const auto places = static_cast<size_t>(graph.nodes ? graph.starts[graph.nodes] : 0);
  const size_t most = std::max<size_t>(places * of.dim * of.layers / enough, 1);
  const size_t parts = std::min({blocks, most, static_cast<size_t>(std::max(threads, 1))});
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const auto p = static_cast<size_t>(part);
    for (size_t b = blocks * p / parts; b < blocks * (p + 1) / parts; ++b) {
      if (graph.nodes > near)
        spread_columns<true>(graph, of, b * kWidth, out);
      else
        spread_columns<false>(graph, of, b * kWidth, out);
    }
  });
}

}  // namespace shoal
