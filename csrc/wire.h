// Wire: requests for rows as workers send them to a server; shoal/ps/wire.py has the definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

constexpr size_t kHeaderBytes = 40, kKindOffset = 6;

// One table's share of a request.
struct Wanted {
  size_t table = 0;
  size_t n = 0;
  const int64_t* ids = nullptr;
};

// Reads a request that is not compressed: header, number of parts, parts, ids. limits[t]: rows of
// table t, -1: any id. False when anything about it is wrong, or not laid out for this machine:
// the caller then lets Python read it, which knows how to say what is wrong.
bool parse_wanted(const char* message, size_t bytes, const std::vector<int64_t>& limits,
                  std::vector<Wanted>& wanted);

}  // namespace shoal
