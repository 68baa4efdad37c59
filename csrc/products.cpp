#include "products.h"

#include "floats.h"
#include "softmax_kernels.h"

namespace shoal {

void products(const float* a, const float* b, float* out, size_t count, size_t m, size_t k,
              size_t n) {
  const SoftmaxKernels& kernels = softmax_kernels();
  Floats edge(k * kernels.columns);
  for (size_t i = 0; i < count; ++i)
    kernels.product(a + i * m * k, b + i * k * n, out + i * m * n, m, k, n, edge.data());
}

}  // namespace shoal
