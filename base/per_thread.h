// One T a thread, made when it first asks and destroyed as the thread ends. In place of thread_local, for which glibc
// ends the process where it has no memory to note a destructor.
#pragma once

#include <pthread.h>

#include <memory>
#include <new>

namespace ark {

template <typename T>
class PerThread {
 public:
  PerThread() {
    const auto destroy = [](void* own) { delete static_cast<T*>(own); };
    if (::pthread_key_create(&key_, destroy) != 0) throw std::bad_alloc();
  }
  // Throws std::bad_alloc, and what T's constructor does.
  T& get() {
    if (void* const own = ::pthread_getspecific(key_)) return *static_cast<T*>(own);
    auto made = std::make_unique<T>();
    if (::pthread_setspecific(key_, made.get()) != 0) throw std::bad_alloc();
    return *made.release();
  }

 private:
  pthread_key_t key_{};
};

}  // namespace ark
