// Lanes: threads in the place of processes send each other bytes of all sizes.
#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "check.h"
#include "lanes.h"

namespace shoal {
namespace {

constexpr int kRanks = 3, kRounds = 300;
constexpr size_t kCapacity = 256;

size_t length_of(int from, int to, int round) {
  const size_t word = static_cast<size_t>(mix(static_cast<uint64_t>(round * 16 + from * 4 + to)));
  return word % 5 == 0 ? word % (5 * kCapacity) : word % 40;
}

char byte_of(int from, int to, int round, size_t place) {
  return static_cast<char>(from * 7 + to * 13 + round + static_cast<int>(place % 101));
}

// Several tickets at a time, which are waited for in another order.
void exchange(char* memory, int rank) {
  Lanes lanes(memory, rank, kRanks, kCapacity, std::vector<int>(kRanks, -1), rank * 20);
  std::vector<std::vector<std::vector<char>>> in(4), out(4);
  uint64_t tickets[4];
  for (int round = 0; round < kRounds; ++round) {
    const size_t k = static_cast<size_t>(round) % 4;
    in[k].assign(kRanks, {}), out[k].assign(kRanks, {});
    std::vector<Bytes> sends, receives;
    for (int peer = 0; peer < kRanks; ++peer) {
      const size_t p = static_cast<size_t>(peer);
      out[k][p].resize(length_of(rank, peer, round));
      for (size_t i = 0; i < out[k][p].size(); ++i) out[k][p][i] = byte_of(rank, peer, round, i);
      in[k][p].resize(length_of(peer, rank, round));
      sends.push_back({peer, out[k][p].data(), out[k][p].size()});
      receives.push_back({peer, in[k][p].data(), in[k][p].size()});
    }
    tickets[k] = lanes.start(sends, receives);
    if (k != 3) continue;
    for (const size_t which : {2, 0, 3, 1}) {
      while (lanes.wait(tickets[which], 1.0) == Lanes::kNotYet) {
      }
      const int sent = round - 3 + static_cast<int>(which);
      for (int peer = 0; peer < kRanks; ++peer) {
        const std::vector<char>& came = in[which][static_cast<size_t>(peer)];
        for (size_t i = 0; i < came.size(); ++i) CHECK(came[i] == byte_of(peer, rank, sent, i));
      }
    }
  }
}

}  // namespace

void check_lanes() {
  const size_t bytes = Lanes::memory_of(kRanks, kCapacity);
  struct alignas(64) Line {
    char bytes[64];
  };
  const auto memory = std::make_unique<Line[]>((bytes + 63) / 64);
  char* const first = memory[0].bytes;
  std::memset(first, 0, bytes);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(exchange, first, rank);
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace shoal
