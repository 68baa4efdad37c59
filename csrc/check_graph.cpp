// Graphs: layers against products in double, and threads against one thread.
#include <cmath>

#include "check.h"
#include "convolution.h"
#include "graph.h"
#include "pairs.h"

namespace shoal {
namespace {

// x = added + M x, so many times.
void check_spread(size_t nodes, size_t dim, size_t layers, bool adds) {
  std::vector<int64_t> starts{0};
  std::vector<int32_t> neighbours;
  for (size_t k = 0; k < nodes; ++k) {
    for (uint64_t some = random_word() % 7; some > 0; --some)
      neighbours.push_back(static_cast<int32_t>(random_word() % nodes));
    starts.push_back(static_cast<int64_t>(neighbours.size()));
  }
  const std::vector<float> x = random_floats(nodes * dim), shares = random_floats(nodes);
  const Graph graph{starts.data(), neighbours.data(), shares.data(), nodes};
  std::vector<double> now(x.begin(), x.end());
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<double> next(nodes * dim);
    for (size_t k = 0; k < nodes; ++k)
      for (size_t c = 0; c < dim; ++c) {
        double sum = 0;
        for (int64_t p = starts[k]; p < starts[k + 1]; ++p) {
          const auto other = static_cast<size_t>(neighbours[static_cast<size_t>(p)]);
          sum += double{shares[other]} * now[other * dim + c];
        }
        next[k * dim + c] = sum * shares[k] + (adds ? x[k * dim + c] : 0.0f);
      }
    now = next;
  }
  for (int threads : {1, 3}) {
    std::vector<float> out(x.size());
    spread(graph, {x.data(), adds ? x.data() : nullptr, dim, layers, 0.5f}, out.data(), threads);
    for (size_t i = 0; i < out.size(); ++i) CHECK(std::fabs(out[i] - 0.5 * now[i]) < 1e-3);
  }
}

void check_placed(size_t n, size_t count, size_t dim) {
  const std::vector<float> rows = random_floats(n * dim);
  std::vector<int64_t> places(3 * count);
  for (int64_t& place : places) place = static_cast<int64_t>(random_word() % n);
  const PlacedPairs pairs{rows.data(), places.data(), places.data() + count,
                          places.data() + 2 * count, n, count, dim};
  std::vector<float> slopes(count), again(count), out(n * dim), other(n * dim);
  CHECK(pair_loss(pairs, slopes.data(), 1) == pair_loss(pairs, again.data(), 3));
  CHECK(slopes == again);
  pair_gradients(pairs, slopes.data(), 0.5f, out.data(), 1);
  pair_gradients(pairs, slopes.data(), 0.5f, other.data(), 3);
  CHECK(out == other);
}

void check_convolution(size_t nodes, size_t width, double p) {
  const size_t stride = width + 3;
  const std::vector<float> s = random_floats(nodes * width), x = random_floats(nodes * width);
  const std::vector<float> bias = random_floats(width), grads = random_floats(nodes * stride);
  const Layer layer{nodes, width, stride, 0.2f, 1e-12f};
  const Dropout drop{random_word(), p, 1};
  std::vector<float> alone;
  for (int threads : {1, 3}) {
    std::vector<float> sides(2 * nodes * width), of_s(s.size()), of_x(s.size()), y = s;
    std::vector<float> unit(nodes * stride), lengths(nodes), back(s.size()), sums(width);
    join_sides(s.data(), x.data(), nodes, width, sides.data(), threads);
    part_sides(sides.data(), s.data(), x.data(), nodes, width, of_s.data(), of_x.data(), threads);
    for (size_t i = 0; i < s.size(); ++i) {
      const double sum = double{s[i]} + x[i], product = double{s[i]} * x[i];
      CHECK(std::fabs(of_s[i] - (sum + product * x[i])) < 1e-5);
      CHECK(std::fabs(of_x[i] - (sum + product * s[i])) < 1e-5);
    }
    finish_layer(layer, y.data(), bias.data(), p > 0 ? &drop : nullptr, unit.data(),
                 lengths.data(), threads);
    finish_layer_back(layer,
                      {y.data(), unit.data(), lengths.data(), grads.data(), s.data(),
                       static_cast<float>(1 / (1 - p)), p > 0},
                      back.data(), sums.data(), threads);
    back.insert(back.end(), sums.begin(), sums.end());
    if (threads == 1) alone = back;
    CHECK(alone == back);
  }
}

}  // namespace

void check_graph() {
  for (size_t dim : {1, 16, 37})
    for (size_t layers : {0, 1, 3})
      for (bool adds : {false, true}) check_spread(60, dim, layers, adds);
  check_spread(20000, 33, 2, true);  // more than a near cache holds, and than one thread's worth
  for (size_t dim : {1, 5, 48}) check_placed(31, 200, dim);
  for (double p : {0.0, 0.3}) {
    check_convolution(7, 5, p);
    check_convolution(3001, 70, p);
  }
}

}  // namespace shoal
