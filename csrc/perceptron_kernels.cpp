// As in softmax_kernels.cpp nothing of the standard library is used here that is only inlined.
#include "perceptron.h"
#include "tiles.h"

#ifndef SHOAL_ISA
#error "SHOAL_ISA names the instruction set of this build"
#endif

namespace shoal {
namespace SHOAL_ISA {
namespace {

void product(const float* a, size_t apart, size_t rows, const float* tiles, size_t height,
             size_t width, float* out) {
  for (size_t c = 0; c < width; c += kColumns, tiles += height * kColumns)
    for (size_t r = 0; r < rows; r += kLow) {
      const size_t high = rows - r < kLow ? rows - r : kLow;
      const float* some[kLow];
      for (size_t i = 0; i < kLow; ++i) some[i] = a + (r + (i < high ? i : high - 1)) * apart;
      multiply<kLow, kLong>(some, tiles, kColumns, height, kZeros, out + r * width + c, width,
                            high);
    }
}

void add_turned(const float* a, size_t width_a, const float* b, size_t width_b, size_t rows,
                float* out) {
  for (size_t c = 0; c < width_b; c += kColumns)
    for (size_t r = 0; r < width_a; r += kLow)
      multiply_turned(a + r, width_a, b + c, width_b, rows, out + r * width_b + c, width_b);
}

// What is no number stays so: it is not below 0.
void activate(const float* x, size_t apart, const float* bias, size_t rows, size_t width,
              float* to) {
  for (size_t r = 0; r < rows; ++r, x += apart, to += width) {
    size_t c = 0;
    for (; c + kLanes <= width; c += kLanes) {
      const Vector made = load(x + c) + load(bias + c);
      store(to + c, (Vector)((Words)made & ~(Words)(made < all(0.0f))));
    }
    for (; c < width; ++c) {
      const float made = x[c] + bias[c];
      to[c] = made < 0 ? 0.0f : made;
    }
  }
}

void activate_back(float* grad, size_t apart, const float* made, float scale, size_t rows,
                   size_t width, float* sums) {
  for (size_t r = 0; r < rows; ++r, grad += apart, made += width) {
    size_t c = 0;
    for (; c + kLanes <= width; c += kLanes) {
      const Words left_out = (Words)(load(made + c) <= all(0.0f));
      const Vector back = (Vector)((Words)(load(grad + c) * all(scale)) & ~left_out);
      store(grad + c, back);
      store(sums + c, load(sums + c) + back);
    }
    for (; c < width; ++c) {
      grad[c] = made[c] <= 0 ? 0.0f : grad[c] * scale;
      sums[c] += grad[c];
    }
  }
}

}  // namespace

extern const PerceptronKernels perceptron_table;
const PerceptronKernels perceptron_table = {kColumns, product, add_turned, activate, activate_back};

}  // namespace SHOAL_ISA
}  // namespace shoal
