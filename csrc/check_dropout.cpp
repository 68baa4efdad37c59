// Dropout: every size, every number of threads, in place or not, against its definition.
#include "check.h"
#include "dropout.h"
#include "kernels.h"

namespace shoal {
namespace {

float expected(float x, size_t i, uint64_t key, double p) {
  const uint64_t mixed = mix(key + kIncrement);
  uint32_t word = static_cast<uint32_t>(mixed) + static_cast<uint32_t>(i) * kMaskStep;
  word = (word ^ word >> 16) * 0x7FEB352Du ^ static_cast<uint32_t>(mixed >> 32);
  word = (word ^ word >> 15) * 0x846CA68Bu;
  return word < static_cast<uint32_t>(p * 4294967296.0) ? 0.0f : x * static_cast<float>(1.0 / (1.0 - p));
}

void check_size(size_t n, double p, int threads) {
  const std::vector<float> x = random_floats(n);
  const uint64_t key = random_word();
  std::vector<float> out(n, 9.0f), same = x;
  dropout(x.data(), n, key, p, out.data(), threads);
  dropout(same.data(), n, key, p, same.data(), 1);
  size_t dropped = 0;
  for (size_t i = 0; i < n; ++i) {
    CHECK(float_bits(out[i]) == float_bits(expected(x[i], i, key, p)) || x[i] == 0.0f);
    CHECK(float_bits(out[i]) == float_bits(same[i]));
    dropped += out[i] == 0.0f && x[i] != 0.0f ? 1 : 0;
  }
  if (n > 100000) CHECK(dropped > (p - 0.01) * n && dropped < (p + 0.01) * n);
}

}  // namespace

void check_dropout() {
  for (size_t n = 0; n < 70; ++n) check_size(n, 0.3, 1);
  for (int threads : {1, 2, 3}) check_size(400001, 0.1, threads);
}

}  // namespace shoal
