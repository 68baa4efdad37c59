// Lanes between processes, as Python sees them: shoal/world/neighbours.py.
#include "module.h"

#if defined(__linux__)

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <tuple>
#include <unordered_map>

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

  // Tells every process that this one has come so far, and hears the same from each.
  uint64_t start_token() {
    std::vector<Bytes> out, in;
    for (int peer = 0; peer < lanes_.size(); ++peer) {
      out.push_back({peer, &token_, 1});
      in.push_back({peer, &token_, 1});
    }
    return lanes_.start(out, in);
  }

  // Lets a few numbers go to every process, and as many come from each; they are kept here.
  uint64_t start_floats(Address floats, size_t n) {
    need_array(floats, n, sizeof(float), "lanes: no array");
    return start_each(at<float>(floats), n * sizeof(float));
  }

  // Once they have come: their sums, added up in order of process.
  void take_sums(uint64_t ticket, Address out, size_t n) {
    const Kept kept = take(ticket);
    need_array(out, n, sizeof(float), "lanes: no array");
    need(kept.mine.size() == n * sizeof(float), "lanes: sums of another length");
    const auto* from = reinterpret_cast<const float*>(kept.all.data());
    float* const to = at<float>(out);
    std::copy_n(from, n, to);
    for (from += n; from < reinterpret_cast<const float*>(kept.all.data() + kept.all.size()); from += n)
      for (size_t i = 0; i < n; ++i) to[i] += from[i];
  }

 private:
  struct Kept {
    std::vector<char> mine, all;
  };

  uint64_t start_each(const void* numbers, size_t size) {
    const auto* first = static_cast<const char*>(numbers);
    Kept kept{{first, first + size}, std::vector<char>(size * static_cast<size_t>(lanes_.size()))};
    std::vector<Bytes> out, in;
    for (int peer = 0; peer < lanes_.size(); ++peer) {
      out.push_back({peer, kept.mine.data(), size});
      in.push_back({peer, kept.all.data() + static_cast<size_t>(peer) * size, size});
    }
    const uint64_t ticket = lanes_.start(out, in);
    kept_.emplace(ticket, std::move(kept));
    return ticket;
  }

  Kept take(uint64_t ticket) {
    const auto found = kept_.find(ticket);
    need(found != kept_.end() && lanes_.done(ticket), "lanes: nothing has come under this ticket");
    Kept kept = std::move(found->second);
    kept_.erase(found);
    return kept;
  }

  Mapping mapping_;
  Lanes lanes_;
  char token_ = 0;
  std::unordered_map<uint64_t, Kept> kept_;  // numbers under way
};

}  // namespace

void bind_lanes(nb::module_& m) {
  nb::class_<MappedLanes>(m, "Lanes")
      .def(nb::init<int, int, int, size_t, std::vector<int>, int>())
      .def("start", &MappedLanes::start)
      .def("wait", &MappedLanes::wait)
      .def("done", &MappedLanes::done)
      .def("start_token", &MappedLanes::start_token)
      .def("start_floats", &MappedLanes::start_floats)
      .def("take_sums", &MappedLanes::take_sums)
      .def_static("memory_of", &memory_of);
}

}  // namespace shoal

#else

namespace shoal {
void bind_lanes(nanobind::module_&) {}  // needs futexes and pidfds
}  // namespace shoal

#endif
