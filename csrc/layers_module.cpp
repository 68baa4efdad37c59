// Steps of layers, as Python sees them: shoal/models/nn/dropout.py.
#include "dropout.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {

void bind_layers(nb::module_& m) {
  m.def(
      "dropout_mask",
      [](uint64_t key, double p, uint64_t first, size_t n, Address out, int threads) {
        dropout_mask({key, p, threads}, first, n, at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "dropout_rows",
      [](uint64_t key, double p, uint64_t first, Address rows, size_t count, size_t width,
         Address out, int threads) {
        dropout_rows({key, p, threads}, first, at<const int64_t>(rows), count, width,
                     at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
