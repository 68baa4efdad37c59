// The step of dense parameters, as Python sees it: shoal/embedding/optim/dense_core.py.
#include "dense.h"

#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "module.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// rule: lr, weight_decay, eps, beta1, beta2. Of each parameter: gradients, values, number of steps
// and two states, one parameter after the other; address 0: none.
void step(int kind, const std::vector<double>& rule, const Addresses& addresses,
          const std::vector<size_t>& sizes, int threads) {
  if (rule.size() != 5) throw std::invalid_argument("rule: 5 numbers");
  if (addresses.size() != 5 * sizes.size()) throw std::invalid_argument("addresses: 5 of each");
  std::vector<Parameter> parameters(sizes.size());
  for (size_t k = 0; k < sizes.size(); ++k) {
    const Address* const of = addresses.data() + 5 * k;
    parameters[k] = {{at<float>(of[1]), at<float>(of[3]), at<float>(of[4])},
                     at<float>(of[0]), at<float>(of[2]), sizes[k]};
  }
  step_dense({static_cast<Optimizer>(kind), rule[0], rule[1], rule[2], rule[3], rule[4]},
             parameters, threads);
}

}  // namespace

void bind_dense(nb::module_& m) {
  m.def("step_dense", &step, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
