// Lines of slots (`click:0 dense_feature:0.5 1:737395 2:...`) -> columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shoal {

// Which keys become which columns. A dense key fills as many columns as `counts` says.
struct SlotKeys {
  SlotKeys(const std::vector<std::string>& slots, const std::vector<std::string>& dense,
           const std::vector<int64_t>& counts, const std::string& label, bool others);

  enum class Kind { slot, dense, label };
  struct Target {
    Kind kind;
    size_t index;
  };

  std::vector<std::string> slots;
  std::vector<std::string> dense;
  std::vector<size_t> first;   // first column of each dense key
  std::vector<size_t> counts;  // columns of each dense key
  size_t num_dense = 0;        // columns in all
  std::string label;
  bool others;  // whether keys that are not named are passed over; else they are a fault
  std::unordered_map<std::string_view, Target> by_name;
};

struct SlotResult {
  int64_t fault = -1;     // the first line that cannot be read, or -1
  bool repeated = false;  // `lengths` was null, and a line gives a slot several ids
  size_t num_ids = 0;     // ids written
};

// Line i is text[starts[i] .. stops[i]). labels [n], dense [n, num_dense]. With lengths null, ids is
// [n, slots] and every slot holds one id; else lengths is [n, slots] and ids has their sum, at most
// one for each colon and each slot of a line. A slot that a line does not name holds the id 0.
SlotResult parse_slots(const SlotKeys& keys, const char* text, const int64_t* starts,
                       const int64_t* stops, size_t n, float* labels, float* dense, int64_t* ids,
                       int64_t* lengths);

}  // namespace shoal
