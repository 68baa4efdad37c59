#include "dense.h"

#include <algorithm>
#include <cmath>

#include "threads.h"

namespace shoal {
namespace {

constexpr size_t kEnough = 1 << 17;  // values for one thread: ten times what waking it takes
constexpr size_t kLine = 16;         // floats: two threads do not write into one cache line often

// The step that follows `steps` - 1 others.
Rule rule_of(const DenseRule& rule, float steps) {
  Rule made;
  made.kind = rule.kind;
  made.size = static_cast<float>(rule.lr);
  made.eps = static_cast<float>(rule.eps);
  if (rule.kind == Optimizer::adamw) {
    made.keep = static_cast<float>(1 - rule.lr * rule.weight_decay);
  } else {
    made.decay = static_cast<float>(rule.weight_decay);
  }
  if (rule.kind == Optimizer::adam || rule.kind == Optimizer::adamw) {
    // size * first / (root(second) + eps) with both corrections in size and eps
    const double first = 1 - std::pow(rule.beta1, steps);
    const double second = std::sqrt(1 - std::pow(rule.beta2, steps));
    made.rest1 = static_cast<float>(1 - rule.beta1);
    made.rest2 = static_cast<float>(1 - rule.beta2);
    made.size = static_cast<float>(rule.lr * second / first);
    made.eps = static_cast<float>(rule.eps * second);
  }
  return made;
}

}  // namespace

void step_dense(const DenseRule& rule, const std::vector<Parameter>& parameters, int threads) {
  std::vector<Rule> rules;
  rules.reserve(parameters.size());
  size_t total = 0;
  float before = 0;  // most parameters have had as many steps as the one before them
  for (const Parameter& parameter : parameters) {
    const float steps = parameter.steps == nullptr ? 1.0f : *parameter.steps + 1.0f;
    if (parameter.steps != nullptr) *parameter.steps = steps;
    if (rules.empty() || steps != before) {
      rules.push_back(rule_of(rule, steps));
    } else {
      rules.push_back(rules.back());
    }
    before = steps;
    total += parameter.size;
  }
  const size_t most = static_cast<size_t>(std::max(threads, 1));
  const size_t parts = std::clamp<size_t>(total / kEnough, 1, most);
  // A part is a stretch of all values one after the other: where it ends changes no value.
  const size_t stretch = ((total + parts - 1) / parts + kLine - 1) / kLine * kLine;
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const size_t begin = static_cast<size_t>(part) * stretch, end = begin + stretch;
    size_t first = 0;  // of this parameter, among all values
    for (size_t k = 0; k < parameters.size() && first < end; first += parameters[k++].size) {
      const Parameter& parameter = parameters[k];
      const size_t from_here = std::max(begin, first) - first;
      const size_t to_here = std::min(end - first, parameter.size);
      if (from_here >= to_here) continue;
      kernels().step(rules[k], parameter.learned.from(from_here), parameter.grads + from_here,
                     to_here - from_here);
    }
  });
}

}  // namespace shoal
