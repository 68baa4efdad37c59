#include "lanes.h"

#if defined(__linux__)

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace shoal {
namespace {

constexpr size_t kPart = 1 << 17;          // bytes that are written before the reader hears of them
constexpr long kNap = 20 * 1000 * 1000;    // nanoseconds between looks at who has ended

static_assert(std::atomic<uint32_t>::is_always_lock_free, "a futex is four bytes");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share no locks");

// Copies to or from a ring, around its end where it must.
void copy_in(char* ring, size_t capacity, uint64_t place, const char* from, size_t size) {
  const size_t start = place % capacity, first = std::min(size, capacity - start);
  std::memcpy(ring + start, from, first);
  std::memcpy(ring, from + first, size - first);
}

void copy_out(const char* ring, size_t capacity, uint64_t place, char* to, size_t size) {
  const size_t start = place % capacity, first = std::min(size, capacity - start);
  std::memcpy(to, ring + start, first);
  std::memcpy(to + first, ring, size - first);
}

inline void pause() {
#if defined(__aarch64__)
  asm volatile("isb");
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

size_t Lanes::memory_of(int size, size_t capacity) {
  const size_t n = static_cast<size_t>(size);
  return n * sizeof(Door) + n * n * (sizeof(Lane) + capacity);
}

Lanes::Lanes(char* memory, int rank, int size, size_t capacity, std::vector<int> alive, int spins)
    : memory_(memory), rank_(rank), size_(size), capacity_(capacity), alive_(std::move(alive)),
      spins_(spins), outgoing_(static_cast<size_t>(size)), incoming_(static_cast<size_t>(size)) {
  if (rank < 0 || rank >= size || capacity == 0 || capacity % 64 != 0 ||
      alive_.size() != static_cast<size_t>(size))
    throw std::invalid_argument("lanes: ranks 0 to size - 1, a capacity of whole lines");
}

Lane& Lanes::lane(int from, int to) const {
  const size_t n = static_cast<size_t>(size_), number = static_cast<size_t>(from) * n + static_cast<size_t>(to);
  return *reinterpret_cast<Lane*>(memory_ + n * sizeof(Door) + number * (sizeof(Lane) + capacity_));
}

uint64_t Lanes::start(const std::vector<Bytes>& sends, const std::vector<Bytes>& receives) {
  // All is looked at before anything is queued: the caller keeps no memory for what was refused.
  std::vector<const Bytes*> from, to;  // of this process to itself
  for (const auto* pieces : {&sends, &receives})
    for (const Bytes& bytes : *pieces) {
      if (bytes.peer < 0 || bytes.peer >= size_) throw std::invalid_argument("lanes: no such process");
      if (bytes.peer == rank_) (pieces == &sends ? from : to).push_back(&bytes);
    }
  const bool same = std::equal(from.begin(), from.end(), to.begin(), to.end(),
                               [](const Bytes* a, const Bytes* b) { return a->size == b->size; });
  if (!same) throw std::invalid_argument("lanes: what a process sends to itself it must receive");
  for (size_t k = 0; k < from.size(); ++k)
    if (from[k]->size != 0) std::memmove(to[k]->at, from[k]->at, from[k]->size);
  const uint64_t ticket = ++tickets_;
  for (const Bytes& bytes : sends) enqueue(outgoing_, bytes, ticket);
  for (const Bytes& bytes : receives) enqueue(incoming_, bytes, ticket);
  move_some();
  return ticket;
}

void Lanes::enqueue(std::vector<Queue>& queues, const Bytes& bytes, uint64_t ticket) {
  if (bytes.size == 0 || bytes.peer == rank_) return;
  queues[static_cast<size_t>(bytes.peer)].push_back({bytes.at, bytes.size, ticket});
  ++unfinished_[ticket];
}

// So many bytes of the first piece have moved; whether it is whole, and gone.
bool Lanes::advance(Queue& queue, size_t count) {
  Piece& piece = queue.front();
  piece.at += count;
  piece.left -= count;
  if (piece.left != 0) return false;
  const auto found = unfinished_.find(piece.ticket);
  if (--found->second == 0) unfinished_.erase(found);
  queue.pop_front();
  return true;
}

bool Lanes::send_some(int peer) {
  Queue& queue = outgoing_[static_cast<size_t>(peer)];
  if (queue.empty()) return false;
  Lane& to = lane(rank_, peer);
  char* const data = reinterpret_cast<char*>(&to + 1);
  uint64_t written = to.written.load(std::memory_order_relaxed);
  const uint64_t start = written;
  while (!queue.empty()) {
    const Piece& piece = queue.front();
    const size_t room = capacity_ - static_cast<size_t>(written - to.read.load(std::memory_order_acquire));
    const size_t count = std::min({room, piece.left, kPart});
    if (count == 0) break;
    copy_in(data, capacity_, written, piece.at, count);
    written += count;
    to.written.store(written, std::memory_order_release);
    if (!advance(queue, count)) ring(peer);  // it may read while more is written
  }
  if (written == start) return false;
  ring(peer);
  return true;
}

bool Lanes::receive_some(int peer) {
  Queue& queue = incoming_[static_cast<size_t>(peer)];
  if (queue.empty()) return false;
  Lane& from = lane(peer, rank_);
  const char* const data = reinterpret_cast<const char*>(&from + 1);
  uint64_t read = from.read.load(std::memory_order_relaxed);
  const uint64_t start = read;
  while (!queue.empty()) {
    const Piece& piece = queue.front();
    const size_t here = static_cast<size_t>(from.written.load(std::memory_order_acquire) - read);
    const size_t count = std::min({here, piece.left, kPart});
    if (count == 0) break;
    copy_out(data, capacity_, read, piece.at, count);
    read += count;
    from.read.store(read, std::memory_order_release);
    advance(queue, count);
  }
  if (read == start) return false;
  ring(peer);  // it may have waited for room
  return true;
}

bool Lanes::move_some() {
  bool moved = false;
  for (int step = 1; step < size_; ++step) {  // not all to the same one at once
    const int peer = (rank_ + step) % size_;
    moved |= send_some(peer);
    moved |= receive_some(peer);
  }
  return moved;
}

void Lanes::ring(int peer) const {
  Door& door = reinterpret_cast<Door*>(memory_)[peer];
  door.rings.fetch_add(1);
  if (door.asleep.load() != 0)
    syscall(SYS_futex, &door.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Until someone rings, unless that was since `rings` was read; or for a nap.
void Lanes::sleep(uint32_t rings) const {
  Door& door = reinterpret_cast<Door*>(memory_)[rank_];
  const timespec nap{0, kNap};
  door.asleep.store(1);
  syscall(SYS_futex, &door.rings, FUTEX_WAIT, rings, &nap, nullptr, 0);
  door.asleep.store(0);
}

int Lanes::ended() const {
  for (int peer = 0; peer < size_; ++peer) {
    const size_t p = static_cast<size_t>(peer);
    if (alive_[p] < 0 || (outgoing_[p].empty() && incoming_[p].empty())) continue;
    pollfd asked{alive_[p], POLLIN, 0};
    if (poll(&asked, 1, 0) > 0) return peer;
  }
  return kNotYet;
}

int Lanes::wait(uint64_t ticket, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  const Door& door = reinterpret_cast<Door*>(memory_)[rank_];
  int idle = 0;
  while (true) {
    const uint32_t rings = door.rings.load();
    const bool moved = move_some();
    if (done(ticket)) return kDone;
    if (moved) {
      idle = 0;
      continue;
    }
    if (++idle < spins_) {
      pause();
      continue;
    }
    sleep(rings);
    if (door.rings.load() != rings) continue;
    // Nobody rang for a nap. Whoever has ended may have written before it did.
    const int gone = ended();
    if (gone != kNotYet && !move_some()) return gone;
    if (Clock::now() > until) return kNotYet;
  }
}

}  // namespace shoal

#endif
