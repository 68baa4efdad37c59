// Steps of layers, as Python sees them: shoal/models/nn/dropout.py.
#include "dropout.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {

void bind_layers(nb::module_& m) {
  m.def(
      "dropout_mask",
      [](size_t n, uint64_t key, double p, Address out, int threads) {
        dropout_mask(n, key, p, at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
