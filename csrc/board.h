// Board: memory where processes of one host leave the gradients of rows for each other.
//
// Every process has two places of its own, which it writes in turn: a head, floats that all add up,
// and for each table the rows that its lookups touched, repeated ones summed. So a place is written
// anew only after all have met once more, and by then nobody reads it any longer.
//
//   place of process 0, of process 1, ... | the same once more
//   place: Head | Sections | floats | ids, sums of section 0 | ids, sums of section 1 ...
//
// A table has a section of each thread that wrote it.
//
// Nothing here waits: between `write` and what reads, all must have met (csrc/lanes.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace shoal {

// What a process has of one table: values of its lookups.
struct Given {
  std::vector<Values> lookups;
  size_t dim = 0;
  int64_t limit = -1;  // ids are 0 .. limit-1; below 0: they are any
};

class Board {
 public:
  // pages: zeros at first, and the same for all processes.
  Board(Pages pages, int rank, int ranks);

  // Writes what this process has; false: there is no room for it, which others learn when they read.
  bool write(const float* floats, size_t n, const std::vector<Given>& tables, int threads);

  // All below: after all have written and met.

  // The sums of everybody's floats, in order of process; false: someone had no room.
  bool sums(float* out, size_t n) const;
  // Everybody's rows of table number t, in order of process; of each the ids are distinct.
  std::vector<Values> rows(size_t t, size_t dim) const;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  size_t bytes_written() const { return bytes_written_; }

 private:
  struct Head {
    uint64_t step;  // how many times the process has written
    uint64_t fits, floats, tables, sections;
  };
  struct Section {
    uint64_t table, n;
    uint64_t ids, sums;  // where they begin, in bytes
  };

  char* place(int rank) const;
  const Head& head_of(int rank) const;

  const Pages pages_;
  char* const memory_;
  const size_t share_;  // bytes of a place
  const int rank_, ranks_;
  uint64_t step_ = 0;
  size_t bytes_written_ = 0;
};

}  // namespace shoal
