// Graphs and losses of their nodes, as Python sees them: shoal/models/nn/native_graph.py.
#include <nanobind/stl/vector.h>

#include "convolution.h"
#include "doors.h"
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

void need_nodes(Address array, size_t nodes, size_t width) {
  need_array(array, times(nodes, width), sizeof(float), "nodes: no array");
}

// sizes: nodes, width, stride.
Layer layer_of(const std::vector<size_t>& sizes, float slope, float shortest) {
  need(sizes.size() == 3 && sizes[1] <= sizes[2], "layer: 3 sizes, a width within the stride");
  need(slope > 0 && shortest > 0, "layer: a slope and a length above 0");
  return {sizes[0], sizes[1], sizes[2], slope, shortest};
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
  m.def(
      "join_sides",
      [](Address s, Address x, size_t nodes, size_t dim, Address out, int threads) {
        for (Address array : {s, x, out}) need_nodes(array, nodes, times(2, dim));
        join_sides(at<const float>(s), at<const float>(x), nodes, dim, at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "part_sides",
      [](Address grads, Address s, Address x, size_t nodes, size_t dim, Address of_s, Address of_x,
         int threads) {
        for (Address array : {grads, s, x, of_s, of_x}) need_nodes(array, nodes, times(2, dim));
        part_sides(at<const float>(grads), at<const float>(s), at<const float>(x), nodes, dim,
                   at<float>(of_s), at<float>(of_x), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  // p 0: nothing is dropped.
  m.def(
      "finish_layer",
      [](const std::vector<size_t>& sizes, float slope, float shortest, Address y, Address bias,
         uint64_t key, double p, Address unit, Address lengths, int threads) {
        const Layer layer = layer_of(sizes, slope, shortest);
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need_nodes(y, layer.nodes, layer.width);
        need_nodes(bias, 1, layer.width);
        need_nodes(unit, layer.nodes, layer.stride);
        need_nodes(lengths, layer.nodes, 1);
        const Dropout drop{key, p, 1};
        finish_layer(layer, at<float>(y), at<const float>(bias), p > 0 ? &drop : nullptr,
                     at<float>(unit), at<float>(lengths), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  // made: y, unit vectors, lengths; grads: to the unit vectors and to y, 0: none.
  m.def(
      "finish_layer_back",
      [](const std::vector<size_t>& sizes, float slope, float shortest, const Addresses& made,
         const Addresses& grads, double p, Address back, Address sums, int threads) {
        const Layer layer = layer_of(sizes, slope, shortest);
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need(made.size() == 3 && grads.size() == 2, "layer: 3 arrays and 2 gradients");
        need_nodes(made[0], layer.nodes, layer.width);
        need_nodes(made[1], layer.nodes, layer.stride);
        need_nodes(made[2], layer.nodes, 1);
        need_nodes(grads[0], layer.nodes, layer.stride);
        need_nodes(back, layer.nodes, layer.width);
        need_nodes(sums, 1, layer.width);
        const Finished of{at<const float>(made[0]),  at<const float>(made[1]),
                          at<const float>(made[2]),  at<const float>(grads[0]),
                          at<const float>(grads[1]), static_cast<float>(1.0 / (1.0 - p)),
                          p > 0};
        finish_layer_back(layer, of, at<float>(back), at<float>(sums), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
