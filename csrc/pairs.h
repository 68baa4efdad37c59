// The loss of pairs, -ln sigmoid(<q, p - n>): its margins and its gradients, each in one pass over
// memory. torch makes three passes forward and three back.
#pragma once

#include <cstddef>

namespace shoal {

// Pairs first to last - 1; queries, positives and negatives are [.., dim].
struct Pairs {
  const float* queries = nullptr;
  const float* positives = nullptr;
  const float* negatives = nullptr;
  size_t dim = 0, first = 0, last = 0;
};

// out[i] = <queries[i], positives[i] - negatives[i]>
void pair_margins(const Pairs& pairs, float* out);

// Gradients of -ln sigmoid(margin), times scale: [.., dim] each. decays[i] = exp(-|margins[i]|).
struct PairGradients {
  const float* margins = nullptr;
  const float* decays = nullptr;
  float scale = 1;
  float* queries = nullptr;
  float* positives = nullptr;
  float* negatives = nullptr;
};
void pair_gradients(const Pairs& pairs, const PairGradients& out);

}  // namespace shoal
