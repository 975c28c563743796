#include "tessera/stream.h"

#include <pthread.h>

#include <deque>
#include <thread>
#include <utility>

#include "core/mutex.h"

namespace tessera {

struct Event::State {
  core::Mutex mutex;
  core::CondVar changed;
  bool complete TESSERA_GUARDED_BY(mutex) = false;

  void set() {
    const core::MutexLock lock(mutex);
    complete = true;
    changed.notify_all();
  }
  void wait() {
    const core::MutexLock lock(mutex);
    while (!complete) changed.wait(mutex);
  }
};

bool Event::complete() const {
  if (state_ == nullptr) return true;
  const core::MutexLock lock(state_->mutex);
  return state_->complete;
}

void Event::wait_host() const {
  if (state_ != nullptr) state_->wait();
}

struct Stream::Impl {
  explicit Impl(std::string stream_name) : name(std::move(stream_name)) {}

  const std::string name;
  core::Mutex mutex;
  core::CondVar changed;
  std::deque<std::function<void()>> queue TESSERA_GUARDED_BY(mutex);
  bool busy TESSERA_GUARDED_BY(mutex) = false;
  bool closing TESSERA_GUARDED_BY(mutex) = false;
  std::thread worker;

  void run() {
    core::MutexLock lock(mutex);
    for (;;) {
      while (queue.empty() && !closing) changed.wait(mutex);
      if (queue.empty()) return;
      std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      work();
      work = nullptr;  // what it holds goes before anyone is told that it is over
      lock.lock();
      busy = false;
      if (queue.empty()) changed.notify_all();
    }
  }
};

Stream::Stream(std::string name) : impl_(std::make_unique<Impl>(std::move(name))) {
  impl_->worker = std::thread([impl = impl_.get()] { impl->run(); });
  pthread_setname_np(impl_->worker.native_handle(), impl_->name.substr(0, 15).c_str());  // 15 is what Linux keeps
}

Stream::~Stream() {
  {
    const core::MutexLock lock(impl_->mutex);
    impl_->closing = true;
    impl_->changed.notify_all();
  }
  impl_->worker.join();
}

void Stream::enqueue(std::function<void()> work) {
  const core::MutexLock lock(impl_->mutex);
  impl_->queue.push_back(std::move(work));
  impl_->changed.notify_all();
}

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  enqueue([state = event.state_] { state->set(); });
  return event;
}

void Stream::wait(const Event& event) {
  if (event.complete()) return;
  enqueue([state = event.state_] { state->wait(); });
}

void Stream::synchronize() {
  const core::MutexLock lock(impl_->mutex);
  while (!impl_->queue.empty() || impl_->busy) impl_->changed.wait(impl_->mutex);
}

const std::string& Stream::name() const { return impl_->name; }

}  // namespace tessera
