// Which build of the inner loops is used: kernels() and softmax_kernels() are of
// the same one.
#pragma once

#include <string>
#include <vector>

namespace shoal {

// Those that this machine can run, the widest first, which is used.
std::vector<std::string> instruction_sets();

// Takes another one, for tests and benchmarks; std::invalid_argument where it cannot run here.
void use_instruction_set(const std::string& name);

}  // namespace shoal
