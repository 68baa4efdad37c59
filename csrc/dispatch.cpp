// Picks the widest build of the inner loops that this machine can run.
#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <stdexcept>

#include "kernels.h"
#include "softmax_kernels.h"

#if defined(__aarch64__)
#define SHOAL_LEAST neon
#else
#define SHOAL_LEAST baseline
#endif

namespace shoal {
namespace SHOAL_LEAST {
extern const Kernels table;
extern const SoftmaxKernels softmax_table;
}
#ifdef SHOAL_HAS_AVX
namespace avx2 {
extern const Kernels table;
extern const SoftmaxKernels softmax_table;
}
namespace avx512 {
extern const Kernels table;
extern const SoftmaxKernels softmax_table;
}
#endif
namespace {

struct Build {
  const Kernels* kernels;
  const SoftmaxKernels* softmax;
};

#ifdef SHOAL_HAS_AVX
struct Vectors {
  bool avx2 = false, avx512 = false;
};

// What the processor has, and the system keeps when it switches threads. Not __builtin_cpu_supports:
// it needs a runtime library that Zig does not have.
Vectors find_vectors() {
  unsigned a, b, c, d, kept, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA)) return {};
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  asm volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  constexpr unsigned ymm = 0x06, zmm = 0xe6;
  constexpr unsigned avx512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  return {(kept & ymm) == ymm && (b & bit_AVX2), (kept & zmm) == zmm && (b & avx512) == avx512};
}
#endif

// Those that this machine can run, the widest first.
const std::vector<Build>& builds() {
  static const std::vector<Build> found = [] {
    std::vector<Build> all;
#ifdef SHOAL_HAS_AVX
    const Vectors here = find_vectors();
    if (here.avx512) all.push_back({&avx512::table, &avx512::softmax_table});
    if (here.avx2) all.push_back({&avx2::table, &avx2::softmax_table});
#endif
    all.push_back({&SHOAL_LEAST::table, &SHOAL_LEAST::softmax_table});
    return all;
  }();
  return found;
}

std::atomic<const Build*>& chosen() {
  static std::atomic<const Build*> build{&builds().front()};
  return build;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed)->kernels; }

const SoftmaxKernels& softmax_kernels() {
  return *chosen().load(std::memory_order_relaxed)->softmax;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Build& build : builds()) names.emplace_back(build.kernels->name);
  return names;
}

void use_instruction_set(const std::string& name) {
  for (const Build& build : builds())
    if (name == build.kernels->name) {
      chosen().store(&build, std::memory_order_relaxed);
      return;
    }
  std::string known;
  for (const std::string& one : instruction_sets()) known += (known.empty() ? "" : ", ") + one;
  throw std::invalid_argument("no build of the core for " + name + " runs here; there are " + known);
}

}  // namespace shoal
