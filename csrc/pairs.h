// The loss of pairs, -ln sigmoid(<q, p - n>): its margins and its gradients, each in one pass over
// memory. torch makes three passes forward and three back.
#pragma once

#include <cstddef>

namespace shoal {

struct Pairs {
  const float* queries = nullptr;  // [count, dim], as the two below
  const float* positives = nullptr;
  const float* negatives = nullptr;
  size_t count = 0, dim = 0;
};

// out[i] = <queries[i], positives[i] - negatives[i]>, on so many threads.
void pair_margins(const Pairs& pairs, float* out, int threads);

// Gradients of -ln sigmoid(margin), times scale. decays[i] = exp(-|margins[i]|).
struct PairGradients {
  const float* margins = nullptr;
  const float* decays = nullptr;
  float scale = 1;
  float* queries = nullptr;  // [count, dim], as the two below
  float* positives = nullptr;
  float* negatives = nullptr;
};
void pair_gradients(const Pairs& pairs, const PairGradients& out, int threads);

}  // namespace shoal
