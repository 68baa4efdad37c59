// A program that works what threads share hard, for builds with the thread sanitizer: no Python, no
// torch. Memory is the fuzzer's matter (tests/fuzz/core.py), values that of the tests.
// Prints what it did; aborts on the first wrong answer.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>
#include <thread>
#include <unordered_map>

#include "catalogue.h"
#include "check.h"
#include "sampler.h"
#include "table.h"

using namespace shoal;

namespace {

Spec spec_of(int64_t rows, int dim, Optimizer kind) {
  Spec spec;
  spec.dim = dim;
  spec.rows = rows;
  spec.recipe = {InitKind::normal, 7, 0.001f};
  spec.hyper.kind = kind;
  spec.hyper.rest1 = 0.1f;
  spec.hyper.rest2 = 0.001f;
  spec.hyper.clip = 5.0f;
  const bool two = kind == Optimizer::adam || kind == Optimizer::adamw || kind == Optimizer::ftrl;
  if (kind != Optimizer::sgd)
    spec.state.assign(two ? 2 : 1, {kind != Optimizer::rowwise_adagrad, 0.0f});
  return spec;
}

void push_all(Table& table, Push& push, int parts) {
  std::unique_lock<SharedLock> lock(table.guard());
  push.now = {0.1f, 1e-8f, 0.1f, 1.0f};
  Pool::run(parts, parts, [&](int part) { table.push(push, part, parts); });
}

// The index against the standard library's map, while it grows and shrinks.
void check_index() {
  Index index;
  std::unordered_map<int64_t, uint32_t> model;
  for (int step = 0; step < 200000; ++step) {
    const auto id = static_cast<int64_t>(random_word() % 30000) * 1000003 - 15000;
    const uint64_t hash = hash_id(id);
    const auto known = model.find(id);
    CHECK(index.find(id, hash) == (known == model.end() ? kNoRow : known->second));
    if (known == model.end()) {
      index.insert(id, hash, static_cast<uint32_t>(step));
      model[id] = static_cast<uint32_t>(step);
    } else if (random_word() % 3 == 0) {
      index.erase(id, hash);
      model.erase(known);
    }
    CHECK(index.size() == model.size());
  }
  size_t visited = 0;
  index.each([&](int64_t id, uint32_t row) {
    CHECK(model.at(id) == row);
    ++visited;
  });
  CHECK(visited == model.size());
}

// The id that has a given hash: mix and its constants, backwards.
int64_t id_of_hash(uint64_t hash) {
  const auto unshift = [](uint64_t x, int bits) {
    uint64_t y = x;
    for (int done = bits; done < 64; done += bits) y = x ^ (y >> bits);
    return y;
  };
  const auto inverse = [](uint64_t odd) {
    uint64_t x = odd;
    for (int k = 0; k < 6; ++k) x *= 2 - odd * x;
    return x;
  };
  uint64_t x = unshift(hash, 31) * inverse(0x94D049BB133111EBull);
  x = unshift(x, 27) * inverse(0xBF58476D1CE4E5B9ull);
  return static_cast<int64_t>(unshift(x, 30) - kIncrement);
}

// Ids chosen so that all of them belong into the last bucket, with others between.
void check_chosen_ids() {
  Index index;
  std::vector<int64_t> ids;
  for (uint64_t k = 0; k < 3000; ++k)
    ids.push_back(id_of_hash(k % 2 ? 0xFFFFFFFF00000000ull | k : mix(k)));
  for (size_t k = 0; k < ids.size(); ++k) {
    CHECK(k % 2 == 0 || hash_id(ids[k]) >> 32 == 0xFFFFFFFFull);
    index.insert(ids[k], hash_id(ids[k]), static_cast<uint32_t>(k));
  }
  for (size_t k = 0; k < ids.size(); k += 3) index.erase(ids[k], hash_id(ids[k]));
  for (size_t k = 0; k < ids.size(); ++k)
    CHECK(index.find(ids[k], hash_id(ids[k])) == (k % 3 ? static_cast<uint32_t>(k) : kNoRow));
}

// The same pushes with one part and with several give the same bits.
void check_threads(int64_t rows, int dim, Optimizer kind, bool half) {
  Spec spec = spec_of(rows, dim, kind);
  spec.half = half;
  Table alone(spec, 1), shared(spec, 3);
  const size_t n = 3000;
  std::vector<int64_t> ids(n);
  for (uint64_t step = 1; step <= 4; ++step) {
    for (int64_t& id : ids) id = static_cast<int64_t>(random_word() % 500);
    const std::vector<float> grads = random_floats(n * static_cast<size_t>(dim));
    Push push{ids.data(), n, grads.data()};
    push.step = step;
    push_all(alone, push, 1);
    push_all(shared, push, 3);
  }
  std::vector<float> left(n * static_cast<size_t>(dim)), right(left);
  alone.pull(ids.data(), n, left.data());
  shared.pull(ids.data(), n, right.data());
  for (size_t i = 0; i < left.size(); ++i) {
    CHECK(left[i] == right[i]);
    CHECK(std::isfinite(left[i]));
  }
}

// One writer, many readers: every step adds the same to every row, so a reader sees one value.
void check_readers(int64_t rows) {
  Spec spec = spec_of(rows, 8, Optimizer::sgd);
  spec.recipe = {InitKind::constant, 0, 0.0f};
  spec.hyper.clip = 0;
  Table table(spec, 1);
  const size_t n = 300;
  std::vector<int64_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int64_t>(i);
  std::vector<float> grads(n * 8, -1.0f);
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      std::vector<float> seen(n * 8);
      while (!done) {
        std::shared_lock<SharedLock> lock(table.guard());
        table.pull(ids.data(), n, seen.data());
        for (float value : seen) CHECK(value == seen[0]);
      }
    });
  }
  for (uint64_t step = 1; step <= 200; ++step) {
    Push push{ids.data(), n, grads.data()};
    push.step = step;
    push_all(table, push, 2);
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
}

// Pulls at any time, of what is pushed next and of other ids, change nothing: a table that is never
// pulled from takes the same pushes and evictions and holds the same.
void check_pull_cache(int parts) {
  Spec spec = spec_of(-1, 4, Optimizer::adagrad);
  spec.counted = true;
  Table read(spec, 1), unread(spec, 1);
  std::vector<int64_t> ids(1000);
  for (int64_t& id : ids) id = static_cast<int64_t>(random_word() % 700);
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (size_t r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      std::vector<float> seen(100 * 4);
      for (size_t turn = 3 * r; !done; ++turn) {
        std::shared_lock<SharedLock> lock(read.guard());
        read.pull(ids.data() + turn % 10 * 100, 100, seen.data());
      }
    });
  }
  for (uint64_t step = 1; step <= 300; ++step) {
    const std::vector<float> grads = random_floats(300 * 4);
    Push push{ids.data() + random_word() % 8 * 100, 300, grads.data()};  // of three pulls
    push.step = step;
    push_all(read, push, parts);
    push_all(unread, push, 1);
    if (step % 5 != 0) continue;
    const Shrink rule{0, 0, 3, 300, true, step};
    std::unique_lock<SharedLock> lock(read.guard());
    CHECK(read.shrink(rule) == unread.shrink(rule));
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(read.sorted_ids() == unread.sorted_ids());
  std::vector<float> left(1000 * 4), right(left);
  read.pull(ids.data(), 1000, left.data());
  unread.pull(ids.data(), 1000, right.data());
  CHECK(left == right);
}

// Admission, eviction, marks, export and restore, pooled lookups.
void check_life(bool bloom) {
  Spec spec = spec_of(-1, 5, Optimizer::adam);
  spec.counted = true;
  spec.admit_score = 2;
  spec.bloom_counters = bloom ? 1 << 14 : 0;
  spec.has_padding = true;
  Table table(spec, 1), copy(spec, 1);
  std::vector<int64_t> ids(400);
  std::vector<float> grads(400 * 5, 0.5f), clicks(400, 1.0f);
  for (uint64_t step = 1; step <= 60; ++step) {
    for (int64_t& id : ids) id = static_cast<int64_t>(random_word() % 3000);
    Push push{ids.data(), ids.size(), grads.data()};
    push.clicks = step % 2 ? clicks.data() : nullptr;
    push.step = step;
    push_all(table, push, 2);
    if (step % 10 == 0) {
      const uint64_t mark = table.mark();
      CHECK(table.changed_ids(mark).empty());
      table.decay(0.9f);
      const size_t before = table.size(), gone = table.shrink({1.0f, 0, 20, 800, false, step});
      CHECK(before - gone == table.size());
      CHECK(table.size() <= 800);
      CHECK(table.dropped_ids(mark).size() == gone);
    }
  }
  const std::vector<int64_t> held = table.sorted_ids();
  const size_t n = held.size();
  std::vector<float> values(n * 5), first(n * 5), second(n * 5), show(n), click(n);
  std::vector<int64_t> last(n);
  float* states[] = {first.data(), second.data()};
  const CounterArrays counters{show.data(), click.data(), last.data()};
  table.read(held.data(), n, values.data(), states, counters);
  const float* given[] = {first.data(), second.data()};
  copy.write(held.data(), n, values.data(), given, counters);
  CHECK(copy.size() == n);
  std::vector<float> again(n * 5);
  copy.pull(held.data(), n, again.data());
  CHECK(again == values);
  const std::vector<int64_t> waiting = table.pending_ids();
  std::vector<float> s(waiting.size()), c(waiting.size());
  std::vector<int64_t> l(waiting.size());
  const CounterArrays pending{s.data(), c.data(), l.data()};
  table.read_pending(waiting.data(), waiting.size(), pending);
  copy.write_pending(waiting.data(), waiting.size(), pending);
  CHECK(copy.pending_ids() == waiting);
}

// A softmax over rows and their step, on one thread and on three: the same bits, the right sums.
void check_catalogue(size_t n, size_t k, size_t dim, Optimizer kind) {
  const std::vector<float> hidden = random_floats(n * dim), begun = random_floats(k * dim);
  const std::vector<float> shares = random_floats(n), bias = random_floats(k);
  const std::vector<int64_t> others = {0, static_cast<int64_t>(k) - 1};
  std::vector<int64_t> places(n);
  for (int64_t& place : places) place = static_cast<int64_t>(random_word() % k) - 1;
  const Rule rule{kind, 0.01f, 1e-8f, 0.1f, 0.001f, 0.001f, 0.999f};
  std::vector<std::vector<float>> results;
  for (int threads : {1, 3}) {
    std::vector<float> values(k * padded(n)), tops(num_blocks(k) * padded(n));
    std::vector<float> highest(n), totals(n), pooled(n * dim);
    std::vector<float> rows = begun, first(k * dim), second(k * dim);
    std::vector<float> added = bias, bias_first(k), bias_second(k);
    const Exponentials made{n, k, values.data(), tops.data()};
    const Positions positions{hidden.data(), dim};
    exponentials_of(positions, rows.data(), added.data(), others.data(), others.size(), made,
                    highest.data(), totals.data(), pooled.data(), threads);
    for (size_t p = 0; p < n; ++p) {
      double total = 0;
      for (size_t r = 1; r + 1 < k; ++r) {
        double logit = bias[r];
        for (size_t c = 0; c < dim; ++c)
          logit += static_cast<double>(hidden[p * dim + c]) * begun[r * dim + c];
        total += std::exp(logit - highest[p]);
      }
      CHECK(std::abs(totals[p] - total) < 1e-4 * total);
    }
    step_rows(positions, made, highest.data(), shares.data(), places.data(), 0.5f, rule,
              {rows.data(), first.data(), second.data()},
              {added.data(), bias_first.data(), bias_second.data()}, threads);
    for (float x : rows) CHECK(std::isfinite(x));
    CHECK(rows != begun);
    rows.insert(rows.end(), added.begin(), added.end());
    rows.insert(rows.end(), pooled.begin(), pooled.end());
    results.push_back(rows);
  }
  CHECK(results[0] == results[1]);
}

// Negatives are items that the user has not seen; who has seen all of them is left over.
void check_draws() {
  const int64_t users = 6, items = 21;
  std::vector<int64_t> keys, starts{0};
  std::vector<uint8_t> bitmap(static_cast<size_t>(users * items + 7) / 8);
  for (int64_t user = 0; user < users; ++user) {
    for (int64_t item = 1; item < items; ++item)
      if (user == 5 || (user * item) % 3 == 1) keys.push_back(user * items + item);
    starts.push_back(static_cast<int64_t>(keys.size()));
  }
  for (int64_t key : keys)
    bitmap[static_cast<size_t>(key >> 3)] |= static_cast<uint8_t>(1 << (key & 7));
  const KnownPairs sorted{users, items, nullptr, keys.data(), starts.data()};
  const KnownPairs packed{users, items, bitmap.data(), keys.data(), starts.data()};
  const int64_t who[] = {0, 1, 2, 3, 4, 5, 1}, index[] = {0, 1, 2, 3, 4, 5, int64_t{1} << 42};
  int64_t drawn[28], again[28];
  CHECK(draw_negatives(sorted, {7, nullptr, nullptr, 20, 100}, who, index, 7, 4, drawn) == 4);
  CHECK(draw_negatives(packed, {7, nullptr, nullptr, 20, 100}, who, index, 7, 4, again) == 4);
  for (size_t k = 0; k < 28; ++k) {
    CHECK(drawn[k] == again[k] && drawn[k] < items && (drawn[k] == 0) == (who[k / 4] == 5));
    CHECK(!sorted.contains(who[k / 4], drawn[k]));
  }
  const int64_t nobody[] = {users};
  CHECK(draw_negatives(sorted, {7, nullptr, nullptr, 20, 100}, nobody, index, 1, 1, drawn) == -1);
}

}  // namespace

int main() {
  check_index();
  check_draws();
  check_lanes();
  check_chosen_ids();
  for (int kind = 0; kind <= static_cast<int>(Optimizer::rmsprop); ++kind)
    for (int64_t rows : {int64_t{500}, int64_t{-1}})
      for (int dim : {5, 48})
        check_threads(rows, dim, static_cast<Optimizer>(kind), kind % 2 == 0);
  check_threads(int64_t{5000000}, 1, Optimizer::sgd, false);  // duplicates found by hashing
  for (int64_t rows : {int64_t{300}, int64_t{-1}}) check_readers(rows);
  for (int parts : {1, 2}) check_pull_cache(parts);
  for (bool bloom : {false, true}) check_life(bloom);
  check_filter();
  for (Optimizer kind : {Optimizer::sgd, Optimizer::adagrad, Optimizer::adam, Optimizer::adamw}) {
    check_catalogue(5, 131, 19, kind);
    check_catalogue(12, 4200, 32, kind);  // two threads' worth of rows
  }
  check_catalogue(1, 3, 1, Optimizer::adam);
  std::printf("all checks passed (%s)\n", kernels().name);
}
