// A mutex, its lock and its condition variable with Clang's thread-safety annotations (checked by `./run lint`; on std::mutex they
// warn falsely). A guarded member says by which mutex: `int count_ TESSERA_GUARDED_BY(mutex_);`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TESSERA_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TESSERA_THREAD_ANNOTATION(x)
#endif
#define TESSERA_CAPABILITY(name) TESSERA_THREAD_ANNOTATION(capability(name))
#define TESSERA_SCOPED_CAPABILITY TESSERA_THREAD_ANNOTATION(scoped_lockable)
#define TESSERA_GUARDED_BY(mutex) TESSERA_THREAD_ANNOTATION(guarded_by(mutex))
#define TESSERA_REQUIRES(mutex) TESSERA_THREAD_ANNOTATION(requires_capability(mutex))
#define TESSERA_EXCLUDES(mutex) TESSERA_THREAD_ANNOTATION(locks_excluded(mutex))
#define TESSERA_ACQUIRE(...) TESSERA_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TESSERA_RELEASE(...) TESSERA_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace tessera::core {

class TESSERA_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() TESSERA_ACQUIRE() { mutex_.lock(); }
  void unlock() TESSERA_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

/// Holds a Mutex for a scope; may let go of it and take it again inside.
class TESSERA_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TESSERA_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() TESSERA_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void unlock() TESSERA_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() TESSERA_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

/// Waits wake spuriously: callers loop over their condition.
class CondVar {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  void wait(Mutex& mutex) TESSERA_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  /// False when `until` has passed.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point until) TESSERA_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace tessera::core
