// Wire: rows on their way between workers and servers; shoal/ps/wire.py has the definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace shoal {

constexpr size_t kHeaderBytes = 40, kKindOffset = 6;

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

// Rows of one request on their way to their places in a tensor of floats.
class Arriving {
 public:
  // header: that of the answer; places: where values begin in `to`, and how many they are.
  Arriving(std::string header, float* to, std::vector<std::pair<size_t, size_t>> places);

  // Copies what came to its places. False: it is not the answer, and nothing was touched.
  bool take(const char* message, size_t bytes) const;

 private:
  std::string header_;
  float* to_;
  std::vector<std::pair<size_t, size_t>> places_;
  size_t total_ = 0;  // values
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

  // A frame of `size` bytes that `write` writes, after one that has the address. Never waits, and
  // whoever is gone gets nothing: false.
  bool send(const std::string& address, size_t size, const std::function<void(char*)>& write) const;

 private:
  int (*init_size_)(Message*, size_t);
  void* (*data_)(Message*);
  int (*send_)(Message*, void*, int);
  int (*close_)(Message*);
  void* socket_;
};

}  // namespace shoal
