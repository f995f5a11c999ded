// Longer than most: the canonical form is known to all of these functions and to nobody else.
#include "base/expr.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/error.h"

namespace ark {

struct Expr::Atom {
  AtomKind kind;
  std::string name;  // of a symbol
  Expr a, b;         // operands of the others
  int depth = 0;     // atoms inside of each other
};

namespace {

int64_t checked(bool overflow, int64_t value) {
  if (overflow)
    throw Error(Code::kBadModel,
                "a size that the model computes from its dimensions exceeds 2^63 - 1; its dimensions are "
                "wrong or too large");
  return value;
}
int64_t add64(int64_t a, int64_t b) {
  int64_t r = 0;
  const bool overflow = __builtin_add_overflow(a, b, &r);
  return checked(overflow, r);
}
int64_t mul64(int64_t a, int64_t b) {
  int64_t r = 0;
  const bool overflow = __builtin_mul_overflow(a, b, &r);
  return checked(overflow, r);
}
int64_t floordiv64(int64_t a, int64_t b) {
  if (b == 0) throw Error(Code::kBadModel, "a symbolic size is divided by zero");
  if (b == -1) return mul64(a, -1);
  const int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}
constexpr std::string_view kNames[] = {"", "floordiv", "mod", "min", "max"};
// Guards against inputs built to explode: sizes of real graphs have a handful of terms.
constexpr std::size_t kMaxTerms = 256;
constexpr int kMaxDepth = 256;  // of divisions, minima ... inside of each other: what walks them recurses

}  // namespace

bool Expr::AtomLess::operator()(const AtomPtr& a, const AtomPtr& b) const { return compare(*a, *b) < 0; }
bool Expr::MonomialLess::operator()(const Monomial& a, const Monomial& b) const { return compare(a, b) < 0; }

int Expr::compare(const Atom& a, const Atom& b) {
  if (&a == &b) return 0;
  if (a.kind != b.kind) return a.kind < b.kind ? -1 : 1;
  if (a.kind == AtomKind::kSymbol) return a.name.compare(b.name);
  if (const int c = compare(a.a, b.a)) return c;
  return compare(a.b, b.b);
}

int Expr::compare(const Monomial& a, const Monomial& b) {
  if (a.size() != b.size()) return a.size() > b.size() ? -1 : 1;  // higher degree first, constant last
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const int c = compare(*a[i], *b[i])) return c;
  return 0;
}

int Expr::compare(const Expr& a, const Expr& b) {
  if (a.terms_ == b.terms_) return 0;
  auto i = a.terms_->begin(), j = b.terms_->begin();
  for (; i != a.terms_->end() && j != b.terms_->end(); ++i, ++j) {
    if (const int c = compare(i->first, j->first)) return c;
    if (i->second != j->second) return i->second < j->second ? -1 : 1;
  }
  return (i != a.terms_->end()) - (j != b.terms_->end());
}

Expr::Expr() : Expr(0) {}
Expr::Expr(int64_t constant) {
  Terms terms;
  if (constant != 0) terms.emplace(Monomial{}, constant);
  terms_ = std::make_shared<const Terms>(std::move(terms));
}
Expr::Expr(Terms terms) {
  std::erase_if(terms, [](const auto& t) { return t.second == 0; });
  if (terms.size() > kMaxTerms) throw Error(Code::kBadModel, "a symbolic size has more than 256 terms");
  terms_ = std::make_shared<const Terms>(std::move(terms));
}

Expr Expr::symbol(std::string name) { return atom(AtomKind::kSymbol, std::move(name), 0, 0); }
Expr Expr::atom(AtomKind kind, std::string name, const Expr& a, const Expr& b) {
  int depth = 0;
  for (const Expr* e : {&a, &b})
    for (const auto& [monomial, factor] : *e->terms_)
      for (const auto& inner : monomial) depth = std::max(depth, inner->depth + 1);
  if (depth > kMaxDepth)
    throw Error(Code::kBadModel,
                "a symbolic size nests more than " + std::to_string(kMaxDepth) + " operations");
  Terms terms;
  terms.emplace(Monomial{std::make_shared<const Atom>(Atom{kind, std::move(name), a, b, depth})}, 1);
  return Expr(std::move(terms));
}

Expr operator+(const Expr& a, const Expr& b) {
  Expr::Terms terms = *a.terms_;
  for (const auto& [monomial, factor] : *b.terms_) terms[monomial] = add64(terms[monomial], factor);
  return Expr(std::move(terms));
}
Expr operator-(const Expr& a, const Expr& b) { return a + Expr(-1) * b; }
Expr operator*(const Expr& a, const Expr& b) {
  Expr::Terms terms;
  for (const auto& [ma, fa] : *a.terms_)
    for (const auto& [mb, fb] : *b.terms_) {
      Expr::Monomial m = ma;
      m.insert(m.end(), mb.begin(), mb.end());
      if (m.size() > 16) throw Error(Code::kBadModel, "a symbolic size multiplies more than 16 symbols");
      std::sort(m.begin(), m.end(), Expr::AtomLess());
      terms[m] = add64(terms[m], mul64(fa, fb));
    }
  return Expr(std::move(terms));
}

// Polynomial division by a single-term divisor, or by an equal polynomial up to a factor.
std::optional<Expr> Expr::exact_quotient(const Expr& divisor) const {
  if (terms_->empty()) return Expr(0);
  if (divisor.terms_->size() != 1) {
    if (divisor.terms_->empty()) return std::nullopt;
    // Try the ratio of leading terms: exact for multiples such as (2*a + 2*b) / (a + b) and a*(b+c) / (b+c).
    const Expr lead{Terms{*terms_->begin()}};
    const auto ratio = lead.exact_quotient(Expr(Terms{*divisor.terms_->begin()}));
    if (ratio && *ratio * divisor == *this) return ratio;
    return std::nullopt;
  }
  const auto& [dm, df] = *divisor.terms_->begin();
  Terms out;
  for (const auto& [m, f] : *terms_) {
    if (df == -1 && f == std::numeric_limits<int64_t>::min()) return std::nullopt;
    if (f % df != 0 || !std::includes(m.begin(), m.end(), dm.begin(), dm.end(), AtomLess()))
      return std::nullopt;
    Monomial rest;
    std::set_difference(m.begin(), m.end(), dm.begin(), dm.end(), std::back_inserter(rest), AtomLess());
    out[rest] = f / df;
  }
  return Expr(std::move(out));
}

Expr floordiv(const Expr& a, const Expr& b) {
  const auto ca = a.constant(), cb = b.constant();
  if (ca && cb) return floordiv64(*ca, *cb);
  if (const auto q = a.exact_quotient(b)) return *q;
  if (cb && *cb > 0) {
    // Pull out the terms that divide exactly: (4*a + b) / 4 = a + b / 4.
    Expr::Terms whole, rest;
    for (const auto& [m, f] : *a.terms_) (f % *cb == 0 ? whole : rest).emplace(m, f);
    if (!whole.empty()) return *Expr(std::move(whole)).exact_quotient(b) + floordiv(Expr(std::move(rest)), b);
    const auto low = a.lower_bound(), high = a.upper_bound();
    if (low && high && floordiv64(*low, *cb) == floordiv64(*high, *cb)) return floordiv64(*low, *cb);
  }
  // What all terms of both hold falls out, so that it may be 0 where the sizes are but sketched: (a*b) / (2*a) = b / 2.
  std::optional<Expr::Monomial> common;
  for (const Expr* e : {&a, &b})
    for (const auto& [m, f] : *e->terms_) {
      Expr::Monomial both;
      if (common)
        std::set_intersection(common->begin(), common->end(), m.begin(), m.end(), std::back_inserter(both),
                              Expr::AtomLess());
      common = common ? both : m;
    }
  if (common && !common->empty() && !b.terms_->empty()) {
    const Expr factor{Expr::Terms{{*common, 1}}};
    return floordiv(*a.exact_quotient(factor), *b.exact_quotient(factor));
  }
  return Expr::atom(Expr::AtomKind::kFloorDiv, "", a, b);
}
Expr ceildiv(const Expr& a, const Expr& b) { return floordiv(a + b - 1, b); }

Expr mod(const Expr& a, const Expr& b) {
  const auto ca = a.constant(), cb = b.constant();
  if (ca && cb) return add64(*ca, -mul64(*cb, floordiv64(*ca, *cb)));
  if (a.exact_quotient(b)) return 0;
  return Expr::atom(Expr::AtomKind::kMod, "", a, b);
}

Expr min(const Expr& a, const Expr& b) {
  const Expr difference = b - a;
  if (const auto low = difference.lower_bound(); low && *low >= 0) return a;
  if (const auto high = difference.upper_bound(); high && *high <= 0) return b;
  const bool swap = b < a;
  return Expr::atom(Expr::AtomKind::kMin, "", swap ? b : a, swap ? a : b);
}
Expr max(const Expr& a, const Expr& b) {
  const Expr difference = a - b;
  if (const auto low = difference.lower_bound(); low && *low >= 0) return a;
  if (const auto high = difference.upper_bound(); high && *high <= 0) return b;
  const bool swap = b < a;
  return Expr::atom(Expr::AtomKind::kMax, "", swap ? b : a, swap ? a : b);
}

std::optional<int64_t> Expr::constant() const {
  if (terms_->empty()) return 0;
  if (terms_->size() == 1 && terms_->begin()->first.empty()) return terms_->begin()->second;
  return std::nullopt;
}
bool Expr::operator==(const Expr& other) const { return compare(*this, other) == 0; }
bool Expr::operator<(const Expr& other) const { return compare(*this, other) < 0; }

std::optional<int64_t> Expr::atom_lower(const Atom& a) {
  const auto la = a.a.lower_bound(), lb = a.b.lower_bound();
  switch (a.kind) {
    case AtomKind::kSymbol:
      return 0;
    case AtomKind::kFloorDiv:
      if (const auto divisor = a.b.constant(); la && divisor && *divisor > 0)
        return floordiv64(*la, *divisor);
      return la && lb && *la >= 0 && *lb >= 0 ? std::optional<int64_t>(0) : std::nullopt;
    case AtomKind::kMod:
      return lb && *lb >= 0 ? std::optional<int64_t>(0) : std::nullopt;
    case AtomKind::kMin:
      return la && lb ? std::optional(std::min(*la, *lb)) : std::nullopt;
    case AtomKind::kMax:
      return la && lb ? std::optional(std::max(*la, *lb)) : la ? la : lb;
  }
  return std::nullopt;
}
std::optional<int64_t> Expr::atom_upper(const Atom& a) {
  if (a.kind == AtomKind::kSymbol) return std::nullopt;
  const auto ua = a.a.upper_bound(), ub = a.b.upper_bound();
  switch (a.kind) {
    case AtomKind::kFloorDiv:
      if (const auto divisor = a.b.constant(); ua && divisor && *divisor > 0)
        return floordiv64(*ua, *divisor);
      return std::nullopt;
    case AtomKind::kMod:
      return ub && *ub > 0 ? std::optional(*ub - 1) : std::nullopt;
    case AtomKind::kMin:
      return ua && ub ? std::optional(std::min(*ua, *ub)) : ua ? ua : ub;
    case AtomKind::kMax:
      return ua && ub ? std::optional(std::max(*ua, *ub)) : std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> Expr::lower_bound() const {
  int64_t sum = 0;
  for (const auto& [m, f] : *terms_) {
    if (m.empty()) {
      sum = add64(sum, f);
      continue;
    }
    if (f < 0 || m.size() > 1) {  // products: fine only if every factor is provably >= 0
      if (m.size() == 1) {
        const auto high = atom_upper(*m[0]);
        if (!high) return std::nullopt;
        sum = add64(sum, mul64(f, *high));
        continue;
      }
      for (const AtomPtr& a : m)
        if (const auto low = atom_lower(*a); !low || *low < 0) return std::nullopt;
      if (f < 0) return std::nullopt;
      continue;  // the product is >= 0
    }
    const auto low = atom_lower(*m[0]);
    if (!low) return std::nullopt;
    sum = add64(sum, mul64(f, *low));
  }
  return sum;
}
std::optional<int64_t> Expr::upper_bound() const {
  const auto low = (Expr(-1) * *this).lower_bound();
  return low ? std::optional(-*low) : std::nullopt;
}

int64_t Expr::evaluate(const SymbolValues& values) const {
  int64_t sum = 0;
  for (const auto& [m, f] : *terms_) {
    int64_t product = f;
    for (const AtomPtr& a : m) {
      int64_t v = 0;
      if (a->kind == AtomKind::kSymbol) {
        const auto it = values.find(a->name);
        if (it == values.end())
          throw Error(Code::kInternal, "symbol '" + escaped(a->name) + "' has no value");
        v = it->second;
      } else {
        const int64_t x = a->a.evaluate(values), y = a->b.evaluate(values);
        v = a->kind == AtomKind::kFloorDiv ? floordiv64(x, y)
            : a->kind == AtomKind::kMod    ? add64(x, -mul64(y, floordiv64(x, y)))
            : a->kind == AtomKind::kMin    ? std::min(x, y)
                                           : std::max(x, y);
      }
      product = mul64(product, v);
    }
    sum = add64(sum, product);
  }
  return sum;
}

Expr Expr::rebuild(AtomKind kind, const Expr& a, const Expr& b) {
  return kind == AtomKind::kFloorDiv ? floordiv(a, b)
         : kind == AtomKind::kMod    ? mod(a, b)
         : kind == AtomKind::kMin    ? min(a, b)
                                     : max(a, b);
}

Expr Expr::substitute(const std::map<std::string, Expr>& replacements) const {
  Expr sum = 0;
  for (const auto& [m, f] : *terms_) {
    Expr product = f;
    for (const AtomPtr& a : m) {
      if (a->kind == AtomKind::kSymbol) {
        const auto it = replacements.find(a->name);
        product = product * (it == replacements.end() ? symbol(a->name) : it->second);
      } else {
        product = product * rebuild(a->kind, a->a.substitute(replacements), a->b.substitute(replacements));
      }
    }
    sum = sum + product;
  }
  return sum;
}

void Expr::collect_symbols(std::set<std::string>& into) const {
  for (const auto& [m, f] : *terms_)
    for (const AtomPtr& a : m) {
      if (a->kind == AtomKind::kSymbol)
        into.insert(a->name);
      else
        a->a.collect_symbols(into), a->b.collect_symbols(into);
    }
}

std::set<std::string> Expr::symbols() const {
  std::set<std::string> names;
  collect_symbols(names);
  return names;
}

std::optional<std::string> Expr::as_symbol() const {
  const std::set<std::string> names = symbols();
  return names.size() == 1 && *this == symbol(*names.begin()) ? std::optional(*names.begin()) : std::nullopt;
}

std::optional<int64_t> Expr::try_evaluate(const SymbolValues& values) const {
  for (const std::string& name : symbols())
    if (!values.contains(name)) return std::nullopt;
  return evaluate(values);
}

std::string Expr::str() const {
  if (terms_->empty()) return "0";
  std::string out;
  for (const auto& [m, f] : *terms_) {
    const bool negative = f < 0;
    if (out.empty())
      out = negative ? "-" : "";
    else
      out += negative ? " - " : " + ";
    const std::string magnitude = std::to_string(f).substr(negative);
    if (m.empty() || magnitude != "1") out += magnitude + (m.empty() ? "" : "*");
    for (std::size_t i = 0; i < m.size(); ++i) {
      if (i) out += "*";
      if (m[i]->kind == AtomKind::kSymbol)
        out += m[i]->name;
      else
        out += std::string(kNames[static_cast<int>(m[i]->kind)]) + "(" + m[i]->a.str() + ", " +
               m[i]->b.str() + ")";
    }
  }
  return out;
}

// Recursive descent: sum of products of integers, symbols, calls and parentheses.
class ExprParser {
 public:
  explicit ExprParser(std::string_view text) : rest_(text) {}
  Expr parse() {
    Expr e = sum(0);
    space();
    if (!rest_.empty()) fail();
    return e;
  }

 private:
  [[noreturn]] void fail() {
    throw Error(Code::kInvalidArgument, "not a size expression, at '" + escaped(rest_, 40) + "'");
  }
  void space() {
    while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
  }
  bool eat(char c) {
    space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  Expr sum(int depth) {
    if (depth > 100) fail();
    Expr e = eat('-') ? Expr(-1) * product(depth) : product(depth);
    for (;;) {
      if (eat('+'))
        e = e + product(depth);
      else if (eat('-'))
        e = e - product(depth);
      else
        return e;
    }
  }
  Expr product(int depth) {
    Expr e = factor(depth);
    while (eat('*')) e = e * factor(depth);
    return e;
  }
  Expr factor(int depth) {
    if (eat('(')) {
      Expr e = sum(depth + 1);
      if (!eat(')')) fail();
      return e;
    }
    space();
    std::size_t n = 0;
    while (n < rest_.size() && std::string_view(" +-*(),").find(rest_[n]) == std::string_view::npos) ++n;
    if (n == 0) fail();
    const std::string word(rest_.substr(0, n));
    if (std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); })) {
      if (n > 18) fail();
      rest_.remove_prefix(n);
      return Expr(std::stoll(word));
    }
    rest_.remove_prefix(n);
    for (int k = 1; k <= 4; ++k)
      if (word == kNames[k] && eat('(')) {
        const Expr a = sum(depth + 1);
        if (!eat(',')) fail();
        const Expr b = sum(depth + 1);
        if (!eat(')')) fail();
        return Expr::rebuild(static_cast<Expr::AtomKind>(k), a, b);
      }
    return Expr::symbol(word);
  }
  std::string_view rest_;
};

Expr Expr::parse(std::string_view text) { return ExprParser(text).parse(); }

std::string str(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + shape[i].str();
  return out + "]";
}
Expr element_count(const Shape& shape) {
  Expr n = 1;
  for (const Expr& d : shape) n = n * d;
  return n;
}
std::optional<std::vector<int64_t>> constants_of(const Shape& shape) {
  std::vector<int64_t> numbers;
  for (const Expr& e : shape) {
    const auto number = e.constant();
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace ark
