// Bytes from outside, most of them damaged: lines of slots, requests for rows, parts of answers;
// and rings, whose readers say anything.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "check.h"
#include "slots.h"
#include "wire.h"

namespace shoal {
namespace {

// Lines of slots, most of them damaged: what is written must fit, whatever they hold.
void check_slots() {
  const std::string sound = "click:1 d:0.5 d:-1e-3 1:7 2:9223372036854775807 1:8 x:5";
  const std::string letters = "0123456789:: .-+eEdx12click\n";
  for (int round = 0; round < 20000; ++round) {
    const SlotKeys keys({"1", "2", "x"}, {"d"}, {2}, "click", round % 2 == 0);
    std::string line = sound;
    for (uint64_t k = random_word() % 4; k > 0; --k) {
      const size_t at = random_word() % line.size();
      if (random_word() % 3 == 0)
        line.erase(at, random_word() % 9);
      else
        line.insert(at, 1 + random_word() % 2, letters[random_word() % letters.size()]);
      if (line.empty()) line = ":";
    }
    const std::vector<char> text(line.begin(), line.end());  // its own memory, without an end mark
    const int64_t starts[] = {0}, stops[] = {static_cast<int64_t>(text.size())};
    std::vector<float> label(1), dense(2);
    std::vector<int64_t> ids(3), lengths(3);
    parse_slots(keys, text.data(), starts, stops, 1, label.data(), dense.data(), ids.data(), nullptr);
    std::vector<int64_t> lists(3 + static_cast<size_t>(std::count(line.begin(), line.end(), ':')));
    const SlotResult found = parse_slots(keys, text.data(), starts, stops, 1, label.data(),
                                         dense.data(), lists.data(), lengths.data());
    if (line == sound) CHECK(found.fault == -1 && found.num_ids == 4 && lengths[0] == 2);
  }
}

// Requests for rows of any bytes: what is read lies within them and is what they say.
void check_requests() {
  const std::vector<int64_t> limits = {-1, 4, 1};
  size_t taken = 0;
  for (int round = 0; round < 200000; ++round) {
    // Memory of exactly the message's size, so that reading beyond it is noticed.
    const size_t words = random_word() % 12, bytes = 8 * words + (random_word() % 8 == 0);
    std::vector<int64_t> message((bytes + 7) / 8);
    for (int64_t& word : message)
      word = random_word() % 16 == 0 ? static_cast<int64_t>(random_word())
                                     : static_cast<int64_t>(random_word() % 4);
    if (words > 5 && random_word() % 2) message[5] = 1 + static_cast<int64_t>(random_word() % 2);
    std::vector<char> exact(bytes);
    if (bytes != 0) std::memcpy(exact.data(), message.data(), bytes);
    std::vector<Wanted> wanted;
    if (!parse_wanted(exact.data(), bytes, limits, wanted)) continue;
    ++taken;
    CHECK(message[5] == static_cast<int64_t>(wanted.size()));
    size_t place = 6 + 2 * wanted.size();
    for (size_t k = 0; k < wanted.size(); ++k) {
      CHECK(message[6 + 2 * k] == static_cast<int64_t>(wanted[k].table));
      CHECK(message[7 + 2 * k] == static_cast<int64_t>(wanted[k].n));
      for (size_t i = 0; i < wanted[k].n; ++i, ++place) {
        CHECK(wanted[k].ids[i] == message[place]);
        const int64_t limit = limits[wanted[k].table];
        CHECK(limit < 0 || (wanted[k].ids[i] >= 0 && wanted[k].ids[i] < limit));
      }
    }
    CHECK(8 * place == bytes);
  }
  CHECK(taken > 1000);
}

// An answer cut into parts of any size, which come with repeats and damage: every value gets to its
// place, and nothing is written beside it.
void check_parts() {
  for (int round = 0; round < 3000; ++round) {
    const std::vector<size_t> dims = {1, 3, 16};
    std::vector<Wanted> wanted;
    std::vector<int64_t> ids(64);
    size_t total = 0;
    for (size_t k = random_word() % 4; k > 0; --k) {
      wanted.push_back({random_word() % 3, random_word() % 20, ids.data()});
      total += wanted.back().n * dims[wanted.back().table];
    }
    const std::string request(kHeaderBytes, 'r');
    const uint16_t kind = 7;
    std::vector<std::string> messages;
    size_t next = 0;
    for (const Part& part : cut_answer(wanted, dims, 1 + random_word() % 100)) {
      CHECK(part.first == next);
      std::string message(part.bytes(), '\0');
      begin_part(request.data(), kind, part, message.data());
      for (size_t i = 0; i < part.values; ++i, ++next) {
        const auto value = static_cast<float>(next);
        std::memcpy(message.data() + kPartBytes + 4 * i, &value, 4);
      }
      messages.push_back(message);
    }
    CHECK(next == total);
    // Two places, the second before the first, in memory of exactly their size.
    const size_t half = total / 2;
    const std::vector<std::pair<size_t, size_t>> places = {{total - half, half}, {0, total - half}};
    const std::string header = messages[0].substr(0, kHeaderBytes);
    std::vector<float> to(total, -1.0f);
    Arriving rows(header, to.data(), places);
    for (size_t k = 0; k < messages.size(); ++k) {
      CHECK(!rows.whole());
      const size_t other = random_word() % messages.size();  // it came, or will come again
      if (other != k) CHECK(rows.take(messages[other].data(), messages[other].size()));
      std::string wrong = messages[k];
      wrong[random_word() % kHeaderBytes] ^= 0x10;
      CHECK(!rows.take(wrong.data(), wrong.size()));
      wrong = messages[k] + "odd";
      CHECK(!rows.take(wrong.data(), wrong.size()));
      CHECK(!rows.take(wrong.data(), random_word() % kPartBytes));
      CHECK(rows.take(messages[k].data(), messages[k].size()));
    }
    CHECK(rows.whole());
    for (size_t i = 0; i < total; ++i)
      CHECK(to[i < half ? total - half + i : i - half] == static_cast<float>(i));
    // Any bytes behind a right header: whatever they say, they stay where they may be.
    Arriving fooled(header, to.data(), places);
    for (int k = 0; k < 20; ++k) {
      std::string any = header + std::string(random_word() % 200, '\0');
      for (size_t i = kHeaderBytes; i < any.size(); ++i)
        if (random_word() % 8 == 0) any[i] = static_cast<char>(random_word() % 4);
      fooled.take(any.data(), any.size());
    }
  }
}

// A writer and a reader of memory of exactly the ring's size, whose messages come late or never, and
// another writer that believes nothing of what a reader says.
void check_rings() {
  for (int round = 0; round < 200; ++round) {
    const size_t capacity = kRingStep << random_word() % 6, size = kRingHead + capacity;
    std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(64, size)), std::free);
    std::memset(memory.get(), 0, size);
    const uint64_t first = random_word() % 4 == 0 ? -capacity : (random_word() % 9) << 40;
    RingReader reader(memory, capacity, first);
    RingWriter writer(memory, capacity);
    std::vector<std::pair<uint64_t, std::string>> told;  // that the reader has not taken yet
    for (int k = 0; k < 100; ++k) {
      std::string bytes(1 + random_word() % (capacity + 8), static_cast<char>('a' + k % 26));
      uint64_t place = 0;
      char* const room = writer.room(bytes.size(), place);
      CHECK(room != nullptr || !told.empty() || bytes.size() > capacity);
      if (room != nullptr) {
        std::memcpy(room, bytes.data(), bytes.size());
        if (random_word() % 8 != 0) {  // else it could not be sent, and is forgotten
          writer.wrote(place, bytes.size());
          told.emplace_back(place, bytes);
        }
      }
      while (!told.empty() && random_word() % 2 == 0) {
        const auto [at, expected] = told.front();
        told.erase(told.begin());
        if (!told.empty() && random_word() % 8 == 0) continue;  // the message was lost
        const char* const found = reader.find(at, expected.size());
        CHECK(found != nullptr && std::string(found, expected.size()) == expected);
        reader.pass(at, expected.size());
        CHECK(reader.find(at, expected.size()) == nullptr);
      }
    }
    CHECK(reader.find(first + (uint64_t{1} << 40), 1) == nullptr);
    for (int k = 0; k < 100; ++k) {
      const uint64_t near = first + random_word() % (4 * capacity);
      const uint64_t lie = random_word() % 2 == 0 ? random_word() : near;
      std::memcpy(memory.get(), &lie, sizeof lie);
      const size_t many = SIZE_MAX - random_word() % 99, few = random_word() % (2 * capacity);
      const size_t bytes = random_word() % 9 == 0 ? many : few;
      uint64_t place = 0;
      char* const room = writer.room(bytes, place);
      if (room == nullptr) continue;
      std::memset(room, 'x', bytes);
      writer.wrote(place, bytes);
      if (random_word() % 9 == 0) writer = RingWriter(memory, capacity);
    }
    for (int k = 0; k < 20; ++k) {
      reader.find(random_word(), random_word());
      reader.pass(random_word(), random_word() % capacity);
    }
  }
}

}  // namespace

void check_bytes() {
  check_slots();
  check_requests();
  check_parts();
  check_rings();
}

}  // namespace shoal
