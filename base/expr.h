// Symbolic integers: tensor sizes, offsets and grids as expressions over named symbols.
//
// An Expr is an immutable value in canonical form: a polynomial with integer coefficients over atoms.
// An atom is a symbol ("batch", "past") or an opaque floordiv, mod, min, max of canonical expressions.
// Two expressions that are equal as polynomials compare equal, so `past + seq - past == seq` holds.
// All symbols are sizes: >= 0. Overflow saturates to an Error at construction and at evaluation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ark {

// The values of symbols at one step or one call.
using SymbolValues = std::map<std::string, int64_t, std::less<>>;

class Expr {
 public:
  Expr();                                // 0
  Expr(int64_t constant);                // NOLINT: sizes are written as plain integers everywhere
  static Expr symbol(std::string name);  // name: any text without spaces, parentheses, commas, operators

  friend Expr operator+(const Expr& a, const Expr& b);
  friend Expr operator-(const Expr& a, const Expr& b);
  friend Expr operator*(const Expr& a, const Expr& b);
  friend Expr floordiv(const Expr& a, const Expr& b);  // towards minus infinity; exact where provable
  friend Expr mod(const Expr& a, const Expr& b);       // a - b * floordiv(a, b)
  friend Expr min(const Expr& a, const Expr& b);       // folds where the difference's sign is provable
  friend Expr max(const Expr& a, const Expr& b);
  friend Expr ceildiv(const Expr& a, const Expr& b);

  std::optional<int64_t> constant() const;  // the value if no symbol is left
  bool is_constant(int64_t value) const { return constant() == value; }
  bool operator==(const Expr& other) const;
  bool operator<(const Expr& other) const;  // arbitrary total order, for use as a map key

  // Provable bounds with every symbol >= 0 (nullopt: unbounded or not provable).
  std::optional<int64_t> lower_bound() const;
  std::optional<int64_t> upper_bound() const;

  // Throws Error(kInternal) on an unbound symbol, Error(kBadModel) on overflow or division by zero.
  int64_t evaluate(const SymbolValues& values) const;
  Expr substitute(const std::map<std::string, Expr>& replacements) const;
  // Nothing where `values` lacks a symbol.
  std::optional<int64_t> try_evaluate(const SymbolValues& values) const;
  void collect_symbols(std::set<std::string>& into) const;
  std::set<std::string> symbols() const;
  std::optional<std::string> as_symbol() const;  // its name, if it is nothing but one symbol

  // "2*batch*past + floordiv(seq, 4) - 1"; parse(str()) == *this. parse throws Error(kInvalidArgument).
  std::string str() const;
  static Expr parse(std::string_view text);

 private:
  struct Atom;
  struct AtomLess {
    bool operator()(const std::shared_ptr<const Atom>& a, const std::shared_ptr<const Atom>& b) const;
  };
  using AtomPtr = std::shared_ptr<const Atom>;
  using Monomial = std::vector<AtomPtr>;  // sorted; repeated for powers
  struct MonomialLess {
    bool operator()(const Monomial& a, const Monomial& b) const;
  };
  using Terms = std::map<Monomial, int64_t, MonomialLess>;
  enum class AtomKind : uint8_t { kSymbol, kFloorDiv, kMod, kMin, kMax };

  explicit Expr(Terms terms);
  static Expr atom(AtomKind kind, std::string name, const Expr& a, const Expr& b);
  static int compare(const Expr& a, const Expr& b);
  static int compare(const Atom& a, const Atom& b);
  static int compare(const Monomial& a, const Monomial& b);
  static std::optional<int64_t> atom_lower(const Atom& a);
  static std::optional<int64_t> atom_upper(const Atom& a);
  std::optional<Expr> exact_quotient(const Expr& divisor) const;
  static Expr rebuild(AtomKind kind, const Expr& a, const Expr& b);
  friend class ExprParser;

  std::shared_ptr<const Terms> terms_;  // never null; no zero coefficients
};

Expr floordiv(const Expr& a, const Expr& b);
Expr mod(const Expr& a, const Expr& b);
Expr ceildiv(const Expr& a, const Expr& b);
Expr min(const Expr& a, const Expr& b);
Expr max(const Expr& a, const Expr& b);

using Shape = std::vector<Expr>;
std::string str(const Shape& shape);  // "[batch, 8, past + seq, 64]"
Expr element_count(const Shape& shape);
// Its sizes as numbers; nullopt if one holds a symbol.
std::optional<std::vector<int64_t>> constants_of(const Shape& shape);

}  // namespace ark
