// The loss of pairs, -ln sigmoid(<q, p - n>), and its gradients, each in one pass over memory. torch
// makes seven passes forward and three back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

struct Pairs {
  const float* queries = nullptr;  // [count, dim], as the two below
  const float* positives = nullptr;
  const float* negatives = nullptr;
  size_t count = 0, dim = 0;
};

// The sum of -ln sigmoid(margin) over all pairs, on so many threads, of which it does not depend;
// margin = <queries[i], positives[i] - negatives[i]>. slopes[i] = 1 - sigmoid(margin).
double pair_loss(const Pairs& pairs, float* slopes, int threads);

// Its gradients, times scale.
struct PairGradients {
  const float* slopes = nullptr;
  float scale = 1;
  float* queries = nullptr;  // [count, dim], as the two below
  float* positives = nullptr;
  float* negatives = nullptr;
};
void pair_gradients(const Pairs& pairs, const PairGradients& out, int threads);

// The same of pairs whose vectors are rows [n, dim], in any order and often the same ones.
struct PlacedPairs {
  const float* rows = nullptr;
  const int64_t* queries = nullptr;  // [count], as the two below: the row of each
  const int64_t* positives = nullptr;
  const int64_t* negatives = nullptr;
  size_t n = 0, count = 0, dim = 0;
};
double pair_loss(const PlacedPairs& pairs, float* slopes, int threads);

// Gradients of all rows, times scale: out [n, dim]. Every sum is taken in order of the pairs.
void pair_gradients(const PlacedPairs& pairs, const float* slopes, float scale, float* out,
                    int threads);

}  // namespace shoal
