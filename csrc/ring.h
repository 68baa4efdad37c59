// Ring: memory of one host through which a server gives a worker rows, without a socket's copies.
//
// One process writes and one reads; messages tell where bytes stand, each after they are there.
// Places count on for ever, as bytes of an endless tape that is wound around the ring. The reader
// says in the memory how far it is. The writer takes its word for what may be overwritten, and for
// nothing else: whatever stands there, it writes within the ring.
//
// Memory: kRingHead bytes that begin with the reader's count, then `capacity` bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>

namespace shoal {

constexpr size_t kRingHead = 4096, kRingStep = 64;

// What both sides have.
class Ring {
 public:
  // capacity: a power of two. The memory is let go with the last who has it.
  Ring(std::shared_ptr<char> memory, size_t capacity)
      : memory_(std::move(memory)), capacity_(capacity) {
    if (capacity_ < kRingStep || (capacity_ & (capacity_ - 1)) != 0)
      throw std::invalid_argument("a ring whose capacity is no power of two");
  }

 protected:
  std::atomic<uint64_t>& count() const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(memory_.get());
  }
  char* at(uint64_t place) const { return memory_.get() + kRingHead + place % capacity_; }
  // Whether so many bytes are one piece from there on.
  bool fits(uint64_t place, size_t bytes) const {
    return bytes <= capacity_ && place % capacity_ <= capacity_ - bytes;
  }
  static uint64_t up(uint64_t place, uint64_t step) { return (place + step - 1) & ~(step - 1); }

  std::shared_ptr<char> memory_;
  size_t capacity_;
};

class RingWriter : public Ring {
 public:
  RingWriter(std::shared_ptr<char> memory, size_t capacity)
      : Ring(std::move(memory), capacity), written_(count().load()), read_(written_) {}

  // Where so many bytes may be written, and the place that tells of them; null: there is no room.
  char* room(size_t bytes, uint64_t& place) {
    const uint64_t read = count().load(std::memory_order_acquire);
    if (written_ - read <= written_ - read_) read_ = read;  // not back, nor beyond what is there
    // All is read: from the start again, in memory that the caches still hold.
    if (read_ == written_) read_ = written_ = up(written_, capacity_);
    place = fits(written_, bytes) ? written_ : up(written_, capacity_);
    if (bytes > capacity_ || place + bytes - read_ > capacity_) return nullptr;
    return at(place);
  }

  // They are written, and the reader was told.
  void wrote(uint64_t place, size_t bytes) { written_ = up(place + bytes, kRingStep); }

 private:
  uint64_t written_, read_;
};

class RingReader : public Ring {
 public:
  // first: a multiple of the capacity; places far from it are of other memory.
  RingReader(std::shared_ptr<char> memory, size_t capacity, uint64_t first)
      : Ring(std::move(memory), capacity), read_(first) {
    if (first % capacity_ != 0) throw std::invalid_argument("a ring that begins in its middle");
    count().store(first);
  }

  // Bytes that are there; null: they were passed, or are of other memory.
  const char* find(uint64_t place, size_t bytes) const {
    return fits(place, bytes) && place - read_ < 2 * capacity_ ? at(place) : nullptr;
  }

  // They are not needed any more, nor are those before them.
  void pass(uint64_t place, size_t bytes) {
    if (find(place, bytes) == nullptr) return;
    read_ = up(place + bytes, kRingStep);
    count().store(read_, std::memory_order_release);
  }

  uint64_t passed() const { return read_; }

 private:
  uint64_t read_;
};

}  // namespace shoal
