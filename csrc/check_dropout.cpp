// Masks of dropout: every size, first position and number of threads, against their definition.
#include "check.h"
#include "dropout.h"
#include "kernels.h"

namespace shoal {
namespace {

float expected(uint64_t i, const Dropout& how) {
  const uint64_t mixed = mix(how.key + kIncrement);
  uint32_t word = static_cast<uint32_t>(mixed) + static_cast<uint32_t>(i) * kMaskStep;
  word = (word ^ word >> 16) * 0x7FEB352Du ^ static_cast<uint32_t>(mixed >> 32);
  word = (word ^ word >> 15) * 0x846CA68Bu;
  const auto threshold = static_cast<uint32_t>(how.p * 4294967296.0);
  return word < threshold ? 0.0f : static_cast<float>(1.0 / (1.0 - how.p));
}

void check_mask(uint64_t first, size_t n, double p, int threads) {
  const Dropout how{random_word(), p, threads};
  std::vector<float> out(n + 1, 9.0f);
  dropout_mask(how, first, n, out.data());
  size_t dropped = 0;
  for (size_t i = 0; i < n; ++i) {
    CHECK(float_bits(out[i]) == float_bits(expected(first + i, how)));
    dropped += out[i] == 0.0f ? 1 : 0;
  }
  CHECK(out[n] == 9.0f);
  const double rate = static_cast<double>(dropped) / static_cast<double>(n);
  if (n > 100000) CHECK(rate > p - 0.01 && rate < p + 0.01);
}

void check_rows(size_t count, size_t width, int threads) {
  const Dropout how{random_word(), 0.4, threads};
  const uint64_t first = random_word() >> 32;
  std::vector<int64_t> rows(count);
  for (int64_t& row : rows) row = static_cast<int64_t>(random_word() >> 40);
  std::vector<float> out(count * width + 1, 9.0f);
  dropout_rows(how, first, rows.data(), count, width, out.data());
  for (size_t i = 0; i < count * width; ++i) {
    const uint64_t row = first + static_cast<uint64_t>(rows[i / width]);
    CHECK(float_bits(out[i]) == float_bits(expected(row * width + i % width, how)));
  }
  CHECK(out[count * width] == 9.0f);
}

}  // namespace

void check_dropout() {
  for (size_t n = 0; n < 70; ++n) check_mask(n * n, n, 0.3, 1);
  for (int threads : {1, 2, 3}) check_mask(0xFFFFFFF0ull, 400001, 0.1, threads);
  for (size_t count : {0, 1, 5}) {
    for (size_t width : {1, 16, 37}) check_rows(count, width, 1);
  }
  for (int threads : {1, 2, 3}) check_rows(9001, 50, threads);
}

}  // namespace shoal
