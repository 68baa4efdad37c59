// Picks the widest build of the inner loops that this machine can run.
#include "dispatch.h"

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
#ifdef SHOAL_HAS_AVX2
namespace avx2 {
extern const Kernels table;
extern const SoftmaxKernels softmax_table;
}
#endif
#ifdef SHOAL_HAS_AVX512
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

// Those that this machine can run, the widest first.
const std::vector<Build>& builds() {
  static const std::vector<Build> found = [] {
    std::vector<Build> all;
#ifdef SHOAL_HAS_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("fma"))
      all.push_back({&avx512::table, &avx512::softmax_table});
#endif
#ifdef SHOAL_HAS_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      all.push_back({&avx2::table, &avx2::softmax_table});
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
