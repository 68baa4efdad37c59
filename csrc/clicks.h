// Metrics of predicted clicks, each in one pass: see shoal/training/metrics/native.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

// Samples that are predicted: a label of 1 is a click.
struct Predicted {
  const double* scores = nullptr;
  const double* labels = nullptr;
  size_t n = 0;
};

// Pairs of a click with a sample that is none where the click scores higher, counted twice; ties
// once.
struct PairsInOrder {
  uint64_t twice = 0;
  size_t clicks = 0;
  bool odd = false;  // a score is no number, and `twice` says nothing
};
PairsInOrder pairs_in_order(const Predicted& of);

// The sum of -ln of the probability, 1e-15 at the least, that a score gave to its label.
struct LogLoss {
  double sum = 0;
  bool outside = false;  // a score is below 0 or above 1
};
LogLoss log_loss(const Predicted& of);

// The first label that is neither 0 nor 1; n: there is none.
size_t first_odd(const double* labels, size_t n);

}  // namespace shoal
