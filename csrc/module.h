// What the files that Python's view of the core is made of have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "table.h"

namespace shoal {

using Address = uintptr_t;  // of a tensor's memory, or of a function
using Addresses = std::vector<Address>;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Reads rows of several tables; -1, or the first id that is outside: see find_outside.
int64_t pull(const std::vector<Table*>& tables, const Addresses& ids, const std::vector<size_t>& n,
             const Addresses& out, int threads);

void bind_row_optimizers(nanobind::module_& m);
void bind_wire(nanobind::module_& m);
void bind_lanes(nanobind::module_& m);
void bind_rows(nanobind::module_& m);
void bind_layers(nanobind::module_& m);
void bind_placed_pairs(nanobind::module_& m);
void bind_softmax(nanobind::module_& m);
void bind_topk(nanobind::module_& m);

}  // namespace shoal
