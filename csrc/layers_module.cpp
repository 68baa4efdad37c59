// Steps of layers, as Python sees them: shoal/models/nn/dropout.py and native.py.
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "attend.h"
#include "doors.h"
#include "dropout.h"
#include "layers.h"
#include "module.h"
#include "pair_attention.h"
#include "perceptron.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// place: count, dim, samples, and how far apart vectors and samples are.
Vectors vectors_of(Address x, const std::vector<size_t>& place) {
  need(place.size() == 5, "vectors: 5 numbers");
  const Vectors made{at<const float>(x), place[0], place[1], place[2], place[3], place[4]};
  need(made.count >= 1 && made.count <= 4096, "vectors: from 1 to 4096 of a sample");
  const bool together = made.apart == made.dim && made.next == times(made.count, made.dim);
  const bool by_number = made.next == made.dim && made.apart == times(made.samples, made.dim);
  need(together || by_number, "vectors: they lie one after the other");
  need_array(x, times(times(made.count, made.dim), made.samples), sizeof(float), "vectors: no array");
  return made;
}

void need_dots(const Vectors& vectors, Address array) {
  const size_t pairs = vectors.count * (vectors.count - 1) / 2;
  need_array(array, times(vectors.samples, pairs), sizeof(float), "dots: no array");
}

// The starts of so many bags, and the end of the last.
const int64_t* starts_of(Address starts, size_t count, size_t places) {
  need_array(starts, times(count, 2), sizeof(int64_t), "starts: no array");
  const auto* found = at<const int64_t>(starts);
  need(starts != 0 && ascend(found, count, places), "starts: they ascend to the number of places");
  return found;
}

// given: columns, weight, bias, query, out; sizes: count, dim, hidden, samples.
PairAttention attention_of(const Addresses& given, const std::vector<size_t>& sizes) {
  need(given.size() == 5 && sizes.size() == 4, "attention: 5 arrays and 4 sizes");
  const PairAttention of{at<const float>(given[0]), at<const float>(given[1]),
                         at<const float>(given[2]), at<const float>(given[3]),
                         at<const float>(given[4]), sizes[0], sizes[1], sizes[2], sizes[3]};
  need(of.count >= 1 && of.count <= 4096, "attention: from 1 to 4096 features");
  need_array(given[0], times(times(of.count, of.dim), of.samples), sizeof(float), "columns: no array");
  need_array(given[1], times(of.hidden, of.dim), sizeof(float), "weight: no array");
  for (size_t k : {2, 3}) need_array(given[k], of.hidden, sizeof(float), "bias, query: no array");
  need_array(given[4], of.dim, sizeof(float), "out: no array");
  times(of.pairs(), of.samples);
  return of;
}

void need_pairs(const PairAttention& of, const Addresses& both) {
  need(both.size() == 2, "attention: 2 arrays of pairs");
  for (Address array : both)
    need_array(array, of.pairs() * of.samples, sizeof(float), "pairs: no array");
}

// x as vectors; sizes: heads and the width of each.
Attend attend_of(Address x, const std::vector<size_t>& place, Address weight,
                 const std::vector<size_t>& sizes) {
  need(sizes.size() == 2, "attention: heads and their width");
  const Attend of{vectors_of(x, place), at<const float>(weight), sizes[0], sizes[1]};
  const size_t made = times(of.heads, of.width), most = size_t{1} << 16;
  need(made <= most && of.heads <= most && of.x.dim <= most, "attention: at most 65536 wide");
  need_array(weight, times(4 * made, of.x.dim), sizeof(float), "weight: no array");
  times(times(of.x.count, made), of.x.samples);
  return of;
}

void need_made(const Attend& of, Address array) {
  const size_t each = times(of.x.count, times(of.heads, of.width));
  need_array(array, times(each, of.x.samples), sizeof(float), "what features become: no array");
}

// arrays: weight and bias of each layer; widths: of the input and of all layers; drops: p of what
// goes into each layer, with keys and first positions.
std::vector<Layer> layers_of(const Addresses& arrays, const std::vector<size_t>& widths,
                             const std::vector<double>& drops, const std::vector<uint64_t>& keys,
                             const std::vector<uint64_t>& firsts, size_t rows) {
  const size_t count = drops.size();
  need(count >= 1 && arrays.size() == 2 * count && widths.size() == count + 1 &&
           keys.size() == count && firsts.size() == count,
       "perceptron: as many of all as there are layers");
  std::vector<Layer> layers;
  for (size_t k = 0; k < count; ++k) {
    need(drops[k] >= 0 && drops[k] < 1, "dropout: a probability from 0 to below 1");
    for (size_t width : {widths[k], widths[k + 1]})
      need(width >= 1 && width <= size_t{1} << 16, "perceptron: from 1 to 65536 wide");
    for (size_t array : {2 * k, 2 * k + 1}) need(arrays[array] != 0, "perceptron: no array");
    times(times(rows, std::max(widths[k], widths[k + 1])), sizeof(float));
    layers.push_back({at<const float>(arrays[2 * k]), at<const float>(arrays[2 * k + 1]),
                      widths[k], widths[k + 1], {keys[k], drops[k], 1}, firsts[k]});
  }
  return layers;
}

// What each layer made of all rows; least: those before it may be nowhere.
template <typename T>
std::vector<T*> made_of(const std::vector<Layer>& layers, const Addresses& made, size_t rows,
                        size_t least) {
  need(made.size() == layers.size(), "perceptron: an array for each layer");
  std::vector<T*> arrays;
  for (size_t k = 0; k < made.size(); ++k) {
    if (made[k] != 0 || k >= least)
      need_array(made[k], times(rows, layers[k].out), sizeof(float), "layers: no array");
    arrays.push_back(at<T>(made[k]));
  }
  return arrays;
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
         Address out, int threads) {
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need_array(rows, count, sizeof(int64_t), "rows: no array");
        need_array(out, times(count, width), sizeof(float), "mask: no array");
        dropout_rows({key, p, std::max(threads, 1)}, first, at<const int64_t>(rows), count, width,
                     at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
  // p 0: nothing is dropped.
  m.def(
      "activate",
      [](Address x, Address bias, size_t rows, size_t width, uint64_t key, double p, uint64_t first,
         int threads) {
        need(p >= 0 && p < 1, "dropout: a probability from 0 to below 1");
        need_array(x, times(rows, width), sizeof(float), "values: no array");
        need_array(bias, width, sizeof(float), "bias: no array");
        const Dropout drop{key, p, 1};
        activate(at<float>(x), at<const float>(bias), rows, width, p > 0 ? &drop : nullptr, first,
                 threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "activate_back",
      [](Address grad, Address made, size_t rows, size_t width, Address back, Address sums,
         int threads) {
        for (Address array : {grad, made, back})
          need_array(array, times(rows, width), sizeof(float), "gradients: no array");
        need_array(sums, width, sizeof(float), "sums: no array");
        activate_back(at<const float>(grad), at<const float>(made), rows, width, at<float>(back),
                      at<float>(sums), threads);
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
  // grads [count, dim], out [places, dim]; weights [places], address 0: none.
  m.def(
      "spread_bags",
      [](Address grads, size_t dim, Address starts, size_t count, Address weights, size_t places,
         Address out) {
        need_array(grads, times(count, dim), sizeof(float), "gradients: no array");
        need_array(out, times(places, dim), sizeof(float), "rows: no array");
        const Bags bags{nullptr, starts_of(starts, count, places), nullptr,
                        at<const float>(weights), count, dim};
        spread_bags(bags, at<const float>(grads), places, at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "share_bags",
      [](Address ids, size_t places, int64_t padding, Address starts, size_t count, Address out) {
        need_array(ids, places, sizeof(int64_t), "ids: no array");
        need_array(out, count, sizeof(float), "shares: no array");
        const Bags bags{nullptr, starts_of(starts, count, places), at<const int64_t>(ids),
                        nullptr, count, 0};
        share_bags(bags, padding, at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "pair_products",
      [](Address x, const std::vector<size_t>& place, Address out, Address total) {
        const Vectors vectors = vectors_of(x, place);
        for (Address array : {out, total})
          need_array(array, times(vectors.samples, vectors.dim), sizeof(float), "sums: no array");
        pair_products(vectors, at<float>(out), at<float>(total));
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "pair_products_back",
      [](Address x, const std::vector<size_t>& place, Address total, Address grads, Address out) {
        const Vectors vectors = vectors_of(x, place);
        for (Address array : {total, grads})
          need_array(array, times(vectors.samples, vectors.dim), sizeof(float), "sums: no array");
        vectors_of(out, place);
        pair_products_back(vectors, at<const float>(total), at<const float>(grads), at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "pair_attention",
      [](const Addresses& given, const std::vector<size_t>& sizes, const Addresses& made,
         int threads) {
        const PairAttention of = attention_of(given, sizes);
        need_pairs(of, made);
        pair_attention(of, at<float>(made[0]), at<float>(made[1]), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  // grads: of what was made; back: of what was given.
  m.def(
      "pair_attention_back",
      [](const Addresses& given, const std::vector<size_t>& sizes, const Addresses& grads,
         const Addresses& back, int threads) {
        const PairAttention of = attention_of(given, sizes);
        need_pairs(of, grads);
        attention_of(back, sizes);
        const PairAttentionBack to{at<float>(back[0]), at<float>(back[1]), at<float>(back[2]),
                                   at<float>(back[3]), at<float>(back[4])};
        pair_attention_back(of, at<const float>(grads[0]), at<const float>(grads[1]), to, threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "attend",
      [](Address x, const std::vector<size_t>& place, Address weight,
         const std::vector<size_t>& sizes, Address out, int threads) {
        const Attend of = attend_of(x, place, weight, sizes);
        need_made(of, out);
        attend(of, at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  // back: gradients of x and of the weight.
  m.def(
      "attend_back",
      [](Address x, const std::vector<size_t>& place, Address weight,
         const std::vector<size_t>& sizes, Address grads, const Addresses& back, int threads) {
        const Attend of = attend_of(x, place, weight, sizes);
        need_made(of, grads);
        need(back.size() == 2, "attention: gradients of 2 arrays");
        attend_of(back[0], place, back[1], sizes);
        attend_back(of, at<const float>(grads), at<float>(back[0]), at<float>(back[1]), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "perceptron",
      [](const Addresses& arrays, const std::vector<size_t>& widths,
         const std::vector<double>& drops, const std::vector<uint64_t>& keys,
         const std::vector<uint64_t>& firsts, Address x, size_t rows, const Addresses& made,
         int threads) {
        const auto layers = layers_of(arrays, widths, drops, keys, firsts, rows);
        need_array(x, times(rows, layers[0].in), sizeof(float), "input: no array");
        perceptron(layers, at<const float>(x), rows, made_of<float>(layers, made, rows, layers.size() - 1),
                   threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  // back: gradients of the arrays; of_x: of the input, address 0: not wanted.
  m.def(
      "perceptron_back",
      [](const Addresses& arrays, const std::vector<size_t>& widths,
         const std::vector<double>& drops, const std::vector<uint64_t>& keys,
         const std::vector<uint64_t>& firsts, Address x, size_t rows, const Addresses& made,
         Address grads, Address of_x, const Addresses& back, int threads) {
        const auto layers = layers_of(arrays, widths, drops, keys, firsts, rows);
        need_array(x, times(rows, layers[0].in), sizeof(float), "input: no array");
        need_array(grads, times(rows, layers.back().out), sizeof(float), "gradients: no array");
        layers_of(back, widths, drops, keys, firsts, rows);
        std::vector<LayerBack> to;
        for (size_t k = 0; k < layers.size(); ++k)
          to.push_back({at<float>(back[2 * k]), at<float>(back[2 * k + 1])});
        perceptron_back(layers, at<const float>(x), rows, made_of<const float>(layers, made, rows, 0),
                        at<const float>(grads), at<float>(of_x), to, threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "dots",
      [](Address x, const std::vector<size_t>& place, Address out, int threads) {
        const Vectors vectors = vectors_of(x, place);
        need_dots(vectors, out);
        dots(vectors, at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "dots_back",
      [](Address x, const std::vector<size_t>& place, Address grads, Address out, int threads) {
        const Vectors vectors = vectors_of(x, place);
        need_dots(vectors, grads);
        vectors_of(out, place);
        dots_back(vectors, at<const float>(grads), at<float>(out), threads);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace shoal
