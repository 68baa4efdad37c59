// Memory for vectors: one that crosses a cache line costs as much as two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

class Floats {
 public:
  Floats() = default;
  explicit Floats(size_t n, float value = 0.0f) : all_(n + kLine, value) {
    const size_t beyond = reinterpret_cast<uintptr_t>(all_.data()) / sizeof(float) % kLine;
    begin_ = all_.data() + (kLine - beyond) % kLine;
  }
  Floats(Floats&&) = default;
  Floats& operator=(Floats&&) = default;

  float* data() { return begin_; }
  float operator[](size_t i) const { return begin_[i]; }

 private:
  static constexpr size_t kLine = 16;  // floats of a cache line
  std::vector<float> all_;
  float* begin_ = nullptr;
};

}  // namespace shoal
