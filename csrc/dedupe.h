// Finds the distinct ids of a push and lists each one's occurrences in order of arrival.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "index.h"
#include "kernels.h"
#include "memory.h"

namespace shoal {

// A thread's working memory, kept from call to call.
struct Scratch {
  std::vector<uint32_t> slots;       // by row: distinct number + 1; all zero between calls
  std::vector<uint32_t> hash_slots;  // by hash: likewise
  std::vector<uint32_t> position;    // of the occurrences that belong to this part
  std::vector<uint32_t> distinct_of;
  std::vector<int64_t> ids;  // distinct, in order of first arrival
  std::vector<int64_t> numbered;  // the same as ids of a whole table, where this is a share
  std::vector<uint64_t> hashes;
  std::vector<uint32_t> first;  // position of each one's first arrival
  std::vector<uint32_t> rows;
  size_t occurrences = 0, distinct = 0;
  std::vector<uint32_t> counts, starts, order;
  std::vector<float> sums, clicks;
  std::vector<float> weights, order_weights;  // of the occurrences, and as `order` has them
  std::vector<double> shows;  // whole numbers: exact
  std::vector<char*> records;
  std::vector<float> floats;
};

inline Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

template <typename T>
inline void at_least(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(std::max(n, v.size() * 2));
}

// From here on `position` says whose gradient an occurrence has: its bag's.
inline void put_bags(Scratch& s, const IdBags& bags) {
  if (bags.weights != nullptr) {
    at_least(s.weights, s.occurrences);
    for (size_t k = 0; k < s.occurrences; ++k) s.weights[k] = bags.weights[s.position[k]];
  }
  uint32_t bag = 0;
  for (size_t k = 0; k < s.occurrences; ++k) {
    while (bags.starts[bag + 1] <= static_cast<int64_t>(s.position[k])) ++bag;
    s.position[k] = bag;
  }
}

// Fills starts and order from position, distinct_of and counts: a stable counting sort.
inline void list_occurrences(Scratch& s, bool weighted) {
  const size_t occurrences = s.occurrences, distinct = s.distinct;
  at_least(s.starts, distinct + 2);
  at_least(s.order, occurrences);
  if (weighted) at_least(s.order_weights, occurrences);
  if (distinct == occurrences) {
    for (size_t u = 0; u <= distinct; ++u) s.starts[u] = static_cast<uint32_t>(u);
    std::copy_n(s.position.begin(), occurrences, s.order.begin());
    if (weighted) std::copy_n(s.weights.begin(), occurrences, s.order_weights.begin());
    return;
  }
  // starts is written one place to the right, so that filling moves it to where it belongs
  s.starts[0] = s.starts[1] = 0;
  for (size_t u = 0; u + 1 < distinct; ++u) s.starts[u + 2] = s.starts[u + 1] + s.counts[u];
  for (size_t k = 0; k < occurrences; ++k) {
    const uint32_t place = s.starts[s.distinct_of[k] + 1]++;
    s.order[place] = s.position[k];
    if (weighted) s.order_weights[place] = s.weights[k];
  }
}

// One occurrence for each distinct id: its summed gradient.
inline void list_sums(Scratch& s) {
  at_least(s.starts, s.distinct + 1);
  at_least(s.order, s.distinct);
  for (size_t u = 0; u < s.distinct; ++u) s.starts[u] = s.order[u] = static_cast<uint32_t>(u);
  s.starts[s.distinct] = static_cast<uint32_t>(s.distinct);
}

inline void reserve_occurrences(Scratch& s, size_t n) {
  at_least(s.distinct_of, n);
  at_least(s.ids, n);
  at_least(s.counts, n);
}

// Positions of the occurrences that `mine(id)` claims. Without branches: whose an id is cannot be
// guessed, and a wrong guess costs more than a store.
template <typename Mine>
size_t choose(Scratch& s, const int64_t* ids, size_t n, Mine mine) {
  at_least(s.position, n + 1);
  uint32_t* position = s.position.data();
  size_t chosen = 0;
  for (size_t i = 0; i < n; ++i) {
    position[chosen] = static_cast<uint32_t>(i);
    chosen += mine(ids[i]) ? 1 : 0;
  }
  reserve_occurrences(s, chosen);
  return chosen;
}

// Rows of a fixed table, one slot per row: no probing. `mine(row)` says whose part a row is.
template <typename Mine>
void distinct_rows(Scratch& s, const int64_t* ids, size_t n, int64_t rows, Mine mine) {
  constexpr size_t ahead = 24;
  s.occurrences = choose(s, ids, n, mine);
  at_least(s.slots, static_cast<size_t>(rows));
  uint32_t* slots = s.slots.data();
  size_t distinct = 0;
  for (size_t k = 0; k < s.occurrences; ++k) {
    if (k + ahead < s.occurrences) prefetch_write(slots + ids[s.position[k + ahead]]);
    const int64_t row = ids[s.position[k]];
    uint32_t u = slots[row];
    if (u == 0) {
      s.ids[distinct] = row;
      s.counts[distinct] = 0;
      u = slots[row] = static_cast<uint32_t>(++distinct);
    }
    ++s.counts[u - 1];
    s.distinct_of[k] = u - 1;
  }
  for (size_t u = 0; u < distinct; ++u) slots[s.ids[u]] = 0;
  s.distinct = distinct;
}

// Any ids, by hash; also leaves the hashes and first positions of the distinct ids.
template <typename Mine>
void distinct_ids(Scratch& s, const int64_t* ids, size_t n, Mine mine) {
  s.occurrences = choose(s, ids, n, mine);
  at_least(s.hashes, s.occurrences);
  at_least(s.first, s.occurrences);
  size_t capacity = 64;
  while (capacity < 2 * s.occurrences) capacity *= 2;
  at_least(s.hash_slots, capacity);
  std::fill_n(s.hash_slots.begin(), capacity, 0u);
  uint32_t* slots = s.hash_slots.data();
  size_t distinct = 0;
  for (size_t k = 0; k < s.occurrences; ++k) {
    const int64_t id = ids[s.position[k]];
    const uint64_t hash = hash_id(id);
    size_t slot = (hash >> 20) & (capacity - 1);
    uint32_t u;
    while ((u = slots[slot]) != 0 && s.ids[u - 1] != id) slot = (slot + 1) & (capacity - 1);
    if (u == 0) {
      s.ids[distinct] = id;
      s.hashes[distinct] = hash;
      s.first[distinct] = s.position[k];
      s.counts[distinct] = 0;
      u = slots[slot] = static_cast<uint32_t>(++distinct);
    }
    ++s.counts[u - 1];
    s.distinct_of[k] = u - 1;
  }
  s.distinct = distinct;
}

}  // namespace shoal
