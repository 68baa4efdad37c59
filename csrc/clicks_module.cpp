// Metrics of predicted clicks, as Python sees them: shoal/training/metrics/native.py.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include "clicks.h"
#include "doors.h"
#include "module.h"

namespace nb = nanobind;

namespace shoal {
namespace {

Predicted predicted(Address scores, Address labels, size_t n) {
  for (Address array : {scores, labels}) need_array(array, n, sizeof(double), "clicks: no array");
  return {at<const double>(scores), at<const double>(labels), n};
}

}  // namespace

void bind_clicks(nb::module_& m) {
  m.def(
      "pairs_in_order",
      [](Address scores, Address labels, size_t n) {
        const PairsInOrder found = pairs_in_order(predicted(scores, labels, n));
        return std::tuple(found.twice, found.clicks, found.odd);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "log_loss",
      [](Address scores, Address labels, size_t n) {
        const LogLoss found = log_loss(predicted(scores, labels, n));
        return std::pair(found.sum, found.outside);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "first_odd",
      [](Address labels, size_t n) {
        return first_odd(predicted(labels, labels, n).labels, n);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
