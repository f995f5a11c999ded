// A shared library opened at run time: the binary needs neither CUDA nor its headers.
#pragma once

#include <string>
#include <vector>

namespace ark::cuda {

class Library {
 public:
  Library() = default;
  // Opens the first of `names` that can be loaded; is_open() tells whether there was one.
  explicit Library(const std::vector<std::string>& names);
  ~Library();
  Library(Library&& other) noexcept;
  Library& operator=(Library&&) = delete;

  // Leaves the library loaded for the rest of the process.
  void keep() { handle_ = nullptr; }

  bool is_open() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }  // of the one that was opened

  // A function of it, for a pointer of its type. Throws Error(kUnavailable) naming library and function if it is not
  // there.
  struct Function {
    void* address;
    template <typename F>
    operator F*() const {
      return reinterpret_cast<F*>(address);
    }
  };
  Function function(const char* name) const { return {symbol(name)}; }

 private:
  void* symbol(const char* function) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace ark::cuda
