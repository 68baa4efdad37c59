// Picks the widest build of the kernels that this machine can run.
#include "kernels.h"

namespace shoal {
namespace baseline {
extern const Kernels table;
}
#ifdef SHOAL_HAS_AVX2
namespace avx2 {
extern const Kernels table;
}
#endif
#ifdef SHOAL_HAS_AVX512
namespace avx512 {
extern const Kernels table;
}
#endif

const Kernels& kernels() {
  static const Kernels* const chosen = [] {
#ifdef SHOAL_HAS_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      return &avx512::table;
#endif
#ifdef SHOAL_HAS_AVX2
    if (__builtin_cpu_supports("avx2")) return &avx2::table;
#endif
    return &baseline::table;
  }();
  return *chosen;
}

}  // namespace shoal
