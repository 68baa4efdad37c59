// The inner loops: gather rows, sum gradients, apply the optimizer, draw masks.
// kernels.cpp is compiled once per instruction set; `kernels()` picks what this machine has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "random.h"

namespace shoal {

// Row optimizers, as shoal/optimizers/row_optimizer.py names them; their steps are in kernels.cpp.
enum class Optimizer : int { sgd, momentum, adagrad, rowwise_adagrad, adam, adamw, ftrl, rmsprop };
constexpr const char* kOptimizers[] = {"sgd",  "momentum", "adagrad", "rowwise_adagrad",
                                       "adam", "adamw",    "ftrl",    "rmsprop"};
constexpr size_t kPieces[] = {0, 1, 1, 1, 2, 2, 2, 1};  // of state that each of them keeps

// Hyper-parameters; those that an optimizer does not have are not read.
struct Hyper {
  Optimizer kind = Optimizer::sgd;
  float rest1 = 0, rest2 = 0, rest_alpha = 0;  // 1 - beta1, 1 - beta2, 1 - alpha, rounded once
  float momentum = 0, l1 = 0, l2 = 0, beta = 0;
  float weight_decay = 0, clip = 0;  // clip 0: off
};

// What changes from step to step; see StepNumbers in shoal/optimizers/row_optimizer.py.
struct StepNumbers {
  float size = 0, eps = 0, lr = 0;
  float keep = 1;  // adamw: 1 - lr * weight_decay
};

// Where the parts of a row's record lie, in bytes: [values][state][counters].
struct Layout {
  int dim = 0;
  bool half = false;  // values are bfloat16
  size_t state = 0;   // offset of the state
  size_t state_floats = 0;
  size_t counters = 0;  // offset of the counters
  size_t stride = 0;    // of the whole record
};

// Bags of neighbouring ids: bag k is those from starts[k] to starts[k + 1], and reads as the sum of
// weights * row over them.
struct IdBags {
  const int64_t* starts = nullptr;  // [count + 1]; null: no bags
  size_t count = 0;
  const float* weights = nullptr;  // one for each id; null: 1
};

// Gradients of many rows to be summed and applied. Row u's occurrences are
// order[starts[u]] ... order[starts[u + 1] - 1], in order of arrival.
struct Apply {
  Layout layout;
  Hyper hyper;
  StepNumbers now;
  size_t count = 0;
  char* const* records = nullptr;
  const uint32_t* starts = nullptr;
  const uint32_t* order = nullptr;
  const float* weights = nullptr;  // of every occurrence, as `order` has them; null: 1
  const float* grads = nullptr;    // [n, dim]; order says which of them
  float* scratch = nullptr;      // [2, dim]
  const int64_t* ids = nullptr;  // of the rows; for the noise of bfloat16 rounding
  uint64_t noise_key = 0;
};

// Gradients of occurrences to be added into one row of `sums` for each distinct id. Distinct ids
// are numbered by first arrival.
struct Scatter {
  int dim = 0;
  size_t occurrences = 0;
  const uint32_t* position = nullptr;
  const uint32_t* distinct_of = nullptr;
  const float* weights = nullptr;  // of each occurrence; null: 1
  const float* grads = nullptr;
  float* sums = nullptr;
};

// Which of `parts` parts of a table a row belongs to, by its id.
inline uint64_t part_of(int64_t id, uint64_t parts) {
  return (static_cast<uint64_t>(id) * kIncrement >> 32) * parts >> 32;
}

// One optimizer step. Rule: sgd, adagrad, adam or adamw.
struct Rule {
  Optimizer kind = Optimizer::sgd;
  float size = 0, eps = 0, rest1 = 0, rest2 = 0;
  float decay = 0, keep = 1;  // L2, added to the gradient; decoupled
};

// Values and their state; state that the optimizer does not have is null.
struct Learned {
  float* values = nullptr;
  float* first = nullptr;
  float* second = nullptr;

  Learned from(size_t place) const {
    const auto moved = [place](float* x) { return x == nullptr ? nullptr : x + place; };
    return {moved(values), moved(first), moved(second)};
  }
};

// A mask of dropout, see dropout.h: the word of value i is mixed from start + i * kMaskStep.
struct Mask {
  uint32_t start = 0, key = 0;
  uint32_t threshold = 0;  // words below it are 0 in the mask
  float scale = 1;         // and the others this
};
constexpr uint32_t kMaskStep = 0x9E3779B9u;

struct Kernels {
  const char* name;
  void (*scatter)(const Scatter&);
  void (*apply)(const Apply&);
  // out[i] = values of the record base + ids[i] * stride
  void (*gather)(const Layout&, const char* base, const int64_t* ids, size_t n, float* out);
  void (*read_values)(const Layout&, const char* record, float* out);
  // out[k] = the sum of bag k for k from first to last - 1; n: of all ids
  void (*gather_bags)(const Layout&, const char* base, const int64_t* ids, size_t n,
                      const IdBags& bags, size_t first, size_t last, float* out);
  // out += weight * values of the record
  void (*add_values)(const Layout&, const char* record, const float* weight, float* out);
  void (*write_mask)(Mask mask, size_t n, float* out);
};

const Kernels& kernels();

}  // namespace shoal
