// Graphs and losses of their nodes, as Python sees them: shoal/kernels/graph.py and pairs.py.

#include "argument_checks.h"
#include "graph.h"
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

void bind_graph(nb::module_& m) {
  m.def(
      "spread_graph",
      [](Address starts, Address neighbours, size_t places, Address shares, size_t nodes, Address x,
         Address added, size_t dim, size_t layers, float scale, Address out, int threads) {
        need_array(starts, times(nodes, 2), sizeof(int64_t), "starts: no array");
        need(starts != 0 && ascend(at<const int64_t>(starts), nodes, places),
             "starts: they ascend to the number of places");
        need_array(neighbours, places, sizeof(int32_t), "neighbours: no array");
        need(all_below(at<const int32_t>(neighbours), places, nodes),
             "neighbours: below the number of nodes");
        need_array(shares, nodes, sizeof(float), "shares: no array");
        need_array(x, times(nodes, dim), sizeof(float), "vectors: no array");
        need_array(out, times(nodes, dim), sizeof(float), "vectors: no array");
        need(layers <= (1 << 20), "layers: more than 2^20");
        spread({at<const int64_t>(starts), at<const int32_t>(neighbours), at<const float>(shares),
                nodes},
               {at<const float>(x), at<const float>(added), dim, layers, scale}, at<float>(out),
               threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
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
