// Which ids of a growing table have a row: admission, decay and eviction; and what has changed.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "table.h"

namespace shoal {
namespace {

constexpr int kProbes = 4;

// Where one id counts in its shard's Bloom filter; see kBloomLayout.
std::array<uint8_t*, kProbes> bloom_places(std::vector<uint8_t>& bloom, uint64_t hash) {
  const uint64_t spread = mix(hash + kIncrement);
  const auto first = static_cast<uint32_t>(spread);
  const auto stride = static_cast<uint32_t>(spread >> 32) | 1u;
  std::array<uint8_t*, kProbes> at;
  for (uint32_t p = 0; p < kProbes; ++p) {
    const uint64_t place = first + p * stride;
    at[p] = &bloom[static_cast<size_t>(place * bloom.size() >> 32)];
  }
  return at;
}

}  // namespace

Counters Table::counters_at(const char* record) const {
  Counters counters;
  std::memcpy(&counters, record + layout_.counters, sizeof counters);
  return counters;
}

void Table::set_counters(char* record, const Counters& counters) const {
  std::memcpy(record + layout_.counters, &counters, sizeof counters);
}

float Table::norm(const char* record) const {
  std::vector<float>& values = scratch().floats;
  at_least(values, 2 * static_cast<size_t>(spec_.dim));
  kernels().read_values(layout_, record, values.data());
  double total = 0;
  for (int c = 0; c < spec_.dim; ++c) {
    const double value = values[static_cast<size_t>(c)];
    total += value * value;
  }
  return static_cast<float>(std::sqrt(total));
}

// The record that a push goes to, its counters brought up to date; null: not admitted yet.
char* Table::admitted_record(Shard& shard, uint32_t row, const Push& push, int64_t id,
                             uint64_t hash, float shows, float clicks) {
  Counters now{shows, clicks, static_cast<uint32_t>(push.step)};
  if (row != kNoRow) {
    const Counters before = counters_at(slab_record(shard, row));
    now.show += before.show;
    now.click += before.click;
  } else {
    if (!admit(shard, id, hash, now)) return nullptr;
    row = insert(shard, id, hash);
  }
  note_change(shard.changed, row);
  char* record = slab_record(shard, row);
  set_counters(record, now);
  return record;
}

// Adds `counters` to what is known of an id without a row; true when it has earned one.
bool Table::admit(Shard& shard, int64_t id, uint64_t hash, Counters& counters) {
  if (spec_.admit_score <= 0) return true;
  if (!shard.bloom.empty()) {
    const auto at = bloom_places(shard.bloom, hash);
    uint8_t least = 255;
    for (const uint8_t* counter : at) least = std::min(least, *counter);
    // Only the smallest counters rise: others belong to more frequent ids as well.
    const auto count = static_cast<uint8_t>(std::min(255.0f, least + counters.show));
    for (uint8_t* counter : at) *counter = std::max(*counter, count);
    counters.show = count;
    return score(counters) >= spec_.admit_score;
  }
  const uint32_t found = shard.pending.find(id, hash);
  if (found != kNoRow) {
    counters.show += shard.pending_counters[found].show;
    counters.click += shard.pending_counters[found].click;
  }
  const bool earned = score(counters) >= spec_.admit_score;
  if (earned) {
    forget_pending(shard, id, hash);
  } else if (found != kNoRow) {
    shard.pending_counters[found] = counters;
  } else {
    uint32_t place = static_cast<uint32_t>(shard.pending_counters.size());
    if (!shard.pending_free.empty()) {
      place = shard.pending_free.back();
      shard.pending_free.pop_back();
      shard.pending_counters[place] = counters;
    } else {
      shard.pending_counters.push_back(counters);
    }
    shard.pending.insert(id, hash, place);
  }
  return earned;
}

void Table::forget_pending(Shard& shard, int64_t id, uint64_t hash) {
  const uint32_t place = shard.pending.find(id, hash);
  if (place == kNoRow) return;
  shard.pending.erase(id, hash);
  shard.pending_free.push_back(place);
}

void Table::decay(float factor) {
  for (Shard& shard : shards_) {
    shard.index.each([&](int64_t, uint32_t row) {
      char* record = slab_record(shard, row);
      Counters counters = counters_at(record);
      counters.show *= factor;
      counters.click *= factor;
      set_counters(record, counters);
    });
    for (Counters& counters : shard.pending_counters) {
      counters.show *= factor;
      counters.click *= factor;
    }
    for (uint8_t& counter : shard.bloom)
      counter = static_cast<uint8_t>(static_cast<float>(counter) * factor);
  }
}

void Table::drop(Shard& shard, int64_t id, uint32_t row) {
  shard.index.erase(id, hash_id(id));
  shard.free.push_back(row);
  if (row < shard.changed.size()) shard.changed[row] = 0;
  if (generation_ != 0) dropped_.emplace_back(id, generation_base_ + generation_);
}

size_t Table::shrink(const Shrink& rule) {
  struct Kept {
    double key;
    int64_t id;
    uint32_t row;
  };
  const auto too_old = [&](const Counters& c) {
    return rule.max_age >= 0 && rule.step > c.last_step &&
           rule.step - c.last_step > static_cast<uint64_t>(rule.max_age);
  };
  pull_cache_.forget();  // the numbers of rows that go come again for other ids
  size_t gone = 0;
  std::vector<Kept> kept;
  std::vector<std::pair<int64_t, uint32_t>> victims;
  for (Shard& shard : shards_) {
    victims.clear();
    shard.index.each([&](int64_t id, uint32_t row) {
      const char* record = slab_record(shard, row);
      const Counters counters = spec_.counted ? counters_at(record) : Counters();
      if (too_old(counters) || score(counters) < rule.min_score ||
          (rule.min_norm > 0 && norm(record) < rule.min_norm))
        victims.emplace_back(id, row);
      else if (rule.capacity >= 0)
        kept.push_back({rule.least_recent ? static_cast<double>(counters.last_step)
                                           : static_cast<double>(counters.show),
                        id, row});
    });
    for (const auto& [id, row] : victims) drop(shard, id, row);
    gone += victims.size();
    victims.clear();
    shard.pending.each([&](int64_t id, uint32_t place) {
      const Counters& counters = shard.pending_counters[place];
      if (too_old(counters) || score(counters) < rule.min_score) victims.emplace_back(id, place);
    });
    for (const auto& [id, place] : victims) {
      shard.pending.erase(id, hash_id(id));
      shard.pending_free.push_back(place);
    }
  }
  if (rule.capacity >= 0 && kept.size() > static_cast<size_t>(rule.capacity)) {
    const size_t excess = kept.size() - static_cast<size_t>(rule.capacity);
    // Ties go by id, so that the outcome depends neither on threads nor on order of arrival.
    std::nth_element(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(excess), kept.end(),
                     [](const Kept& a, const Kept& b) {
                       return a.key != b.key ? a.key < b.key : a.id < b.id;
                     });
    for (size_t k = 0; k < excess; ++k)
      drop(shards_[shard_of(hash_id(kept[k].id))], kept[k].id, kept[k].row);
    gone += excess;
  }
  return gone;
}

uint64_t Table::mark() {
  if (generation_ == 255) {  // one byte per row: forget the older half of the marks
    constexpr uint8_t half = 127;
    const auto age = [](std::vector<uint8_t>& changed) {
      for (uint8_t& g : changed) g = g > half ? static_cast<uint8_t>(g - half) : uint8_t{0};
    };
    age(changed_);
    for (Shard& shard : shards_) age(shard.changed);
    generation_base_ += half;
    generation_ = static_cast<uint8_t>(generation_ - half);
    dropped_.erase(std::remove_if(dropped_.begin(), dropped_.end(),
                                  [&](const auto& d) { return d.second <= generation_base_; }),
                   dropped_.end());
  }
  if (generation_ == 0) {
    generation_ = 1;
    if (!grows()) changed_.resize(static_cast<size_t>(spec_.rows));
  }
  return generation_base_ + generation_++;
}

std::vector<int64_t> Table::sorted_ids() const {
  std::vector<int64_t> ids;
  ids.reserve(size());
  for (const Shard& shard : shards_)
    shard.index.each([&](int64_t id, uint32_t) { ids.push_back(id); });
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<int64_t> Table::changed_ids(uint64_t since) const {
  std::vector<int64_t> ids;
  // A row is noted in the generation it last changed in: those from this one on, 0 being never.
  const uint64_t first = since < generation_base_ ? 1 : since - generation_base_ + 1;
  if (!grows()) {
    for (size_t row = 0; row < changed_.size(); ++row)  // ascending as they are
      if (changed_[row] >= first) ids.push_back(static_cast<int64_t>(row));
    return ids;
  }
  for (const Shard& shard : shards_)
    shard.index.each([&](int64_t id, uint32_t row) {
      if (row < shard.changed.size() && shard.changed[row] >= first) ids.push_back(id);
    });
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<int64_t> Table::dropped_ids(uint64_t since) const {
  std::vector<int64_t> ids;
  for (const auto& [id, generation] : dropped_) {
    const uint64_t hash = hash_id(id);
    if (generation > since && shards_[shard_of(hash)].index.find(id, hash) == kNoRow)
      ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<int64_t> Table::pending_ids() const {
  std::vector<int64_t> ids;
  for (const Shard& shard : shards_)
    shard.pending.each([&](int64_t id, uint32_t) { ids.push_back(id); });
  std::sort(ids.begin(), ids.end());
  return ids;
}

void Table::read_pending(const int64_t* ids, size_t n, const CounterArrays& out) const {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = hash_id(ids[i]);
    const Shard& shard = shards_[shard_of(hash)];
    const uint32_t place = shard.pending.find(ids[i], hash);
    const Counters counters = place == kNoRow ? Counters() : shard.pending_counters[place];
    out.show[i] = counters.show;
    out.click[i] = counters.click;
    out.last_step[i] = counters.last_step;
  }
}

void Table::write_pending(const int64_t* ids, size_t n, const CounterArrays& in) {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = hash_id(ids[i]);
    Shard& shard = shards_[shard_of(hash)];
    const Counters counters{in.show[i], in.click[i], static_cast<uint32_t>(in.last_step[i])};
    if (shard.index.find(ids[i], hash) != kNoRow) continue;  // it has a row by now
    if (!shard.bloom.empty()) {  // exact counts go on in a filter; not above 0: also not a number
      const float show = counters.show > 0 ? std::min(255.0f, counters.show) : 0.0f;
      for (uint8_t* counter : bloom_places(shard.bloom, hash))
        *counter = std::max(*counter, static_cast<uint8_t>(show));
      continue;
    }
    const uint32_t place = shard.pending.find(ids[i], hash);
    if (place != kNoRow) {
      shard.pending_counters[place] = counters;
    } else {
      shard.pending.insert(ids[i], hash, static_cast<uint32_t>(shard.pending_counters.size()));
      shard.pending_counters.push_back(counters);
    }
  }
}

// copy(shard, first byte of it, bytes, bytes done before) for every shard that has some of them.
template <typename Copy>
void Table::each_bloom_stretch(size_t start, size_t n, Copy copy) const {
  if (start > bloom_bytes() || n > bloom_bytes() - start)
    throw std::invalid_argument("bytes that the Bloom filter has not");
  for (size_t done = 0; done < n;) {
    const size_t shard = (start + done) / bloom_share(), first = (start + done) % bloom_share();
    const size_t count = std::min(n - done, bloom_share() - first);
    copy(shard, first, count, done);
    done += count;
  }
}

void Table::read_bloom(size_t start, size_t n, uint8_t* out) const {
  each_bloom_stretch(start, n, [&](size_t shard, size_t first, size_t count, size_t done) {
    std::memcpy(out + done, shards_[shard].bloom.data() + first, count);
  });
}

void Table::write_bloom(size_t start, size_t n, const uint8_t* in) {
  each_bloom_stretch(start, n, [&](size_t shard, size_t first, size_t count, size_t done) {
    std::memcpy(shards_[shard].bloom.data() + first, in + done, count);
  });
}

}  // namespace shoal
