// A grammar, assembled: a pushdown automaton over bytes. Const once made, shared between threads.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

namespace ark::text::grammar {

using NodeId = std::uint32_t;
using ByteSet = std::bitset<256>;

struct Pushdown {
  enum class Kind : std::uint8_t {
    kReturn,  // to what called, or out
    kConsume,  // one byte: (set, where to go) pairs; the sets of one node are disjoint unless a text is ambiguous
    kSplit,  // to any of these
    kCall,   // (what is called, where to go on)
  };
  struct Node {
    Kind kind;
    std::uint32_t begin, end;  // its words
  };

  std::vector<Node> nodes;
  std::vector<std::uint32_t> words;
  std::vector<ByteSet> sets;
  NodeId start = 0;
  // Bytes that no set tells apart are one class.
  std::array<std::uint8_t, 256> class_of{};
  std::array<std::uint8_t, 256> byte_of{};  // one of the class
  unsigned classes = 1;

  std::span<const std::uint32_t> operands(NodeId node) const {
    return {words.data() + nodes[node].begin, words.data() + nodes[node].end};
  }
  // Nodes of one repetition, by how many times are left: with each `left` times, those before it act as its first does
  // for texts of up to as many bytes. Others are their own first.
  struct Repeated {
    NodeId first;
    std::uint32_t left;
  };
  std::vector<Repeated> repeated;

  std::size_t bytes() const {
    return repeated.size() * sizeof(Repeated) + nodes.size() * sizeof(Node) + words.size() * sizeof words[0] +
           sets.size() * sizeof sets[0];
  }
};

inline constexpr NodeId kReturnNode = 0;

}  // namespace ark::text::grammar
