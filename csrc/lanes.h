// Bytes between processes of one host, through memory that they share.
//
// Every ordered pair of processes has a lane: a ring of bytes with one writer and one reader, in
// which bytes stay in order, as in a socket. Nothing is ever waited for but by `wait`, and whoever
// waits moves all bytes that can move: so no order of sends and receives can lock up, as long as
// all processes name them in the same order.
//
// Memory: a door for every process, then the lanes from process 0, from process 1, ...
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace shoal {

// Where a process can be woken: others ring, after they have changed a lane of its.
struct alignas(64) Door {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> asleep;
};

// Bytes so far, written by one process and read by another; the ring itself follows.
struct Lane {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};

struct Bytes {
  int peer = 0;
  char* at = nullptr;
  size_t size = 0;
};

class Lanes {
 public:
  // How much memory, all zeros at first, is shared by so many processes; capacity: of one lane, a
  // multiple of 64.
  static size_t memory_of(int size, size_t capacity);

  // `alive` has a descriptor of every process that can be read once it has ended (a pidfd), or -1.
  Lanes(char* memory, int rank, int size, size_t capacity, std::vector<int> alive, int spins);

  // Lets bytes go and others come; what is sent to itself must be received in the same call. The
  // memory must stay until `wait` has said so of the ticket that is returned.
  uint64_t start(const std::vector<Bytes>& sends, const std::vector<Bytes>& receives);

  // Waits for about so long: kDone, kNotYet, or the number of a process that has ended.
  int wait(uint64_t ticket, double seconds);
  static constexpr int kDone = -1, kNotYet = -2;

  int size() const { return size_; }

  bool done(uint64_t ticket) const { return unfinished_.find(ticket) == unfinished_.end(); }

 private:
  struct Piece {
    char* at;
    size_t left;
    uint64_t ticket;
  };
  using Queue = std::deque<Piece>;

  Lane& lane(int from, int to) const;
  void enqueue(std::vector<Queue>& queues, const Bytes& bytes, uint64_t ticket);
  bool send_some(int peer);
  bool receive_some(int peer);
  bool move_some();
  bool advance(Queue& queue, size_t count);
  void ring(int peer) const;
  void sleep(uint32_t rings) const;
  int ended() const;

  char* const memory_;
  const int rank_, size_;
  const size_t capacity_;
  const std::vector<int> alive_;
  const int spins_;
  std::vector<Queue> outgoing_, incoming_;           // of every process, first come first
  std::unordered_map<uint64_t, size_t> unfinished_;  // pieces of a ticket
  uint64_t tickets_ = 0;
};

}  // namespace shoal
