// libark_mpi.so, as this process has it once it looks for it.
#pragma once

namespace ark::dma {

class LoadedMpi {
 public:
  // Beside this executable, where the system looks, or as ARK_LIBMPI says. Throws Error(kUnavailable).
  LoadedMpi();
  // One of library.h. Throws Error(kUnavailable).
  template <class F>
  F function(const char* name) const {
    return reinterpret_cast<F>(symbol(name));
  }
  // Throws Error(kUnavailable) with what a function has returned, if that is a reason.
  static void check(const char* what, const char* why);

 private:
  void* symbol(const char* name) const;
  void* library_;
};

}  // namespace ark::dma
