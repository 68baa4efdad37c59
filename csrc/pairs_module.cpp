// Losses of pairs of rows, as Python sees them: shoal/kernels/pairs.py.

#include "argument_checks.h"
#include "module.h"
#include "pairs.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// Rows [n, dim] that three lists of places, of so many pairs, name: queries, positives, negatives.
PlacedPairs placed(Address rows, size_t n, size_t dim, Address places, size_t count) {
  need_array(rows, times(n, dim), sizeof(float), "rows: no array");
  need_array(places, times(3, count), sizeof(int64_t), "places: no array");
  const auto* found = at<const int64_t>(places);
  need(all_below(found, 3 * count, n), "places: below the number of rows");
  return {at<const float>(rows), found, found + count, found + 2 * count, n, count, dim};
}

}  // namespace

void bind_placed_pairs(nb::module_& m) {
  m.def(
      "placed_pair_loss",
      [](Address rows, size_t n, size_t dim, Address places, size_t count, Address slopes,
         int threads) {
        need_array(slopes, count, sizeof(float), "slopes: no array");
        return pair_loss(placed(rows, n, dim, places, count), at<float>(slopes), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "placed_pair_gradients",
      [](Address rows, size_t n, size_t dim, Address places, size_t count, Address slopes,
         float scale, Address out, int threads) {
        need_array(slopes, count, sizeof(float), "slopes: no array");
        need_array(out, times(n, dim), sizeof(float), "gradients: no array");
        pair_gradients(placed(rows, n, dim, places, count), at<const float>(slopes), scale,
                       at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
