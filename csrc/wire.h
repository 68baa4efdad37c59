// Wire: rows on their way between workers and servers; shoal/ps/wire.py has the definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ring.h"

namespace shoal {

constexpr size_t kHeaderBytes = 40, kPartBytes = 48;  // of a part: the place of its first value
// Of a part whose values stand in a ring: that, their place there, and how many they are.
constexpr size_t kPlacedBytes = 64;
constexpr uint16_t kPlaced = 102;         // Kind.PLACED of wire.py
constexpr size_t kLeastPlaced = 1 << 16;  // bytes; smaller parts travel as they are

// One table's share of a request.
struct Wanted {
  size_t table = 0;
  size_t n = 0;
  const int64_t* ids = nullptr;
};

// Reads a request that is not compressed: header, number of parts, parts, ids. limits[t]: rows of
// table t, -1: any id. False when anything about it is wrong, or not laid out for this machine:
// the caller then lets Python read it, which knows how to say what is wrong.
bool parse_wanted(const char* message, size_t bytes, const std::vector<int64_t>& limits,
                  std::vector<Wanted>& wanted);

// What one message of an answer holds: values from `first` on, of all that were asked for.
struct Part {
  size_t first = 0;
  size_t values = 0;
  std::vector<Wanted> wanted;

  size_t bytes() const { return kPartBytes + values * sizeof(float); }
};

// An answer in parts of about `most` values, whole rows, at least one part. dims: of every table.
std::vector<Part> cut_answer(const std::vector<Wanted>& wanted, const std::vector<size_t>& dims,
                             size_t most);

// Writes what stands before the rows of a part: the request's header, of another kind, and a place.
void begin_part(const char* request, uint16_t kind, const Part& part, char* to);

// Writes a part whose values stand at a place of a ring.
void write_placed(const char* request, const Part& part, uint64_t place, char* to);

// Passes by the values of such a part, which nobody waits for any more. False: it is none.
bool pass_placed(RingReader& ring, const char* message, size_t bytes);

// Rows of one request on their way to their places in a tensor of floats.
class Arriving {
 public:
  // header: that of the answer; places: where values begin in `to`, and how many they are.
  Arriving(std::string header, float* to, std::vector<std::pair<size_t, size_t>> places);

  // Copies a part to its place, or drops it where it is not the next: then it came before, or will
  // come again. ring: where its values may stand, if there is any; what stands in other memory is
  // dropped, too. False: it is no part of these rows, and nothing was touched.
  bool take(const char* message, size_t bytes, RingReader* ring = nullptr);
  bool whole() const { return begun_ && done_ == total_; }

 private:
  bool is_ours(const char* message, uint16_t kind) const;
  void copy(const char* from, size_t values);

  std::string header_;
  float* to_;
  std::vector<std::pair<size_t, size_t>> places_;
  size_t total_ = 0, done_ = 0;        // values
  size_t place_ = 0, place_done_ = 0;  // where the next value goes
  bool begun_ = false;
};

// ---- libzmq -------------------------------------------------------------------------------------
// Its functions come as addresses: the core is built without it, and pyzmq may bring its own.

struct alignas(void*) Message {  // zmq_msg_t
  unsigned char opaque[64];
};

// Sends messages from the memory that they are written into.
class Outlet {
 public:
  // functions: zmq_msg_init_size, zmq_msg_data, zmq_msg_send, zmq_msg_close.
  Outlet(const std::vector<uintptr_t>& functions, uintptr_t socket);

  // A frame of `size` bytes that `write` writes, after one that has the address, if there is any.
  // Never waits, and whoever is gone gets nothing: false.
  bool send(const std::string& address, size_t size, const std::function<void(char*)>& write) const;

 private:
  int (*init_size_)(Message*, size_t);
  void* (*data_)(Message*);
  int (*send_)(Message*, void*, int);
  int (*close_)(Message*);
  void* socket_;
};

// Receives messages, and puts rows where they belong.
class Inlet {
 public:
  // functions: zmq_msg_init, zmq_msg_recv, zmq_msg_more, zmq_msg_data, zmq_msg_size, zmq_msg_close.
  Inlet(const std::vector<uintptr_t>& functions, uintptr_t socket);

  // Until the rows are whole, no more comes in the socket's time, a signal does, or a message that
  // is none of theirs: `frames` has it. False: nothing came. ring: see Arriving.
  bool receive(Arriving& rows, RingReader* ring, std::vector<std::string>& frames) const;

 private:
  int (*init_)(Message*);
  int (*receive_)(Message*, void*, int);
  int (*more_)(const Message*);
  void* (*data_)(Message*);
  size_t (*size_)(const Message*);
  int (*close_)(Message*);
  void* socket_;
};

}  // namespace shoal
