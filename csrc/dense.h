// One step of the optimizer of dense parameters, all of them in one call, as torch defines it.
// float32; results do not hang on the number of threads.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.h"

namespace shoal {

// A parameter, its state, its gradient and how many steps it has had (null: nobody counts).
struct Parameter {
  Learned learned;
  const float* grads = nullptr;
  float* steps = nullptr;
  size_t size = 0;
};

struct DenseRule {
  Optimizer kind = Optimizer::sgd;  // sgd, adagrad, adam or adamw
  double lr = 0, weight_decay = 0, eps = 0, beta1 = 0, beta2 = 0;
};

void step_dense(const DenseRule& rule, const std::vector<Parameter>& parameters, int threads);

}  // namespace shoal
