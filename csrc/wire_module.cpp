// Rows on the wire, as Python sees them: shoal/kernels/wire.py and tables.py.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>
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

  // Sends the answer to a request from the memory that it is gathered into: the header, of another
  // kind, and the rows. False: they are more than `most` values, or see parse_wanted.
  bool send(const Outlet& outlet, nb::bytes to, nb::handle message, uint16_t kind, size_t most) {
    const Buffer request(message);
    const std::string address(to.c_str(), to.size());
    std::vector<Wanted> wanted;
    if (!parse_wanted(request.data(), request.size(), limits_, wanted)) return false;
    size_t values = 0;
    for (const Wanted& one : wanted) values += one.n * dims_[one.table];
    if (values > most) return false;
    nb::gil_scoped_release release;
    outlet.send(address, kHeaderBytes + values * sizeof(float), [&](char* out) {
      std::memcpy(out, request.data(), kHeaderBytes);
      std::memcpy(out + kKindOffset, &kind, sizeof kind);
      gather(wanted, out + kHeaderBytes);
    });
    return true;
  }

 private:
  void gather(const std::vector<Wanted>& wanted, char* to) {
    std::vector<Table*> tables;
    std::vector<size_t> n;
    Addresses ids, out;
    auto place = reinterpret_cast<Address>(to);
    for (const Wanted& one : wanted) {
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

bool take(const Arriving& rows, nb::handle message) {
  const Buffer answer(message);
  return rows.take(answer.data(), answer.size());
}

}  // namespace

void bind_wire(nb::module_& m) {
  nb::class_<RowReader>(m, "RowReader")
      .def(nb::init<nb::list, std::vector<int64_t>, int>())
      .def("send", &RowReader::send);
  nb::class_<Outlet>(m, "Outlet").def(nb::init<Addresses, Address>());
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
      .def("take", &take);
}

}  // namespace shoal
