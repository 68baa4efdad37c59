// Steps of layers, as Python sees them: shoal/kernels/dropout.py and bags.py.
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "argument_checks.h"
#include "dropout.h"
#include "layers.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// The starts of so many bags, and the end of the last.
const int64_t* starts_of(Address starts, size_t count, size_t places) {
  need_array(starts, times(count, 2), sizeof(int64_t), "starts: no array");
  const auto* found = at<const int64_t>(starts);
  need(starts != 0 && ascend(found, count, places), "starts: they ascend to the number of places");
  return found;
}

}  // namespace

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
         size_t stride, Address out, int threads) {
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need_array(rows, count, sizeof(int64_t), "rows: no array");
        need_array(out, times(count, width), sizeof(float), "mask: no array");
        dropout_rows({key, p, std::max(threads, 1)}, first, at<const int64_t>(rows), count, width,
                     stride, at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
  // x [n, dim], out [count, dim]; ids and weights [places], address 0: none.
  m.def(
      "sum_bags",
      [](Address x, size_t n, size_t dim, Address starts, size_t count, Address ids,
         Address weights, size_t places, Address out, int threads) {
        need_array(x, times(n, dim), sizeof(float), "rows: no array");
        need_array(out, times(count, dim), sizeof(float), "sums: no array");
        const int64_t* const sound = starts_of(starts, count, places);
        if (ids == 0) need(places <= n, "rows: fewer than places");
        else need(all_below(at<const int64_t>(ids), places, n), "ids: below the number of rows");
        sum_bags({at<const float>(x), sound, at<const int64_t>(ids), at<const float>(weights),
                  count, dim},
                 at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
