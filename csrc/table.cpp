#include "table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace shoal {
namespace {

constexpr size_t kSlabBytes = size_t{4} << 20;
constexpr size_t kCachedSums = size_t{1} << 19;
constexpr size_t kBlock = Index::kMany;  // ids looked up together
constexpr size_t kApart = 16;            // ids of a pull between what is asked of memory and its use
constexpr size_t kFar = 32;              // rows between the one read and the one asked of memory

}  // namespace

Table::Table(const Spec& spec, int threads) : spec_(spec) {
  const size_t dim = static_cast<size_t>(spec.dim);
  layout_.dim = spec.dim;
  layout_.half = spec.half;
  layout_.state = ((spec.half ? sizeof(uint16_t) : sizeof(float)) * dim + 3) / 4 * 4;
  for (const Piece& piece : spec.state) {
    state_sizes_.push_back(piece.per_value ? dim : 1);
    state_begin_.push_back(piece.begin);
    layout_.state_floats += state_sizes_.back();
  }
  layout_.counters = layout_.state + sizeof(float) * layout_.state_floats;
  layout_.stride = layout_.counters + (spec.counted ? sizeof(Counters) : 0);

  if (grows()) {
    shards_.resize(kShards);
    for (Shard& shard : shards_) shard.bloom.resize((spec.bloom_counters + kShards - 1) / kShards);
    while ((size_t{2} << slab_shift_) * layout_.stride <= kSlabBytes) ++slab_shift_;
    // Shards fill alike. They begin differently, so that they do not all need a new slab in the
    // same push, or a larger index: a long pause.
    for (uint32_t k = 0; k < kShards; ++k) {
      shards_[k].offset = (k << slab_shift_) / kShards;
      shards_[k].index = Index(Index::kFirst + k / 8);
    }
    return;
  }
  size_t bytes;  // rows * stride must be counted right: a product that wraps is a small table
  if (__builtin_mul_overflow(static_cast<size_t>(spec.rows), layout_.stride, &bytes) ||
      bytes > (size_t{1} << 60))
    throw std::invalid_argument("a table of " + std::to_string(spec.rows) + " rows of " +
                                std::to_string(layout_.stride) + " bytes is more than memory holds");
  pages_ = Pages(bytes);
  Pool::run(threads, threads, [&](int part) {
    const int64_t begin = spec_.rows * part / threads, end = spec_.rows * (part + 1) / threads;
    for (int64_t row = begin; row < end; ++row) begin_record(fixed_record(row), row);
  });
}

size_t Table::size() const {
  if (!grows()) return static_cast<size_t>(spec_.rows);
  size_t total = 0;
  for (const Shard& shard : shards_) total += shard.index.size();
  return total;
}

size_t Table::bytes() const {
  if (!grows()) return pages_.size();
  size_t total = 0;
  for (const Shard& shard : shards_)
    total += shard.index.bytes() + static_cast<size_t>(shard.used) * layout_.stride +
             shard.pending.bytes() + shard.pending_counters.capacity() * sizeof(Counters) +
             shard.bloom.size() + shard.changed.capacity();
  return total;
}

int64_t Table::first_outside(const int64_t* ids, size_t n) const {
  if (grows()) return -1;
  const auto rows = static_cast<uint64_t>(spec_.rows);
  uint64_t largest = 0;  // as unsigned, so that a negative id is a large one
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<uint64_t>(ids[i]));
  if (largest < rows) return -1;
  for (size_t i = 0; i < n; ++i)
    if (static_cast<uint64_t>(ids[i]) >= rows) return static_cast<int64_t>(i);
  return -1;
}

void Table::initial_values(int64_t id, float* out) const {
  if (is_padding(id)) {
    std::fill_n(out, spec_.dim, 0.0f);
    return;
  }
  initial_row(spec_.recipe, id, spec_.dim, out);
  if (spec_.half)
    for (int c = 0; c < spec_.dim; ++c) out[c] = widen(nearest(out[c]));
}

void Table::begin_record(char* record, int64_t id) const {
  if (spec_.half) {
    std::vector<float>& wide = scratch().floats;
    at_least(wide, 2 * static_cast<size_t>(spec_.dim));
    initial_values(id, wide.data());
    auto* out = reinterpret_cast<uint16_t*>(record);
    for (int c = 0; c < spec_.dim; ++c) out[c] = nearest(wide[static_cast<size_t>(c)]);
  } else {
    initial_values(id, reinterpret_cast<float*>(record));
  }
  auto* state = reinterpret_cast<float*>(record + layout_.state);
  for (size_t piece = 0; piece < state_sizes_.size(); ++piece) {
    std::fill_n(state, state_sizes_[piece], state_begin_[piece]);
    state += state_sizes_[piece];
  }
}

// Hashes and row numbers (kNoRow: not held) of up to kBlock ids of a growing table.
void Table::look_up(const int64_t* ids, size_t n, uint64_t* hashes, uint32_t* rows) const {
  const Index::Bucket* buckets[kBlock];
  for (size_t i = 0; i < n; ++i) {
    hashes[i] = hash_id(ids[i]);
    buckets[i] = shards_[shard_of(hashes[i])].index.first_bucket(hashes[i]);
  }
  Index::find_all(ids, buckets, n, rows);
}

// Records of up to kBlock ids (null: not held), the beginning of each on its way into the cache;
// of growing tables also their row numbers, where wanted.
void Table::find(const int64_t* ids, size_t n, const char** records, uint32_t* rows) const {
  if (grows()) {
    uint64_t hashes[kBlock];
    uint32_t unwanted[kBlock];
    if (rows == nullptr) rows = unwanted;
    look_up(ids, n, hashes, rows);
    for (size_t i = 0; i < n; ++i)
      records[i] =
          rows[i] == kNoRow ? nullptr : slab_record(shards_[shard_of(hashes[i])], rows[i]);
  } else {
    for (size_t i = 0; i < n; ++i) records[i] = fixed_record(ids[i]);
  }
  prefetch_all(records, n);
}

template <typename Take>
void Table::each_record(const int64_t* ids, size_t n, Take take) const {
  // Three ids are at work at a time, kApart from each other: the bucket of one is on its way, of the
  // next the row that its bucket names, and the third is copied. So memory never rests.
  constexpr size_t kRing = 2 * kApart;
  struct {
    const Shard* shard;
    const Index::Bucket* bucket;
    const char* record;
  } ring[kRing];
  PullCache::Stretch* recalled = pull_cache_.begin(ids, n);
  for (size_t i = 0; i < n + 2 * kApart; ++i) {
    auto& third = ring[i % kRing];
    if (i >= 2 * kApart) take(i - 2 * kApart, third.record);
    if (i >= kApart && i - kApart < n) {
      const size_t at = i - kApart;
      auto& second = ring[at % kRing];
      const uint32_t row = Index::find(ids[at], second.bucket);
      if (recalled != nullptr) recalled->rows[at] = row;
      second.record = row == kNoRow ? nullptr : slab_record(*second.shard, row);
      if (second.record != nullptr) prefetch_values(second.record);
    }
    if (i < n) {  // where the third was
      const uint64_t hash = hash_id(ids[i]);
      third.shard = &shards_[shard_of(hash)];
      third.bucket = third.shard->index.first_bucket(hash);
      prefetch_read(third.bucket);
    }
  }
  if (recalled != nullptr) pull_cache_.end(recalled, n);
}

void Table::pull(const int64_t* ids, size_t n, float* out) const {
  if (!grows()) {
    kernels().gather(layout_, pages_.data(), ids, n, out);
    return;
  }
  const size_t dim = static_cast<size_t>(spec_.dim);
  const auto read_values = kernels().read_values;
  each_record(ids, n, [&](size_t i, const char* record) {
    float* to = out + i * dim;
    if (record == nullptr)
      initial_values(ids[i], to);
    else if (spec_.half)
      read_values(layout_, record, to);
    else
      std::memcpy(to, record, dim * sizeof(float));
  });
}

void Table::pull_bags(const int64_t* ids, size_t n, const IdBags& bags, size_t first, size_t last,
                      float* out) const {
  if (!grows()) {
    kernels().gather_bags(layout_, pages_.data(), ids, n, bags, first, last, out);
    return;
  }
  const size_t dim = static_cast<size_t>(spec_.dim);
  const auto begin = static_cast<size_t>(bags.starts[first]);
  const size_t count = static_cast<size_t>(bags.starts[last]) - begin;
  const auto add_values = kernels().add_values;
  Layout fresh = layout_;
  fresh.half = false;
  std::vector<float>& values = scratch().floats;
  at_least(values, 2 * dim);
  std::fill_n(out + first * dim, (last - first) * dim, 0.0f);
  size_t bag = first;
  each_record(ids + begin, count, [&](size_t i, const char* record) {
    const size_t place = begin + i;
    while (static_cast<size_t>(bags.starts[bag + 1]) <= place) ++bag;
    const float* weight = bags.weights == nullptr ? nullptr : bags.weights + place;
    if (record == nullptr) {
      initial_values(ids[place], values.data());
      add_values(fresh, reinterpret_cast<const char*>(values.data()), weight, out + bag * dim);
    } else {
      add_values(layout_, record, weight, out + bag * dim);
    }
  });
}

uint32_t Table::insert(Shard& shard, int64_t id, uint64_t hash) {
  uint32_t row;
  if (!shard.free.empty()) {
    row = shard.free.back();
    shard.free.pop_back();
  } else {
    if (shard.used == kNoRow - 1) throw std::length_error("a growing table is full: 2^37 rows");
    row = shard.used;
    if ((size_t{row} + shard.offset) >> slab_shift_ == shard.slabs.size()) {
      const size_t bytes = layout_.stride << slab_shift_;
      shard.slabs.emplace_back(bytes, shard.slabs.empty() ? bytes : 0);  // small: no huge pages
    }
    ++shard.used;
  }
  shard.index.insert(id, hash, row);
  begin_record(slab_record(shard, row), id);
  return row;
}

void Table::note_change(std::vector<uint8_t>& changed, size_t row) const {
  if (generation_ == 0) return;
  if (row >= changed.size()) changed.resize(std::max(row + 1, changed.size() + changed.size() / 4));
  changed[row] = generation_;
}

// Records of the distinct ids of a push to a growing table; null: not admitted yet.
void Table::find_or_insert(const Push& push, Scratch& s) {
  pull_cache_.find(push.ids, push.n, s);
  for (size_t begin = 0; begin < s.distinct; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, s.distinct);
    // All lookups of a block come before its first insert, which may move what they look at.
    size_t unknown[kBlock + 1], n = 0;
    for (size_t u = begin; u < end; ++u) {
      unknown[n] = u;
      n += s.rows[u] == kNoRow ? 1 : 0;
    }
    int64_t ids[kBlock];
    uint64_t hashes[kBlock];
    uint32_t rows[kBlock];
    for (size_t i = 0; i < n; ++i) ids[i] = s.ids[unknown[i]];
    look_up(ids, n, hashes, rows);
    for (size_t i = 0; i < n; ++i) s.rows[unknown[i]] = rows[i];
    for (size_t u = begin; u < end; ++u) {
      Shard& shard = shards_[shard_of(s.hashes[u])];
      uint32_t row = s.rows[u];
      if (spec_.counted) {
        const float clicks = push.clicks == nullptr ? 0.0f : s.clicks[u];
        const double shows = push.shows == nullptr ? s.counts[u] : s.shows[u];
        s.records[u] = admitted_record(shard, row, push, s.ids[u], s.hashes[u],
                                       static_cast<float>(shows), clicks);
      } else {
        if (row == kNoRow) row = insert(shard, s.ids[u], s.hashes[u]);
        note_change(shard.changed, row);
        s.records[u] = slab_record(shard, row);
      }
    }
  }
}

void Table::push(const Push& push, int part, int parts) {
  Scratch& s = scratch();
  const auto whole = static_cast<uint64_t>(parts), own = static_cast<uint64_t>(part);
  at_least(s.records, push.n);
  if (grows()) {
    distinct_ids(s, push.ids, push.n, [&](int64_t id) {
      return !is_padding(id) &&
             (whole == 1 || shard_of(hash_id(id)) * whole / kShards == own);
    });
    if (push.clicks != nullptr) {
      s.clicks.assign(s.distinct, 0.0f);
      for (size_t k = 0; k < s.occurrences; ++k)
        s.clicks[s.distinct_of[k]] += push.clicks[s.position[k]];
    }
    if (push.shows != nullptr) {
      s.shows.assign(s.distinct, 0.0);
      for (size_t k = 0; k < s.occurrences; ++k)
        s.shows[s.distinct_of[k]] += push.shows[s.position[k]];
    }
    find_or_insert(push, s);
  } else {
    const auto mine = [&](int64_t row) {
      return !is_padding(row) && (whole == 1 || part_of(row, whole) == own);
    };
    // One slot per row costs the table's size in memory, but only touched slots in time.
    if (spec_.rows <= (int64_t{1} << 22) || static_cast<size_t>(spec_.rows) <= 16 * push.n)
      distinct_rows(s, push.ids, push.n, spec_.rows, mine);
    else
      distinct_ids(s, push.ids, push.n, mine);
    for (size_t u = 0; u < s.distinct; ++u) s.records[u] = fixed_record(s.ids[u]);
    for (size_t u = 0; u < s.distinct; ++u) note_change(changed_, static_cast<size_t>(s.ids[u]));
  }
  if (push.bags.starts != nullptr) put_bags(s, push.bags);
  const bool weighted = push.bags.weights != nullptr;
  // Sums that stay in the cache: read the gradients once, in order. Otherwise go row by row.
  const size_t dim = static_cast<size_t>(spec_.dim);
  if (s.distinct < s.occurrences && s.distinct * dim * sizeof(float) <= kCachedSums) {
    at_least(s.sums, s.distinct * dim);
    list_sums(s);
    kernels().scatter({spec_.dim, s.occurrences, s.position.data(), s.distinct_of.data(),
                       weighted ? s.weights.data() : nullptr, push.grads, s.sums.data()});
    apply(s, s.sums.data(), nullptr, push.now, push.step);
  } else {
    list_occurrences(s, weighted);
    apply(s, push.grads, weighted ? s.order_weights.data() : nullptr, push.now, push.step);
  }
}

// One step of the rows whose records `s` has, by the gradients that it lists.
void Table::apply(Scratch& s, const float* grads, const float* weights, const StepNumbers& now,
                  uint64_t step) {
  at_least(s.floats, 2 * static_cast<size_t>(spec_.dim));
  Apply a;
  a.layout = layout_;
  a.hyper = spec_.hyper;
  a.now = now;
  a.count = s.distinct;
  a.records = s.records.data();
  a.grads = grads;
  a.weights = weights;
  a.starts = s.starts.data();
  a.order = s.order.data();
  a.scratch = s.floats.data();
  a.ids = s.ids.data();
  if (spec_.half && spec_.numbering.rows > 0) {
    const Numbering& by = spec_.numbering;
    at_least(s.numbered, s.distinct);
    for (size_t u = 0; u < s.distinct; ++u)
      s.numbered[u] = (s.ids[u] + by.first) * by.factor % by.rows;
    a.ids = s.numbered.data();
  }
  a.noise_key = mix(spec_.recipe.key + step * kIncrement);
  kernels().apply(a);
}

void Table::read(const int64_t* ids, size_t n, float* values, float* const* states,
                 const CounterArrays& counters) const {
  const char* records[kBlock];
  for (size_t i = 0; i < n; ++i) {
    if (i % kBlock == 0) find(ids + i, std::min(kBlock, n - i), records);
    const char* record = records[i % kBlock];
    if (!grows() && i + kFar < n) prefetch_record(fixed_record(ids[i + kFar]));
    if (record == nullptr) throw std::invalid_argument("a row to be exported is not held");
    kernels().read_values(layout_, record, values + i * static_cast<size_t>(spec_.dim));
    const auto* state = reinterpret_cast<const float*>(record + layout_.state);
    for (size_t piece = 0; piece < state_sizes_.size(); ++piece) {
      std::copy_n(state, state_sizes_[piece], states[piece] + i * state_sizes_[piece]);
      state += state_sizes_[piece];
    }
    if (spec_.counted) {
      const Counters c = counters_at(record);
      counters.show[i] = c.show;
      counters.click[i] = c.click;
      counters.last_step[i] = c.last_step;
    }
  }
}

void Table::write(const int64_t* ids, size_t n, const float* values, const float* const* states,
                  const CounterArrays& counters) {
  const size_t dim = static_cast<size_t>(spec_.dim);
  for (size_t i = 0; i < n; ++i) {
    if (is_padding(ids[i])) continue;
    char* record;
    if (grows()) {
      Shard& shard = shards_[shard_of(hash_id(ids[i]))];
      uint32_t row = shard.index.find(ids[i], hash_id(ids[i]));
      if (row == kNoRow) row = insert(shard, ids[i], hash_id(ids[i]));
      note_change(shard.changed, row);
      record = slab_record(shard, row);
      forget_pending(shard, ids[i], hash_id(ids[i]));
    } else {
      note_change(changed_, static_cast<size_t>(ids[i]));
      record = fixed_record(ids[i]);
    }
    if (spec_.counted)
      set_counters(record, {counters.show[i], counters.click[i],
                            static_cast<uint32_t>(counters.last_step[i])});
    const float* from = values + i * dim;
    if (spec_.half) {
      auto* to = reinterpret_cast<uint16_t*>(record);
      for (size_t c = 0; c < dim; ++c) to[c] = nearest(from[c]);
    } else {
      std::copy_n(from, dim, reinterpret_cast<float*>(record));
    }
    auto* state = reinterpret_cast<float*>(record + layout_.state);
    for (size_t piece = 0; piece < state_sizes_.size(); ++piece) {
      if (states[piece] != nullptr)  // null: it stays as it is
        std::copy_n(states[piece] + i * state_sizes_[piece], state_sizes_[piece], state);
      state += state_sizes_[piece];
    }
  }
}

}  // namespace shoal
