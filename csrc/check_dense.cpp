// Dense parameters: every value against its formula in double, and threads against one thread.
#include <cmath>

#include "check.h"
#include "dense.h"

namespace shoal {
namespace {

constexpr size_t kSizes[] = {1, 0, 5, 200000, 1023, 64, 180001};
constexpr int kSteps = 4;

struct Model {
  std::vector<std::vector<float>> parts[3];  // values and two states
  std::vector<float> steps;

  explicit Model(const std::vector<std::vector<float>>& values) {
    for (auto& part : parts) part = values;
    for (size_t p = 1; p < 3; ++p)
      for (auto& some : parts[p]) some.assign(some.size(), 0.0f);
    steps.assign(values.size(), 0.0f);
    steps[2] = 7.0f;  // as if it came from elsewhere
  }

  void step(const DenseRule& rule, const std::vector<std::vector<float>>& grads, int threads) {
    std::vector<Parameter> all;
    const bool adagrad = rule.kind == Optimizer::adagrad, sgd = rule.kind == Optimizer::sgd;
    for (size_t k = 0; k < grads.size(); ++k) {
      float* const first = sgd ? nullptr : parts[1][k].data();
      float* const second = sgd || adagrad ? nullptr : parts[2][k].data();
      all.push_back({{parts[0][k].data(), first, second}, grads[k].data(),
                     sgd ? nullptr : &steps[k], grads[k].size()});
    }
    step_dense(rule, all, threads);
  }
};

struct Exact {
  double w, first = 0, second = 0;

  void step(const DenseRule& r, double g, double t) {
    if (r.kind == Optimizer::adamw) w *= 1 - r.lr * r.weight_decay;
    else g += r.weight_decay * w;
    if (r.kind == Optimizer::sgd) {
      w -= r.lr * g;
    } else if (r.kind == Optimizer::adagrad) {
      first += g * g;
      w -= r.lr * g / (std::sqrt(first) + r.eps);
    } else {
      first = r.beta1 * first + (1 - r.beta1) * g;
      second = r.beta2 * second + (1 - r.beta2) * g * g;
      const double root = std::sqrt(second / (1 - std::pow(r.beta2, t)));
      w -= r.lr * first / (1 - std::pow(r.beta1, t)) / (root + r.eps);
    }
  }
};

void check_kind(Optimizer kind, double weight_decay) {
  const DenseRule rule{kind, 0.01, weight_decay, 1e-8, 0.9, 0.999};
  std::vector<std::vector<float>> values;
  std::vector<std::vector<Exact>> exact;
  for (const size_t size : kSizes) {
    values.push_back(random_floats(size));
    exact.emplace_back();
    for (const float value : values.back()) exact.back().push_back({value});
  }
  Model alone(values), shared(values);
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<std::vector<float>> grads;
    for (const size_t size : kSizes) grads.push_back(random_floats(size));
    alone.step(rule, grads, 1);
    shared.step(rule, grads, 3);
    for (size_t k = 0; k < grads.size(); ++k)
      for (size_t i = 0; i < grads[k].size(); ++i)
        exact[k][i].step(rule, grads[k][i], step + (k == 2 ? 7 : 0));
  }
  CHECK(shared.parts[0] == alone.parts[0] && shared.parts[1] == alone.parts[1]);
  CHECK(shared.parts[2] == alone.parts[2] && shared.steps == alone.steps);
  CHECK(alone.steps[1] == (kind == Optimizer::sgd ? 0 : kSteps));
  for (size_t k = 0; k < exact.size(); ++k)
    for (size_t i = 0; i < exact[k].size(); ++i)
      CHECK(std::fabs(alone.parts[0][k][i] - exact[k][i].w) < 1e-6);
}

}  // namespace

void check_dense() {
  for (Optimizer kind : {Optimizer::sgd, Optimizer::adagrad, Optimizer::adam, Optimizer::adamw})
    for (double weight_decay : {0.0, 0.5})  // 0.5: gradients that it ends become 0, not nearly so
      check_kind(kind, weight_decay);
}

}  // namespace shoal
