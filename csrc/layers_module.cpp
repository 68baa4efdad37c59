// Steps of layers, as Python sees them: shoal/models/nn/dropout.py.
#include <algorithm>

#include "doors.h"
#include "dropout.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {

void bind_layers(nb::module_& m) {
  m.def(
      "dropout_mask",
      [](uint64_t key, double p, uint64_t first, size_t n, Address out, int threads) {
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need_array(out, n, sizeof(float), "mask: no array");
        dropout_mask({key, p, std::max(threads, 1)}, first, n, at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "dropout_rows",
      [](uint64_t key, double p, uint64_t first, Address rows, size_t count, size_t width,
         Address out, int threads) {
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need_array(rows, count, sizeof(int64_t), "rows: no array");
        need_array(out, times(count, width), sizeof(float), "mask: no array");
        dropout_rows({key, p, std::max(threads, 1)}, first, at<const int64_t>(rows), count, width,
                     at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
