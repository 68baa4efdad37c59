#include "perceptron.h"

#include <algorithm>

#include "floats.h"
#include "threads.h"

namespace shoal {
namespace {

constexpr size_t kPart = 512;  // samples whose sums one thread makes
constexpr size_t kRows = 64;   // samples at a time

size_t up_to(size_t n, size_t whole) { return (n + whole - 1) / whole * whole; }

// Element (r, c) of a matrix [height, width] at x + r * down + c * across, written in tiles.
Floats tiles_of(const float* x, size_t height, size_t width, size_t down, size_t across,
                size_t columns) {
  Floats tiles(height * up_to(width, columns));
  for (size_t c = 0; c < width; ++c) {
    float* const to = tiles.data() + c / columns * columns * height + c % columns;
    for (size_t r = 0; r < height; ++r) to[r * columns] = x[r * down + c * across];
  }
  return tiles;
}

// x [n, width] and zeros, to rows that lie `apart`.
void spread(const float* x, size_t n, size_t width, size_t apart, float* to) {
  for (size_t r = 0; r < n; ++r) {
    std::copy_n(x + r * width, width, to + r * apart);
    std::fill_n(to + r * apart + width, apart - width, 0.0f);
  }
}

void drop(const Layer& layer, size_t first, size_t n, float* x, float* mask) {
  const size_t values = n * layer.in;
  dropout_mask({layer.drop.key, layer.drop.p, 1}, layer.first + first * layer.in, values, mask);
  for (size_t i = 0; i < values; ++i) x[i] *= mask[i];
}

size_t widest(const std::vector<Layer>& layers, size_t columns) {
  size_t found = 0;
  for (const Layer& layer : layers)
    found = std::max({found, up_to(layer.in, columns), up_to(layer.out, columns)});
  return found;
}

// each(part, first, n) for a few of the rows after the other, parts shared by threads; begin(part)
// makes what a part works on.
template <class Begin, class Each>
void for_rows(size_t rows, int threads, const Begin& begin, const Each& each) {
  const size_t parts = (rows + kPart - 1) / kPart;
  const auto most = std::min(static_cast<size_t>(std::max(threads, 1)), parts);
  Pool::run(static_cast<int>(most), static_cast<int>(parts), [&](int number) {
    const auto part = static_cast<size_t>(number);
    auto work = begin();
    const size_t end = std::min(rows, (part + 1) * kPart);
    for (size_t first = part * kPart; first < end; first += kRows)
      each(part, first, std::min(kRows, end - first), work);
  });
}

}  // namespace

void perceptron(const std::vector<Layer>& layers, const float* x, size_t rows,
                const std::vector<float*>& made, int threads) {
  const PerceptronKernels& kernels = perceptron_kernels();
  std::vector<Floats> tiles;
  for (const Layer& layer : layers)
    tiles.push_back(tiles_of(layer.weight, layer.in, layer.out, 1, layer.in, kernels.columns));
  const size_t room = kRows * widest(layers, kernels.columns);
  const auto begin = [&] { return Floats(4 * room); };
  for_rows(rows, threads, begin, [&](size_t, size_t first, size_t n, Floats& work) {
    float *const wide = work.data(), *const mask = wide + room;
    float *given = mask + room, *next = given + room;
    const float* from = x + first * layers[0].in;
    if (layers[0].drop.p > 0) {
      std::copy_n(from, n * layers[0].in, given);
      drop(layers[0], first, n, given, mask);
      from = given;
    }
    for (size_t k = 0; k < layers.size(); ++k) {
      const Layer& layer = layers[k];
      const size_t width = up_to(layer.out, kernels.columns);
      float* const to = made[k] == nullptr ? next : made[k] + first * layer.out;
      kernels.product(from, layer.in, n, tiles[k].data(), layer.in, width, wide);
      kernels.activate(wide, width, layer.bias, n, layer.out, to);
      if (k + 1 < layers.size() && layers[k + 1].drop.p > 0)
        drop(layers[k + 1], first, n, to, mask);
      from = to;
      std::swap(given, next);
    }
  });
}

void perceptron_back(const std::vector<Layer>& layers, const float* x, size_t rows,
                     const std::vector<const float*>& made, const float* grads, float* of_x,
                     const std::vector<LayerBack>& to, int threads) {
  const PerceptronKernels& kernels = perceptron_kernels();
  const size_t columns = kernels.columns, parts = (rows + kPart - 1) / kPart;
  std::vector<Floats> tiles, sums;  // sums: of weight and bias, part by part
  std::vector<size_t> sizes;
  for (const Layer& layer : layers) {
    tiles.push_back(tiles_of(layer.weight, layer.out, layer.in, layer.in, 1, columns));
    sizes.push_back(up_to(layer.out, columns) * (up_to(layer.in, columns) + 1));
    sums.emplace_back(parts * sizes.back());
  }
  const size_t room = kRows * widest(layers, columns);
  const auto begin = [&] { return Floats(4 * room); };
  for_rows(rows, threads, begin, [&](size_t part, size_t first, size_t n, Floats& work) {
    float *grad = work.data(), *back = grad + room;
    float *const from = back + room, *const mask = from + room;
    size_t last = layers.size() - 1;
    spread(grads + first * layers[last].out, n, layers[last].out, up_to(layers[last].out, columns),
           grad);
    for (size_t k = layers.size(); k-- > 0;) {
      const Layer& layer = layers[k];
      const size_t in = up_to(layer.in, columns), out = up_to(layer.out, columns);
      const float scale = k == last || layers[k + 1].drop.p == 0
                              ? 1.0f
                              : static_cast<float>(1.0 / (1.0 - layers[k + 1].drop.p));
      float* const of_weight = sums[k].data() + part * sizes[k];
      kernels.activate_back(grad, out, made[k] + first * layer.out, scale, n, layer.out,
                            of_weight + in * out);
      const float* given = k == 0 ? x : made[k - 1];
      given += first * layer.in;
      const bool dropped = k == 0 && layer.drop.p > 0;
      if (dropped) {  // made again; what is between layers was kept as it was dropped
        std::copy_n(given, n * layer.in, back);
        drop(layer, first, n, back, mask);
        given = back;
      }
      const float* whole = given;
      if (in != layer.in) {
        spread(given, n, layer.in, in, from);
        whole = from;
      }
      kernels.add_turned(grad, out, whole, in, n, of_weight);
      if (k == 0 && of_x == nullptr) break;
      kernels.product(grad, out, n, tiles[k].data(), layer.out, in, back);
      if (k == 0) {
        float* const end = of_x + first * layer.in;
        for (size_t r = 0; r < n; ++r) std::copy_n(back + r * in, layer.in, end + r * layer.in);
        if (dropped)
          for (size_t i = 0; i < n * layer.in; ++i) end[i] *= mask[i];
      }
      std::swap(grad, back);
    }
  });
  for (size_t k = 0; k < layers.size(); ++k) {
    const size_t in = up_to(layers[k].in, columns), out = up_to(layers[k].out, columns);
    const auto total = [&](size_t place) {
      float sum = 0;
      for (size_t part = 0; part < parts; ++part) sum += sums[k][part * sizes[k] + place];
      return sum;
    };
    for (size_t r = 0; r < layers[k].out; ++r) {
      for (size_t c = 0; c < layers[k].in; ++c)
        to[k].weight[r * layers[k].in + c] = total(r * in + c);
      to[k].bias[r] = total(in * out + r);
    }
  }
}

}  // namespace shoal
