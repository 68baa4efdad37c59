#include "wire.h"

#include <algorithm>
#include <cstring>

namespace shoal {
namespace {

constexpr uint64_t kMostIds = uint64_t{1} << 28;

// Integers are little endian on the wire.
bool little_endian() {
  const uint16_t one = 1;
  unsigned char first;
  std::memcpy(&first, &one, 1);
  return first == 1;
}

}  // namespace

bool parse_wanted(const char* message, size_t bytes, const std::vector<int64_t>& limits,
                  std::vector<Wanted>& wanted) {
  const char* body = message + kHeaderBytes;
  if (bytes < kHeaderBytes + 8 || (bytes - kHeaderBytes) % 8 != 0 || !little_endian() ||
      reinterpret_cast<uintptr_t>(body) % alignof(int64_t) != 0)
    return false;
  const auto* words = reinterpret_cast<const int64_t*>(body);
  const uint64_t num_words = (bytes - kHeaderBytes) / 8;
  const auto parts = static_cast<uint64_t>(words[0]);  // a negative number is a large one
  if (parts > limits.size() || 1 + 2 * parts > num_words) return false;
  const int64_t* ids = words + 1 + 2 * parts;
  uint64_t left = num_words - 1 - 2 * parts;
  if (left > kMostIds) return false;
  wanted.clear();
  std::vector<bool> named(limits.size());
  for (uint64_t part = 0; part < parts; ++part) {
    const auto table = static_cast<uint64_t>(words[1 + 2 * part]);
    const auto n = static_cast<uint64_t>(words[2 + 2 * part]);
    if (table >= limits.size() || named[table] || n > left) return false;
    named[table] = true;
    if (limits[table] >= 0) {
      uint64_t largest = 0;
      for (uint64_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<uint64_t>(ids[i]));
      if (n != 0 && largest >= static_cast<uint64_t>(limits[table])) return false;
    }
    wanted.push_back({static_cast<size_t>(table), static_cast<size_t>(n), ids});
    ids += n;
    left -= n;
  }
  return left == 0;
}

}  // namespace shoal
