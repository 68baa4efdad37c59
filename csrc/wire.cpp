#include "wire.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

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

Arriving::Arriving(std::string header, float* to, std::vector<std::pair<size_t, size_t>> places)
    : header_(std::move(header)), to_(to), places_(std::move(places)) {
  if (header_.size() != kHeaderBytes) throw std::invalid_argument("a header of another size");
  for (const auto& place : places_) total_ += place.second;
}

bool Arriving::take(const char* message, size_t bytes) const {
  if (bytes != kHeaderBytes + total_ * sizeof(float) || !little_endian() ||
      std::memcmp(message, header_.data(), kHeaderBytes) != 0)
    return false;
  const char* from = message + kHeaderBytes;
  for (const auto& [place, length] : places_) {
    if (length != 0) std::memcpy(to_ + place, from, length * sizeof(float));
    from += length * sizeof(float);
  }
  return true;
}

// ---- libzmq -------------------------------------------------------------------------------------

namespace {

constexpr int kDontWait = 1, kSendMore = 2;  // of zmq.h

template <class Function>
void assign(Function& function, const std::vector<uintptr_t>& functions, size_t which) {
  if (functions.at(which) == 0) throw std::invalid_argument("a function of libzmq is missing");
  function = reinterpret_cast<Function>(functions[which]);
}

}  // namespace

Outlet::Outlet(const std::vector<uintptr_t>& functions, uintptr_t socket)
    : socket_(reinterpret_cast<void*>(socket)) {
  assign(init_size_, functions, 0);
  assign(data_, functions, 1);
  assign(send_, functions, 2);
  assign(close_, functions, 3);
}

bool Outlet::send(const std::string& address, size_t size,
                  const std::function<void(char*)>& write) const {
  Message body, to;
  if (init_size_(&body, size) != 0) throw std::bad_alloc();
  try {
    write(static_cast<char*>(data_(&body)));
  } catch (...) {
    close_(&body);
    throw;
  }
  if (init_size_(&to, address.size()) != 0) throw std::bad_alloc();
  std::memcpy(data_(&to), address.data(), address.size());
  const bool found = send_(&to, socket_, kDontWait | kSendMore) >= 0;
  if (!found) close_(&to);
  if (found && send_(&body, socket_, kDontWait) >= 0) return true;
  close_(&body);
  return false;
}

}  // namespace shoal
