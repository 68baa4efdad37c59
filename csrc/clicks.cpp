#include "clicks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace shoal {
namespace {

// Words that ascend as the numbers do; both zeros are one.
uint64_t word_of(double x) {
  x += 0.0;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
}

// Sorts by digits, the lowest first; one that all words have in common costs nothing.
void sort(std::vector<uint64_t>& words) {
  constexpr size_t bits = 11, values = size_t{1} << bits, digits = 6;
  const auto digit = [](uint64_t word, size_t d) { return word >> (bits * d) & (values - 1); };
  std::vector<size_t> places(digits * values);
  for (uint64_t word : words)
    for (size_t d = 0; d < digits; ++d) ++places[d * values + digit(word, d)];
  std::vector<uint64_t> sorted(words.size());
  for (size_t d = 0; d < digits && !words.empty(); ++d) {
    size_t* const at = places.data() + d * values;
    if (at[digit(words[0], d)] == words.size()) continue;
    size_t before = 0;
    for (size_t v = 0; v < values; ++v) before += std::exchange(at[v], before);
    for (uint64_t word : words) sorted[at[digit(word, d)]++] = word;
    words.swap(sorted);
  }
}

}  // namespace

PairsInOrder pairs_in_order(const Predicted& of) {
  PairsInOrder found;
  for (size_t i = 0; i < of.n; ++i) {
    found.clicks += of.labels[i] == 1;
    found.odd |= of.scores[i] != of.scores[i];
  }
  std::vector<uint64_t> high(found.clicks), low(of.n - found.clicks);
  // Every word is written into both, and only the place of one moves on.
  high.push_back(0);
  low.push_back(0);
  for (size_t i = 0, h = 0, l = 0; i < of.n; ++i) {
    const bool click = of.labels[i] == 1;
    high[h] = low[l] = word_of(of.scores[i]);
    h += click;
    l += !click;
  }
  high.pop_back();
  low.pop_back();
  sort(high);
  sort(low);
  size_t below = 0, up_to = 0;
  for (uint64_t word : high) {
    while (below < low.size() && low[below] < word) ++below;
    up_to = std::max(up_to, below);
    while (up_to < low.size() && low[up_to] == word) ++up_to;
    found.twice += below + up_to;
  }
  return found;
}

LogLoss log_loss(const Predicted& of) {
  constexpr size_t together = 16;  // one logarithm of their product, which is 1e-240 at the least
  LogLoss found;
  for (size_t i = 0; i < of.n; i += together) {
    double product = 1;
    for (size_t k = i; k < std::min(of.n, i + together); ++k) {
      const double score = of.scores[k], given = of.labels[k] == 1 ? score : 1 - score;
      found.outside |= score < 0 || score > 1;
      product *= given < 1e-15 ? 1e-15 : given;
    }
    found.sum -= std::log(product);
  }
  return found;
}

size_t first_odd(const double* labels, size_t n) {
  return static_cast<size_t>(
      std::find_if(labels, labels + n, [](double x) { return x != 0 && x != 1; }) - labels);
}

}  // namespace shoal
