#include "attend.h"

#include <algorithm>
#include <vector>

#include "floats.h"
#include "threads.h"

namespace shoal {
namespace {

constexpr size_t kPart = 512;  // samples whose sums one thread makes

size_t rows_of(const Attend& of) { return 4 * of.heads * of.width; }

std::vector<float> turned_weight(const Attend& of) {
  const size_t rows = rows_of(of), dim = of.x.dim;
  std::vector<float> turned(dim * rows);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < dim; ++c) turned[c * rows + r] = of.weight[r * dim + c];
  return turned;
}

// each(part, first, n, work) for all samples, a few at a time, parts shared by threads.
template <class Each>
void for_samples(const Attend& of, const AttendKernels& kernels, int threads, const Each& each) {
  const size_t parts = (of.x.samples + kPart - 1) / kPart;
  const auto most = std::min(static_cast<size_t>(std::max(threads, 1)), parts);
  Pool::run(static_cast<int>(most), static_cast<int>(parts), [&](int number) {
    const auto part = static_cast<size_t>(number);
    Floats work(kernels.room(of));
    const size_t end = std::min(of.x.samples, (part + 1) * kPart);
    for (size_t first = part * kPart; first < end; first += kernels.side)
      each(part, first, std::min(kernels.side, end - first), work.data());
  });
}

}  // namespace

void attend(const Attend& of, float* out, int threads) {
  const AttendKernels& kernels = attend_kernels();
  const std::vector<float> turned = turned_weight(of);
  for_samples(of, kernels, threads, [&](size_t, size_t first, size_t n, float* work) {
    kernels.forward(of, turned.data(), first, n, work, out);
  });
}

void attend_back(const Attend& of, const float* grads, float* of_x, float* of_weight, int threads) {
  const AttendKernels& kernels = attend_kernels();
  const std::vector<float> turned = turned_weight(of);
  const size_t parts = (of.x.samples + kPart - 1) / kPart, weights = rows_of(of) * of.x.dim;
  std::vector<float> sums(parts * weights * kernels.lanes);
  for_samples(of, kernels, threads, [&](size_t part, size_t first, size_t n, float* work) {
    kernels.back(of, turned.data(), first, n, grads, work, of_x,
                 sums.data() + part * weights * kernels.lanes);
  });
  for (size_t k = 0; k < weights; ++k) {
    float sum = 0;
    for (size_t part = 0; part < parts; ++part)
      for (size_t lane = 0; lane < kernels.lanes; ++lane)
        sum += sums[(part * weights + k) * kernels.lanes + lane];
    of_weight[k] = sum;
  }
}

}  // namespace shoal
