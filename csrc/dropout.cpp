#include "dropout.h"

#include <algorithm>

#include "kernels.h"
#include "threads.h"

namespace shoal {
namespace {

Mask mask_of(const Dropout& how) {
  constexpr double words = 4294967296.0;
  const uint64_t mixed = mix(how.key + kIncrement);  // neighbouring keys have nothing in common
  Mask mask;
  mask.start = static_cast<uint32_t>(mixed);
  mask.key = static_cast<uint32_t>(mixed >> 32);
  mask.threshold = static_cast<uint32_t>(std::min(how.p * words, words - 1));
  mask.scale = static_cast<float>(1.0 / (1.0 - how.p));
  return mask;
}

void write_from(Mask mask, uint64_t first, size_t n, float* out) {
  mask.start += static_cast<uint32_t>(first) * kMaskStep;
  kernels().write_mask(mask, n, out);
}

// run(begin, end) for parts of `count` units of `width` values each, by so many threads as pay off.
template <class Run>
void in_parts(size_t count, size_t width, int threads, const Run& run) {
  constexpr size_t enough = 1 << 17;  // values that are worth another thread
  const size_t most = static_cast<size_t>(std::max(threads, 1));
  const size_t parts = std::min(std::max<size_t>(count * width / enough, 1), most);
  Pool::run(static_cast<int>(parts), static_cast<int>(parts), [&](int part) {
    const auto number = static_cast<size_t>(part);
    run(count * number / parts, count * (number + 1) / parts);
  });
}

}  // namespace

void dropout_mask(const Dropout& how, uint64_t first, size_t n, float* out) {
  const Mask mask = mask_of(how);
  in_parts(n, 1, how.threads, [&](size_t begin, size_t end) {
    write_from(mask, first + begin, end - begin, out + begin);
  });
}

void dropout_rows(const Dropout& how, uint64_t first, const int64_t* rows, size_t count,
                  size_t width, size_t stride, float* out) {
  const Mask mask = mask_of(how);
  in_parts(count, width, how.threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const uint64_t row = first + static_cast<uint64_t>(rows[r]);
      write_from(mask, row * stride, width, out + r * width);
    }
  });
}

}  // namespace shoal
