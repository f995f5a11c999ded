#include "base/texts.h"

#include <deque>
#include <mutex>
#include <unordered_map>

#include "base/error.h"

namespace ark {
namespace {

constexpr std::size_t kMostTextBytes = std::size_t{1} << 30;
constexpr std::size_t kTextOverhead = 128;  // of a text in both tables, about

struct Texts {
  std::mutex mutex;
  std::deque<std::string> all{""};  // never moves them
  std::unordered_map<std::string_view, uint64_t> numbers{{all[0], 0}};
  std::size_t bytes = 0;
};
Texts& texts() {
  static auto* made = new Texts;
  return *made;
}

}  // namespace

uint64_t number_of_text(std::string_view text) {
  Texts& t = texts();
  const std::lock_guard lock(t.mutex);
  if (const auto it = t.numbers.find(text); it != t.numbers.end()) return it->second;
  if (t.bytes + text.size() + kTextOverhead > kMostTextBytes)
    throw Error(Code::kExhausted, "the texts of all string tensors take more than " +
                                      std::to_string(kMostTextBytes) + " bytes");
  t.bytes += text.size() + kTextOverhead;
  t.all.emplace_back(text);
  t.numbers.emplace(t.all.back(), t.all.size() - 1);
  return t.all.size() - 1;
}

const std::string& text_numbered(uint64_t number) {
  Texts& t = texts();
  const std::lock_guard lock(t.mutex);
  if (number >= t.all.size()) throw Error(Code::kInternal, "a string tensor holds what is no text's number");
  return t.all[number];
}

Tensor tensor_of_texts(Dims dims, std::span<const std::string> all) {
  Tensor t = Tensor::empty(DType::kString, std::move(dims));
  for (std::size_t i = 0; i < all.size(); ++i) t.as<uint64_t>()[i] = number_of_text(all[i]);
  return t;
}

}  // namespace ark
