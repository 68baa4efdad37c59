#include "convolution.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "threads.h"

namespace shoal {
namespace {

typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef int32_t Bits __attribute__((vector_size(16), aligned(4)));

inline Four load(const float* from) { return *reinterpret_cast<const Four*>(from); }
inline void store(float* to, Four x) { *reinterpret_cast<Four*>(to) = x; }

constexpr size_t kRows = 64;  // of a block, whose sums are made together

template <class Work>
void for_rows(size_t nodes, size_t width, int threads, const Work& work) {
  constexpr size_t enough = 1 << 16;  // values that are worth another thread
  const size_t blocks = (nodes + kRows - 1) / kRows;
  const size_t most = std::max<size_t>(nodes * width / enough, 1);
  const size_t parts = std::min({most, static_cast<size_t>(std::max(threads, 1)),
                                 std::max<size_t>(blocks, 1)});
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const auto p = static_cast<size_t>(part);
    for (size_t b = blocks * p / parts; b < blocks * (p + 1) / parts; ++b)
      work(b * kRows, std::min(nodes, (b + 1) * kRows));
  });
}

// <a, b>, in four sums side by side.
inline float dot(const float* a, const float* b, size_t n) {
  Four sums = {};
  size_t c = 0;
  for (; c + 4 <= n; c += 4) sums += load(a + c) * load(b + c);
  float total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; c < n; ++c) total += a[c] * b[c];
  return total;
}

}  // namespace

void join_sides(const float* s, const float* x, size_t nodes, size_t dim, float* out,
                int threads) {
  for_rows(nodes, dim, threads, [&](size_t first, size_t last) {
    for (size_t r = first; r < last; ++r) {
      const float *__restrict a = s + r * dim, *__restrict b = x + r * dim;
      float* __restrict to = out + 2 * r * dim;
      for (size_t c = 0; c < dim; ++c) to[c] = a[c] + b[c];
      for (size_t c = 0; c < dim; ++c) to[dim + c] = a[c] * b[c];
    }
  });
}

void part_sides(const float* grads, const float* s, const float* x, size_t nodes, size_t dim,
                float* of_s, float* of_x, int threads) {
  for_rows(nodes, dim, threads, [&](size_t first, size_t last) {
    for (size_t r = first; r < last; ++r) {
      const float *__restrict a = s + r * dim, *__restrict b = x + r * dim;
      const float *__restrict sum = grads + 2 * r * dim, *__restrict product = sum + dim;
      float *__restrict to_s = of_s + r * dim, *__restrict to_x = of_x + r * dim;
      for (size_t c = 0; c < dim; ++c) to_s[c] = sum[c] + product[c] * b[c];
      for (size_t c = 0; c < dim; ++c) to_x[c] = sum[c] + product[c] * a[c];
    }
  });
}

void finish_layer(const Layer& layer, float* y, const float* bias, const Dropout* drop, float* unit,
                  float* lengths, int threads) {
  const size_t width = layer.width;
  const float slope = layer.slope;
  for_rows(layer.nodes, width, threads, [&](size_t first, size_t last) {
    thread_local std::vector<float> mask;
    if (drop != nullptr) {
      mask.resize(kRows * width);
      dropout_mask({drop->key, drop->p, 1}, first * width, (last - first) * width, mask.data());
    }
    for (size_t r = first; r < last; ++r) {
      float* __restrict row = y + r * width;
      size_t c = 0;
      for (; c + 4 <= width; c += 4) {  // by hand: GCC would branch at every value
        const Four made = load(row + c) + load(bias + c), low = made * slope;
        const Bits up = made > 0;
        store(row + c, (Four)((up & (Bits)made) | (~up & (Bits)low)));
      }
      for (; c < width; ++c) {
        const float made = row[c] + bias[c];
        row[c] = made > 0 ? made : made * slope;
      }
      if (drop != nullptr) {
        const float* __restrict kept = mask.data() + (r - first) * width;
        for (size_t k = 0; k < width; ++k) row[k] *= kept[k];
      }
      const float length = std::max(std::sqrt(dot(row, row, width)), layer.shortest);
      float* __restrict to = unit + r * layer.stride;
      const float factor = 1.0f / length;
      for (size_t k = 0; k < width; ++k) to[k] = row[k] * factor;
      lengths[r] = length;
    }
  });
}

void finish_layer_back(const Layer& layer, const Finished& of, float* back, float* sums,
                       int threads) {
  const size_t width = layer.width, blocks = (layer.nodes + kRows - 1) / kRows;
  std::vector<float> parts(blocks * width, 0.0f);
  const float above = of.scale, below = of.scale * layer.slope, at_zero = of.dropped ? 0.0f : below;
  for_rows(layer.nodes, width, threads, [&](size_t first, size_t last) {
    float* __restrict sum = parts.data() + first / kRows * width;
    for (size_t r = first; r < last; ++r) {
      const float* __restrict unit = of.unit + r * layer.stride;
      const float* __restrict grad = of.grads + r * layer.stride;
      const float* __restrict made = of.y + r * width;
      float* __restrict to = back + r * width;
      const float along = dot(grad, unit, width), share = 1.0f / of.lengths[r];
      const auto slope_of = [&](float y) { return y > 0 ? above : y < 0 ? below : at_zero; };
      size_t c = 0;
      for (; c + 4 <= width; c += 4) {
        Four g = (load(grad + c) - load(unit + c) * along) * share;
        if (of.of_y != nullptr) g += load(of.of_y + r * width + c);
        const Four value = load(made + c), nothing = {};
        const Bits up = value > nothing, down = value < nothing;
        const Four slopes = (Four)((up & (Bits)(nothing + above)) | (down & (Bits)(nothing + below)) |
                                   (~(up | down) & (Bits)(nothing + at_zero)));
        g *= slopes;
        store(to + c, g);
        store(sum + c, load(sum + c) + g);
      }
      for (; c < width; ++c) {
        float g = (grad[c] - unit[c] * along) * share;
        if (of.of_y != nullptr) g += of.of_y[r * width + c];
        to[c] = g * slope_of(made[c]);
        sum[c] += to[c];
      }
    }
  });
  std::fill_n(sums, width, 0.0f);
  for (size_t block = 0; block < blocks; ++block)
    for (size_t c = 0; c < width; ++c) sums[c] += parts[block * width + c];
}

}  // namespace shoal
