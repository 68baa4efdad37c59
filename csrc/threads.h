// One pool of threads for the process, and a lock for one writer and many readers.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace shoal {

class Pool {
 public:
  // Calls work(0) ... work(parts - 1), each once, on `threads` threads, the calling one among them.
  // While another call holds the pool the parts run here, one after the other: what work does
  // must not depend on which thread does it, and then results do not either.
  static void run(int threads, int parts, const std::function<void(int)>& work) {
    if (threads > 1 && parts > 1) {
      Pool& pool = instance();
      std::unique_lock<std::mutex> turn(pool.turn_, std::try_to_lock);
      if (turn.owns_lock()) {
        pool.share(threads, parts, work);
        return;
      }
    }
    for (int part = 0; part < parts; ++part) work(part);
  }

 private:
  // A forked child has none of its parent's threads: it begins a pool of its own, and the parent's
  // is left alone, because its locks may have been held at the fork.
  static Pool& instance() {
    static std::mutex guard;
    static Pool* pool = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> lock(guard);
    if (pool == nullptr || owner != getpid()) {
      pool = new Pool();  // lives as long as the process: threads may still wait in it at exit
      owner = getpid();
    }
    return *pool;
  }

  void share(int threads, int parts, const std::function<void(int)>& work) {
    std::unique_lock<std::mutex> lock(mutex_);
    try {
      while (size_ < threads - 1) {
        std::thread([this, number = size_] { serve(number); }).detach();
        ++size_;
      }
    } catch (const std::system_error&) {
      // no more threads to be had: those there are take all parts
    }
    helpers_ = threads - 1;
    work_ = &work;
    next_ = 0;
    parts_ = parts;
    open_ = parts;
    failure_ = nullptr;
    wake_.notify_all();
    take_parts(lock);
    done_.wait(lock, [this] { return open_ == 0; });
    next_ = parts_ = helpers_ = 0;
    if (failure_) std::rethrow_exception(failure_);
  }

  void serve(int number) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [this, number] { return number < helpers_ && next_ < parts_; });
      take_parts(lock);
    }
  }

  void take_parts(std::unique_lock<std::mutex>& lock) {
    while (next_ < parts_) {
      const int part = next_++;
      const auto* work = work_;
      lock.unlock();
      std::exception_ptr failure;
      try {
        (*work)(part);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure) failure_ = failure;
      if (--open_ == 0) done_.notify_all();
    }
  }

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int)>* work_ = nullptr;
  int next_ = 0, parts_ = 0, open_ = 0;  // of the call under way
  int helpers_ = 0;                      // threads of the pool that may take part in it
  int size_ = 0;
  std::exception_ptr failure_;
};

// Fewer parts for little work: waking a thread costs what it does in some ten microseconds.
inline int parts_for(size_t values, int threads) {
  constexpr size_t enough = 1 << 18;
  const size_t most = values / enough > 1 ? values / enough : 1;
  return threads < 1 ? 1 : static_cast<int>(most < static_cast<size_t>(threads) ? most : static_cast<size_t>(threads));
}

// Many readers or one writer. A waiting writer goes before new readers: the system's own lock
// lets a stream of readers keep it waiting for ever.
class SharedLock {
 public:
  void lock_shared() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !writing_ && waiting_ == 0; });
    ++readers_;
  }
  void unlock_shared() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--readers_ == 0) changed_.notify_all();
  }
  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return !writing_ && readers_ == 0; });
    --waiting_;
    writing_ = true;
  }
  void unlock() {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int readers_ = 0, waiting_ = 0;
  bool writing_ = false;
};

}  // namespace shoal
