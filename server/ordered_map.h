// A map that keeps the order of insertion and still finds by hash: the objects of Json. A tokenizer.json holds an
// object of 150,000 members; most objects hold a handful and carry no index.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace ark {

// What nlohmann::basic_json asks of its ObjectType; Key is a string. Iterators and references are those of a
// vector: every insertion and removal ends them.
template <class Key, class T, class Ignored = std::less<>,
          class Allocator = std::allocator<std::pair<const Key, T>>>
class OrderedMap : private std::vector<std::pair<const Key, T>, Allocator> {
  using Items = std::vector<std::pair<const Key, T>, Allocator>;

 public:
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<>;
  using typename Items::const_iterator;
  using typename Items::iterator;
  using typename Items::size_type;
  using typename Items::value_type;

  OrderedMap() = default;
  template <class It>
  OrderedMap(It first, It last) {
    insert(first, last);
  }

  using Items::begin;
  using Items::cbegin;
  using Items::cend;
  using Items::empty;
  using Items::end;
  using Items::max_size;
  using Items::size;

  void clear() {
    Items::clear();
    index_.clear();
  }
  iterator find(std::string_view key) { return begin() + static_cast<std::ptrdiff_t>(position(key)); }
  const_iterator find(std::string_view key) const {
    return begin() + static_cast<std::ptrdiff_t>(position(key));
  }
  size_type count(std::string_view key) const { return position(key) < size(); }
  T& at(std::string_view key) { return checked(find(key))->second; }
  const T& at(std::string_view key) const { return checked(find(key))->second; }
  T& operator[](std::string_view key) { return emplace(key, T{}).first->second; }
  const T& operator[](std::string_view key) const { return at(key); }

  template <class K>
  std::pair<iterator, bool> emplace(K&& key, T value) {
    if (const auto found = find(key); found != end()) return {found, false};
    Items::emplace_back(std::forward<K>(key), std::move(value));
    if (size() > kWithoutIndex && 2 * size() > index_.size())
      make_index();
    else if (!index_.empty())
      index_[slot_of(Items::back().first)] = static_cast<uint32_t>(size());
    return {std::prev(end()), true};
  }
  std::pair<iterator, bool> insert(const value_type& item) { return emplace(item.first, item.second); }
  template <class It>
  void insert(It first, It last) {
    for (; first != last; ++first) emplace(first->first, first->second);
  }

  iterator erase(iterator at) { return erase(at, std::next(at)); }
  // Items cannot be assigned, as their keys are const: those that stay move to another vector.
  iterator erase(iterator first, iterator last) {
    const auto where = first - begin();
    Items kept;
    kept.reserve(size());
    for (auto it = begin(); it != end(); it = it == first && first != last ? last : std::next(it))
      if (it != first || first == last) kept.emplace_back(it->first, std::move(it->second));
    Items::swap(kept);
    make_index();
    return begin() + where;
  }
  size_type erase(std::string_view key) {
    const auto found = find(key);
    if (found == end()) return 0;
    erase(found);
    return 1;
  }

  friend bool operator==(const OrderedMap& a, const OrderedMap& b) {
    return static_cast<const Items&>(a) == static_cast<const Items&>(b);
  }
  friend std::partial_ordering operator<=>(const OrderedMap& a, const OrderedMap& b) {
    return static_cast<const Items&>(a) <=> static_cast<const Items&>(b);
  }

 private:
  static constexpr size_type kWithoutIndex = 16;

  // size() where the key is not.
  size_type position(std::string_view key) const {
    if (index_.empty()) {
      size_type i = 0;
      while (i < size() && Items::operator[](i).first != key) ++i;
      return i;
    }
    const uint32_t entry = index_[slot_of(key)];
    return entry ? entry - 1 : size();
  }
  // Where the key stands in the index, or the free slot that it would take.
  size_type slot_of(std::string_view key) const {
    size_type slot = std::hash<std::string_view>()(key) & (index_.size() - 1);
    while (index_[slot] && Items::operator[](index_[slot] - 1).first != key)
      slot = (slot + 1) & (index_.size() - 1);
    return slot;
  }
  void make_index() {
    index_.clear();
    if (size() <= kWithoutIndex) return;
    size_type slots = 64;
    while (slots < 4 * size()) slots *= 2;
    index_.resize(slots);
    for (size_type i = 0; i < size(); ++i)
      index_[slot_of(Items::operator[](i).first)] = static_cast<uint32_t>(i + 1);
  }
  template <class It>
  It checked(It found) const {
    if (found == end()) throw std::out_of_range("key not found");
    return found;
  }

  std::vector<uint32_t> index_;  // open addressing, a power of two; position + 1, 0: free
};

}  // namespace ark
