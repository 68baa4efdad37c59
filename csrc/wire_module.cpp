// Rows on the wire, as Python sees them: shoal/kernels/wire.py and tables.py.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#if defined(__linux__)
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#endif

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "argument_checks.h"
#include "module.h"
#include "wire.h"

namespace nb = nanobind;

namespace shoal {
namespace {

// The memory of a Python object that has some, for as long as this lives.
class Buffer {
 public:
  explicit Buffer(nb::handle owner) {
    if (PyObject_GetBuffer(owner.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const char* data() const { return static_cast<const char*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

// Answers requests for rows of a server's tables.
class RowReader {
 public:
  RowReader(nb::list tables, std::vector<int64_t> limits, int threads)
      : owned_(tables), limits_(std::move(limits)), threads_(threads) {
    for (nb::handle table : tables) {
      tables_.push_back(nb::cast<Table*>(table));
      dims_.push_back(static_cast<size_t>(tables_.back()->dim()));
    }
    if (tables_.size() != limits_.size()) throw std::invalid_argument("as many limits as tables");
  }

  // The message that answers one: its header, of another kind, and the rows. None: see parse_wanted.
  nb::object answer(nb::handle message, uint16_t kind) {
    const Buffer request(message);
    std::vector<Wanted> wanted;
    if (!parse_wanted(request.data(), request.size(), limits_, wanted)) return nb::none();
    const Part whole = cut_answer(wanted, dims_, SIZE_MAX).front();
    PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(whole.bytes()));
    if (made == nullptr) throw nb::python_error();
    nb::object result = nb::steal(made);
    nb::gil_scoped_release release;
    begin_part(request.data(), kind, whole, PyBytes_AS_STRING(made));
    gather(whole, PyBytes_AS_STRING(made) + kPartBytes);
    return result;
  }

  // Sends it to `address` instead, in parts of about `most` values, each from the memory that it is
  // gathered into: some travel while others are read. ring: where the values of large parts are put
  // instead, while it has room. False: see parse_wanted.
  bool send(const Outlet& outlet, nb::bytes to, nb::handle message, uint16_t kind, size_t most,
            RingWriter* ring) {
    const Buffer request(message);
    const std::string address(to.c_str(), to.size());
    std::vector<Wanted> wanted;
    if (!parse_wanted(request.data(), request.size(), limits_, wanted)) return false;
    nb::gil_scoped_release release;
    for (const Part& part : cut_answer(wanted, dims_, most)) {
      if (ring != nullptr && put(*ring, outlet, address, request.data(), part)) continue;
      outlet.send(address, part.bytes(), [&](char* out) {
        begin_part(request.data(), kind, part, out);
        gather(part, out + kPartBytes);
      });
    }
    return true;
  }

 private:
  // Gathers a part into a ring and tells of it. False: it is small, or there is no room.
  bool put(RingWriter& ring, const Outlet& outlet, const std::string& address, const char* request,
           const Part& part) {
    const size_t bytes = part.values * sizeof(float);
    uint64_t place = 0;
    char* const room = bytes < kLeastPlaced ? nullptr : ring.room(bytes, place);
    if (room == nullptr) return false;
    gather(part, room);
    const auto tell = [&](char* out) { write_placed(request, part, place, out); };
    if (outlet.send(address, kPlacedBytes, tell)) ring.wrote(place, bytes);
    return true;
  }

  void gather(const Part& part, char* to) {
    std::vector<Table*> tables;
    std::vector<size_t> n;
    Addresses ids, out;
    auto place = reinterpret_cast<Address>(to);
    for (const Wanted& one : part.wanted) {
      tables.push_back(tables_[one.table]);
      n.push_back(one.n);
      ids.push_back(reinterpret_cast<Address>(one.ids));
      out.push_back(place);
      place += one.n * dims_[one.table] * sizeof(float);
    }
    pull(tables, ids, n, out, threads_);
  }

  nb::list owned_;
  std::vector<int64_t> limits_;
  int threads_;
  std::vector<Table*> tables_;
  std::vector<size_t> dims_;
};

bool take(Arriving& rows, nb::handle message, RingReader* ring) {
  const Buffer part(message);
  return rows.take(part.data(), part.size(), ring);
}

bool pass(RingReader& ring, nb::handle message) {
  const Buffer part(message);
  return pass_placed(ring, part.data(), part.size());
}

#if defined(__linux__)

// Maps the file of a ring. Who made it may be anybody: it must be memory that no one can cut short,
// because to touch what is gone would end this process.
std::shared_ptr<char> map_ring(int file, size_t capacity) {
  need(capacity <= (size_t{1} << 32), "a ring that is too large");
  const size_t size = kRingHead + capacity;
  struct stat facts;
  struct statfs system;
  need(fstat(file, &facts) == 0 && fstatfs(file, &system) == 0, "a ring without a file");
  // Of large pages, which are another file system, there may be none left when they are touched.
  need(S_ISREG(facts.st_mode) && system.f_type == TMPFS_MAGIC, "a ring's file that is no memory");
  need(facts.st_size >= 0 && static_cast<size_t>(facts.st_size) == size, "a ring of another size");
  const int seals = fcntl(file, F_GET_SEALS);
  need(seals >= 0 && (seals & F_SEAL_SHRINK) != 0, "a ring that could be cut short");
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  need(memory != MAP_FAILED, "a ring that cannot be mapped");
  return {static_cast<char*>(memory), [size](char* mapped) { munmap(mapped, size); }};
}

void bind_rings(nb::module_& m) {
  nb::class_<RingWriter>(m, "RingWriter")
      .def("__init__", [](RingWriter* made, int file, size_t capacity) {
        new (made) RingWriter(map_ring(file, capacity), capacity);
      });
  nb::class_<RingReader>(m, "RingReader")
      .def("__init__",
           [](RingReader* made, int file, size_t capacity, uint64_t first) {
             new (made) RingReader(map_ring(file, capacity), capacity, first);
           })
      .def("pass_by", &pass)
      .def_prop_ro("passed", &RingReader::passed);
}

#else

void bind_rings(nb::module_& m) {  // no memory that is sealed
  nb::class_<RingWriter>(m, "RingWriter");
  nb::class_<RingReader>(m, "RingReader");
}

#endif

// Sends a request: its beginning, and ids that are read where they lie (addresses and numbers).
void ask(const Outlet& outlet, nb::bytes begin, const std::vector<std::pair<Address, size_t>>& ids) {
  size_t size = begin.size();
  for (const auto& [address, n] : ids) {
    need_array(address, n, sizeof(int64_t), "ids: no array");
    size += n * sizeof(int64_t);
  }
  outlet.send({}, size, [&](char* to) {
    std::memcpy(to, begin.c_str(), begin.size());
    to += begin.size();
    for (const auto& [address, n] : ids) {
      if (n != 0) std::memcpy(to, at<char>(address), n * sizeof(int64_t));
      to += n * sizeof(int64_t);
    }
  });
}

// Receives rows: None when nothing came in the socket's time, the frames of a message that is none
// of theirs, and otherwise an empty list.
nb::object receive(const Inlet& inlet, Arriving& rows, RingReader* ring) {
  std::vector<std::string> frames;
  bool came;
  {
    nb::gil_scoped_release release;
    came = inlet.receive(rows, ring, frames);
  }
  if (!came) return nb::none();
  nb::list found;
  for (const std::string& frame : frames) found.append(nb::bytearray(frame.data(), frame.size()));
  return found;
}

}  // namespace

void bind_wire(nb::module_& m) {
  nb::class_<RowReader>(m, "RowReader")
      .def(nb::init<nb::list, std::vector<int64_t>, int>())
      .def("answer", &RowReader::answer)
      .def("send", &RowReader::send, nb::arg("outlet"), nb::arg("to"), nb::arg("message"),
           nb::arg("kind"), nb::arg("most"), nb::arg("ring").none() = nb::none());
  bind_rings(m);
  nb::class_<Outlet>(m, "Outlet").def(nb::init<Addresses, Address>()).def("ask", &ask);
  nb::class_<Inlet>(m, "Inlet")
      .def(nb::init<Addresses, Address>())
      .def("receive", &receive, nb::arg("rows"), nb::arg("ring").none() = nb::none());
  nb::class_<Arriving>(m, "Arriving")
      .def("__init__",
           [](Arriving* made, nb::bytes header, Address to,
              std::vector<std::pair<size_t, size_t>> places) {
             for (const auto& [first, count] : places) {
               size_t end;
               need(!__builtin_add_overflow(first, count, &end), "places: beyond all memory");
               need_array(to, end, sizeof(float), "rows: no array");
             }
             new (made) Arriving({header.c_str(), header.size()}, at<float>(to), std::move(places));
           })
      .def_prop_ro("whole", &Arriving::whole)
      .def("take", &take, nb::arg("message"), nb::arg("ring").none() = nb::none());
}

}  // namespace shoal
