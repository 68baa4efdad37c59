// Rows on the wire, as Python sees them: shoal/ps/native.py and shoal.embedding.leaves.native.row_reader.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "doors.h"
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
    write(request.data(), kind, whole, PyBytes_AS_STRING(made));
    return result;
  }

  // Sends it to `address` instead, in parts of about `most` values, each from the memory that it is
  // gathered into: some travel while others are read. False: see parse_wanted.
  bool send(const Outlet& outlet, nb::bytes to, nb::handle message, uint16_t kind, size_t most) {
    const Buffer request(message);
    const std::string address(to.c_str(), to.size());
    std::vector<Wanted> wanted;
    if (!parse_wanted(request.data(), request.size(), limits_, wanted)) return false;
    nb::gil_scoped_release release;
    for (const Part& part : cut_answer(wanted, dims_, most))
      outlet.send(address, part.bytes(),
                  [&](char* out) { write(request.data(), kind, part, out); });
    return true;
  }

 private:
  void write(const char* request, uint16_t kind, const Part& part, char* to) {
    begin_part(request, kind, part, to);
    std::vector<Table*> tables;
    std::vector<size_t> n;
    Addresses ids, out;
    auto place = reinterpret_cast<Address>(to + kPartBytes);
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

bool take(Arriving& rows, nb::handle message) {
  const Buffer part(message);
  return rows.take(part.data(), part.size());
}

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
nb::object receive(const Inlet& inlet, Arriving& rows) {
  std::vector<std::string> frames;
  bool came;
  {
    nb::gil_scoped_release release;
    came = inlet.receive(rows, frames);
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
      .def("send", &RowReader::send);
  nb::class_<Outlet>(m, "Outlet").def(nb::init<Addresses, Address>()).def("ask", &ask);
  nb::class_<Inlet>(m, "Inlet").def(nb::init<Addresses, Address>()).def("receive", &receive);
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
      .def("take", &take);
}

}  // namespace shoal
