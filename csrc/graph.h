// Vectors that spread over a graph: products with the matrix that has shares[i] * shares[j] where i and
// j are neighbours, and 0 elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

struct Graph {
  const int64_t* starts = nullptr;      // [nodes + 1]
  const int32_t* neighbours = nullptr;  // of node k from starts[k] to starts[k + 1] - 1
  const float* shares = nullptr;        // [nodes]
  size_t nodes = 0;
};

// With the matrix M, so many times x = added + M x; in the end times scale: out [nodes, dim]. Where x
// itself is what is added, that is x + M x + ... + M^layers x. Columns do not depend on each other, nor
// on the threads.
struct Spreading {
  const float* x = nullptr;      // [nodes, dim]
  const float* added = nullptr;  // [nodes, dim] or null
  size_t dim = 0, layers = 1;
  float scale = 1;
};
void spread(const Graph& graph, const Spreading& of, float* out, int threads);

}  // namespace shoal
