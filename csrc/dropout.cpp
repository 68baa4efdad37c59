#include "dropout.h"

#include <algorithm>

#include "kernels.h"
#include "threads.h"

namespace shoal {

void dropout_mask(size_t n, uint64_t key, double p, float* out, int threads) {
  constexpr size_t enough = 1 << 17;  // values that are worth another thread
  constexpr double words = 4294967296.0;
  const uint64_t mixed = mix(key + kIncrement);  // neighbouring keys have nothing in common
  const auto start = static_cast<uint32_t>(mixed);
  Mask mask;
  mask.key = static_cast<uint32_t>(mixed >> 32);
  mask.threshold = static_cast<uint32_t>(std::min(p * words, words - 1));
  mask.scale = static_cast<float>(1.0 / (1.0 - p));
  const size_t most = static_cast<size_t>(std::max(threads, 1));
  const size_t parts = std::min(std::max<size_t>(n / enough, 1), most);
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const size_t begin = n * static_cast<size_t>(part) / parts;
    const size_t end = n * (static_cast<size_t>(part) + 1) / parts;
    Mask own = mask;
    own.start = start + static_cast<uint32_t>(begin) * kMaskStep;
    kernels().write_mask(own, end - begin, out + begin);
  });
}

}  // namespace shoal
