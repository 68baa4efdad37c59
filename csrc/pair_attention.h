// Attention over pairs of features: see shoal/models/nn/columns.py. What a pair makes is used while
// it is in the first cache and made again on the way back; torch would write and read all of it.
#pragma once

#include <cstddef>

namespace shoal {

// Of pairs i < j of features, with p the product of their vectors, element by element:
// <query, relu(weight p + bias)> and <out, p>.
struct PairAttention {
  const float* columns = nullptr;  // [count, dim, samples]
  const float* weight = nullptr;   // [hidden, dim]
  const float* bias = nullptr;     // [hidden]
  const float* query = nullptr;    // [hidden]
  const float* out = nullptr;      // [dim]
  size_t count = 0, dim = 0, hidden = 0, samples = 0;

  size_t pairs() const { return count * (count - 1) / 2; }
};

// Gradients; sums are taken over parts of the samples that do not depend on the number of threads.
struct PairAttentionBack {
  float* columns = nullptr;
  float* weight = nullptr;
  float* bias = nullptr;
  float* query = nullptr;
  float* out = nullptr;
};

// asked, values: [pairs, samples] each, as are their gradients.
void pair_attention(const PairAttention& of, float* asked, float* values, int threads);
void pair_attention_back(const PairAttention& of, const float* of_asked, const float* of_values,
                         const PairAttentionBack& to, int threads);

}  // namespace shoal
