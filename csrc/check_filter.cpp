// The part of the sanitizers' program that reads and writes the Bloom filter of a table.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "table.h"

namespace shoal {
namespace {

constexpr size_t kAsked = 19990, kHeld = 20000;  // as many bytes for each of 32 shards
constexpr int kDim = 3;

Spec counted_spec() {
  Spec spec;
  spec.dim = kDim;
  spec.recipe = {InitKind::normal, 7, 0.001f};
  spec.counted = true;
  spec.admit_score = 4;
  spec.bloom_counters = kAsked;
  return spec;
}

void push_some(Table& table, uint64_t step, const std::vector<int64_t>& ids) {
  const std::vector<float> grads(ids.size() * kDim, 0.5f);
  Push push{ids.data(), ids.size(), grads.data()};
  push.now = {0.1f, 0.0f, 0.1f, 1.0f};
  push.step = step;
  std::unique_lock<SharedLock> lock(table.guard());
  Pool::run(2, 2, [&](int part) { table.push(push, part, 2); });
}

std::vector<uint8_t> filter_of(Table& table) {
  std::vector<uint8_t> bytes(table.bloom_bytes());
  std::shared_lock<SharedLock> lock(table.guard());
  table.read_bloom(0, bytes.size(), bytes.data());
  return bytes;
}

bool refuses(Table& table, size_t start, size_t n) {
  std::vector<uint8_t> bytes(kHeld + 1, 9);
  try {
    table.write_bloom(start, n, bytes.data());
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

}  // namespace

// A filter that is read while rows are pushed, and written in parts of any size: what follows is
// what follows in the table that it came from.
void check_filter() {
  Spec exact = counted_spec();
  exact.bloom_counters = 0;
  Table table(counted_spec(), 1), copy(counted_spec(), 1), plain(exact, 1);
  CHECK(table.bloom_bytes() == kHeld && plain.bloom_bytes() == 0);
  std::vector<std::vector<int64_t>> steps(20, std::vector<int64_t>(500));
  for (auto& ids : steps)
    for (int64_t& id : ids) id = static_cast<int64_t>(random_word() % 4000);
  std::thread reader([&] {
    for (int k = 0; k < 20; ++k) CHECK(filter_of(table).size() == kHeld);
  });
  for (uint64_t step = 0; step < 8; ++step) push_some(table, step + 1, steps[step]);
  reader.join();

  const std::vector<uint8_t> bytes = filter_of(table);
  CHECK(std::count(bytes.begin(), bytes.end(), 0) < static_cast<ptrdiff_t>(kHeld));
  for (size_t start = 0, n = 1; start < kHeld; start += n, n = std::min(2 * n + 1, kHeld - start))
    copy.write_bloom(start, n, bytes.data() + start);
  copy.write_bloom(kHeld, 0, nullptr);
  CHECK(filter_of(copy) == bytes);
  CHECK(refuses(copy, kHeld, 1) && refuses(copy, 1, kHeld) && refuses(copy, ~size_t{0}, 2));
  CHECK(refuses(copy, 0, kHeld + 1) && refuses(plain, 0, 1));
  CHECK(filter_of(copy) == bytes);

  // Rows besides, and both go on alike.
  const std::vector<int64_t> held = table.sorted_ids();
  const size_t n = held.size();
  std::vector<float> values(n * kDim), show(n), click(n);
  std::vector<int64_t> last(n);
  const CounterArrays counters{show.data(), click.data(), last.data()};
  table.read(held.data(), n, values.data(), nullptr, counters);
  copy.write(held.data(), n, values.data(), nullptr, counters);
  for (uint64_t step = 8; step < 20; ++step)
    for (Table* each : {&table, &copy}) push_some(*each, step + 1, steps[step]);
  CHECK(table.size() > n && table.sorted_ids() == copy.sorted_ids());
  CHECK(filter_of(table) == filter_of(copy));

  // Exact counts, of whatever value, go on in a filter.
  Table fresh(counted_spec(), 1);
  const int64_t id = 7;
  float shows[] = {NAN, -1, 3, 2, 1e30f}, clicks = 0;
  for (size_t k = 0; k < 5; ++k) {
    fresh.write_pending(&id, 1, {&shows[k], &clicks, last.data()});
    const std::vector<uint8_t> now = filter_of(fresh);
    CHECK(*std::max_element(now.begin(), now.end()) == (k < 2 ? 0 : k < 4 ? 3 : 255));
  }
  CHECK(fresh.pending_ids().empty());
}

}  // namespace shoal
