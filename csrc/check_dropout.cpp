// Masks of dropout: every size and number of threads, against their definition.
#include "check.h"
#include "dropout.h"
#include "kernels.h"

namespace shoal {
namespace {

float expected(size_t i, uint64_t key, double p) {
  const uint64_t mixed = mix(key + kIncrement);
  uint32_t word = static_cast<uint32_t>(mixed) + static_cast<uint32_t>(i) * kMaskStep;
  word = (word ^ word >> 16) * 0x7FEB352Du ^ static_cast<uint32_t>(mixed >> 32);
  word = (word ^ word >> 15) * 0x846CA68Bu;
  const auto threshold = static_cast<uint32_t>(p * 4294967296.0);
  return word < threshold ? 0.0f : static_cast<float>(1.0 / (1.0 - p));
}

void check_mask(size_t n, double p, int threads) {
  const uint64_t key = random_word();
  std::vector<float> out(n + 1, 9.0f);
  dropout_mask(n, key, p, out.data(), threads);
  size_t dropped = 0;
  for (size_t i = 0; i < n; ++i) {
    CHECK(float_bits(out[i]) == float_bits(expected(i, key, p)));
    dropped += out[i] == 0.0f ? 1 : 0;
  }
  CHECK(out[n] == 9.0f);
  const double rate = static_cast<double>(dropped) / static_cast<double>(n);
  if (n > 100000) CHECK(rate > p - 0.01 && rate < p + 0.01);
}

}  // namespace

void check_dropout() {
  for (size_t n = 0; n < 70; ++n) check_mask(n, 0.3, 1);
  for (int threads : {1, 2, 3}) check_mask(400001, 0.1, threads);
}

}  // namespace shoal
