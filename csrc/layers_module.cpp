// Steps of layers, as Python sees them: shoal/models/nn/dropout.py.
#include "doors.h"
#include "dropout.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {

void bind_layers(nb::module_& m) {
  m.def(
      "dropout_mask",
      [](size_t n, uint64_t key, double p, Address out, int threads) {
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need_array(out, n, sizeof(float), "mask: no array");
        dropout_mask(n, key, p, at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
