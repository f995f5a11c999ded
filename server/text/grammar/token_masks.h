// Which tokens may come next, for each state of a grammar's automaton.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/text/grammar/automaton.h"
#include "server/text/grammar/token_trie.h"

namespace ark::text::grammar {

// Shared by all texts of one grammar and vocabulary; whatever is found stays for the next one. Any thread may call.
class TokenMasks {
 public:
  // Where a text stands.
  struct Position {
    Automaton::State state = Automaton::kDead;
    bool is_first = true;  // nothing has been read
    bool may_end = false, must_end = false;
  };

  // Who uses it holds the trie.
  TokenMasks(std::shared_ptr<const Pushdown> pushdown, const TokenTrie& trie);

  // What has not been found before is work, which is taken from `work_left`. All throw kInvalidArgument where there is
  // not enough: the grammar is too ambiguous.
  Position start(std::size_t& work_left);
  // Dead where the token does not continue the text. That it is special is the caller's to judge.
  Position after(const Position& position, std::int32_t token, std::size_t& work_left);
  // Sets the bits of all tokens that may come and are not special, clears the others.
  void fill(const Position& position, std::span<std::uint32_t> mask, std::size_t& work_left);
  // The same position in here.
  Position adopt(TokenMasks& other, const Position& position, std::size_t& work_left);

  // It is time for another: what it has found takes too much memory.
  bool is_full();
  std::size_t bytes();

 private:
  // The bits as words or, where these are fewer, the tokens.
  struct Mask {
    bool is_list = false;
    std::vector<std::uint32_t> words;
  };

  Position position_of(Automaton::State state, bool is_first);
  const Mask& mask_of(const Position& position, std::size_t& work_left);
  Mask make_mask(const Position& position, std::size_t& work_left);
  bool revise(Mask& mask, Automaton::State state, std::size_t left, Budget& budget);
  void walk(std::size_t begin, std::size_t end, Automaton::State state, Budget& budget);

  const TokenTrie& trie_;
  std::mutex mutex_;  // holds for all below
  Automaton automaton_;
  std::unordered_map<std::uint64_t, Mask> masks_;
  std::size_t mask_bytes_ = 0;
  std::vector<Automaton::State> path_;  // while it walks: by depth
  std::vector<std::int32_t> found_;     // and the tokens that may come
};

}  // namespace ark::text::grammar
