#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace gpupipe {
namespace {

struct Task {
  const std::function<void(int)>* work;
  int count;
  std::atomic<int> next{0};
  int helpers = 0;  // threads of the pool at work on it
  std::condition_variable idle;

  void run() {
    for (int item; (item = next.fetch_add(1, std::memory_order_relaxed)) < count;) (*work)(item);
  }
};

class Pool {
 public:
  void run(Task& task, int helpers) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      for (int i = 0; i < helpers; ++i) waiting_.push_back(&task);
      start(helpers);
    }
    wake_.notify_all();
    task.run();
    std::unique_lock<std::mutex> hold(mutex_);
    waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), &task), waiting_.end());
    task.idle.wait(hold, [&] { return task.helpers == 0; });
  }

 private:
  // As many threads as the calls under way ask for; fewer where the system gives no more.
  void start(int helpers) {
    wanted_ = std::max(wanted_, helpers);
    for (; threads_ < wanted_; ++threads_) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;
      }
    }
  }

  void serve() {
    std::unique_lock<std::mutex> hold(mutex_);
    for (;;) {
      wake_.wait(hold, [&] { return !waiting_.empty(); });
      Task* task = waiting_.front();
      waiting_.pop_front();
      ++task->helpers;
      hold.unlock();
      task->run();
      hold.lock();
      if (--task->helpers == 0) task->idle.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task*> waiting_;
  int threads_ = 0, wanted_ = 0;
};

// Never destroyed: its threads wait in it when the process ends. A forked child has none of the threads and leaves the
// parent's pool, whose locks may be held, where it is.
std::atomic<Pool*> current{nullptr};

void forget_pool() { current.store(nullptr); }

Pool& pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  (void)registered;
  Pool* found = current.load();
  if (found == nullptr) {
    std::unique_ptr<Pool> made(new Pool);
    if (current.compare_exchange_strong(found, made.get())) found = made.release();
  }
  return *found;
}

}  // namespace

void for_each(int count, int threads, const std::function<void(int)>& work) {
  const int helpers = std::min(threads, count) - 1;
  Task task;
  task.work = &work;
  task.count = count;
  if (helpers > 0) {
    pool().run(task, helpers);
  } else {
    task.run();
  }
}

}  // namespace gpupipe
