// Lanes between processes, as Python sees them: shoal/world/neighbours.py.
#include "module.h"

#if defined(__linux__)

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <tuple>

#include "argument_checks.h"
#include "lanes.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// A file's memory, for as long as this lives.
class Mapping {
 public:
  Mapping(int file, size_t size) : size_(size) {
    struct stat facts;
    need(fstat(file, &facts) == 0 && facts.st_size >= 0 && static_cast<size_t>(facts.st_size) >= size,
         "lanes: a file that is too short");
    void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    memory_ = static_cast<char*>(memory);
  }
  ~Mapping() { munmap(memory_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* memory() const { return memory_; }

 private:
  char* memory_ = nullptr;
  size_t size_;
};

using Pieces = std::vector<std::tuple<int, Address, size_t>>;  // (process, address, bytes)

std::vector<Bytes> bytes_of(const Pieces& pieces) {
  std::vector<Bytes> made;
  made.reserve(pieces.size());
  for (const auto& [peer, address, size] : pieces) {
    need_array(address, size, 1, "lanes: no array");
    made.push_back({peer, at<char>(address), size});
  }
  return made;
}

size_t memory_of(int size, size_t capacity) {
  need(size >= 1 && size <= (1 << 12) && capacity <= (size_t{1} << 32), "lanes: too many or too long");
  return Lanes::memory_of(size, capacity);
}

class MappedLanes {
 public:
  MappedLanes(int file, int rank, int size, size_t capacity, std::vector<int> alive, int spins)
      : mapping_(file, memory_of(size, capacity)),
        lanes_(mapping_.memory(), rank, size, capacity, std::move(alive), spins) {}

  uint64_t start(const Pieces& sends, const Pieces& receives) {
    const std::vector<Bytes> out = bytes_of(sends), in = bytes_of(receives);
    nb::gil_scoped_release release;
    return lanes_.start(out, in);
  }

  int wait(uint64_t ticket, double seconds) {
    nb::gil_scoped_release release;
    return lanes_.wait(ticket, seconds);
  }

  bool done(uint64_t ticket) const { return lanes_.done(ticket); }

 private:
  Mapping mapping_;
  Lanes lanes_;
};

}  // namespace

void bind_lanes(nb::module_& m) {
  nb::class_<MappedLanes>(m, "Lanes")
      .def(nb::init<int, int, int, size_t, std::vector<int>, int>())
      .def("start", &MappedLanes::start)
      .def("wait", &MappedLanes::wait)
      .def("done", &MappedLanes::done)
      .def_static("memory_of", &memory_of);
}

}  // namespace shoal

#else

namespace shoal {
void bind_lanes(nanobind::module_&) {}  // needs futexes and pidfds
}  // namespace shoal

#endif
