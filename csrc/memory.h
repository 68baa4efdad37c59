// Pages straight from the kernel: zeroed on first touch, huge where asked, given back in parts.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace shoal {

constexpr size_t kHuge = size_t{2} << 20;

class Pages {
 public:
  Pages() = default;

  // Random rows of a big table miss the TLB on every access with 4 KiB pages; small ones would
  // waste most of a huge page, so the first `small` bytes can do without.
  explicit Pages(size_t bytes, size_t small = 0) {
    if (bytes == 0) return;
    const bool align = bytes >= small + kHuge;
    size_ = bytes;
    length_ = size_ + (align ? kHuge : 0);
    whole_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole_ == MAP_FAILED) {
      whole_ = nullptr;
      throw std::bad_alloc();
    }
    auto address = reinterpret_cast<uintptr_t>(whole_);
    if (align) address = (address + kHuge - 1) / kHuge * kHuge;
    data_ = reinterpret_cast<char*>(address);
#ifdef MADV_HUGEPAGE
    if (align) madvise(data_ + small, (size_ - small) / kHuge * kHuge, MADV_HUGEPAGE);
#endif
  }

  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    Pages taken(std::move(other));
    swap(taken);
    return *this;
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (whole_ != nullptr) munmap(whole_, length_);
  }

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // Gives [from, to) back to the kernel, as far as it covers whole pages; it must not be read again.
  void release(size_t from, size_t to) {
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    from = (from + page - 1) / page * page;
    to = to / page * page;
    if (from < to) madvise(data_ + from, to - from, MADV_DONTNEED);
  }

 private:
  void swap(Pages& other) noexcept {
    std::swap(whole_, other.whole_);
    std::swap(length_, other.length_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void* whole_ = nullptr;
  size_t length_ = 0;
  char* data_ = nullptr;
  size_t size_ = 0;
};

// The empty asm keeps them: a function that does nothing else looks to GCC as if it did nothing,
// and calls of it are dropped.
inline void prefetch_read(const void* p) {
  __builtin_prefetch(p, 0, 3);
  asm volatile("");
}
inline void prefetch_write(const void* p) {
  __builtin_prefetch(p, 1, 3);
  asm volatile("");
}


// An address that is not in the TLB holds up whatever comes after it, except for others like it:
// they are looked up together. So memory that lies anywhere is asked for in bursts like this one.
// There may be more lines in a burst than can be on their way, and the last are then dropped: ask
// for each again, kAhead before it is needed.
template <typename T>
inline void prefetch_all(const T* const* addresses, size_t n) {
  for (size_t i = 0; i < n; ++i) prefetch_read(addresses[i]);
}
constexpr size_t kAhead = 8;

}  // namespace shoal
