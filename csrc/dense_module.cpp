// The step of dense parameters, as Python sees it: shoal/embedding/optim/dense_core.py.
#include "dense.h"

#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "doors.h"
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
  const auto chosen = static_cast<Optimizer>(kind);
  const bool moments = chosen == Optimizer::adam || chosen == Optimizer::adamw;
  need(moments || chosen == Optimizer::sgd || chosen == Optimizer::adagrad,
       "an optimizer that has no such step");
  std::vector<Parameter> parameters(sizes.size());
  for (size_t k = 0; k < sizes.size(); ++k) {
    const Address* const of = addresses.data() + 5 * k;
    need_array(of[0], sizes[k], sizeof(float), "gradients: no array");
    need_array(of[1], sizes[k], sizeof(float), "values: no array");
    need(!moments || of[2] != 0, "number of steps: no array");
    need_array(chosen == Optimizer::sgd ? of[1] : of[3], sizes[k], sizeof(float), "state: no array");
    need_array(moments ? of[4] : of[1], sizes[k], sizeof(float), "state: no array");
    parameters[k] = {{at<float>(of[1]), at<float>(of[3]), at<float>(of[4])},
                     at<float>(of[0]), at<float>(of[2]), sizes[k]};
  }
  step_dense({chosen, rule[0], rule[1], rule[2], rule[3], rule[4]},
             parameters, threads);
}

}  // namespace

void bind_dense(nb::module_& m) {
  m.def("step_dense", &step, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
