// Matrix products and Einsum.
#include <map>

#include "base/ir/einsum.h"
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

// numpy's matmul of a and b, whose last two axes are swapped where asked.
std::optional<Shape> product(Context& c, bool trans_a, bool trans_b) {
  if (!c.shape(0) || !c.shape(1)) return std::nullopt;
  Shape a = *c.shape(0), b = *c.shape(1);
  c.check_rank(0, 1);
  c.check_rank(1, 1);
  const bool vector_a = a.size() == 1, vector_b = b.size() == 1;
  if (vector_a)
    a.insert(a.begin(), Expr(1));
  else if (trans_a)
    std::swap(a[a.size() - 1], a[a.size() - 2]);
  if (vector_b)
    b.emplace_back(1);
  else if (trans_b)
    std::swap(b[b.size() - 1], b[b.size() - 2]);
  c.same(a.back(), b[b.size() - 2], "inner sizes of the product");
  Shape y = c.broadcast(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (!vector_a) y.push_back(a[a.size() - 2]);
  if (!vector_b) y.push_back(b.back());
  return y;
}

void matmul(Context& c) {
  c.out(0, c.dtype(0),
        product(c, c.attributes().get_or(key::kTransA, 0), c.attributes().get_or(key::kTransB, 0)));
}

// (x [..., K] or [..., J, K], experts [..., J], shares? [..., J], w [N, K]...) -> [..., J, N] or [..., N]
void expert_matmul(Context& c) {
  if (!is_floating(c.dtype(0)) || !is_integer(c.dtype(1)) || (c.has(2) && c.dtype(2) != c.dtype(0)))
    c.fail("has rows, experts and shares of types " + std::string(name_of(c.dtype(0))) + ", " +
           std::string(name_of(c.dtype(1))) + " and " + std::string(c.has(2) ? name_of(c.dtype(2)) : "none"));
  if (c.inputs() < 4) c.fail("has no experts");
  if (!c.shape(0) || !c.shape(1) || !c.shape(3)) return c.out(0, c.dtype(0), std::nullopt);
  const Shape &x = *c.shape(0), &experts = *c.shape(1);
  c.check_rank(1, 1);
  if (x.size() != experts.size() && x.size() != experts.size() + 1)
    c.fail("rows " + str(x) + " do not fit experts " + str(experts));
  for (std::size_t i = 3; i < c.inputs(); ++i) {
    if (!c.has(i) || !is_floating(c.dtype(i))) c.fail("has an expert that is no matrix of reals");
    if (!c.shape(i)) continue;
    c.check_rank(i, 2);
    if (c.rank(i) != 2) c.fail("has an expert of rank " + std::to_string(*c.rank(i)));
    c.same((*c.shape(i))[0], (*c.shape(3))[0], "rows of experts");
    c.same((*c.shape(i))[1], x.back(), "inner sizes of the product");
  }
  Shape y;
  const std::size_t lead = experts.size() - 1;
  for (std::size_t i = 0; i + 1 < x.size(); ++i) y.push_back(c.same(x[i], experts[i], "rows and experts"));
  if (y.size() == lead) y.push_back(experts.back());
  if (c.has(2)) {
    if (c.shape(2) && c.shape(2)->size() != experts.size()) c.fail("has shares of another rank than experts");
    for (std::size_t i = 0; c.shape(2) && i < experts.size(); ++i)
      c.same((*c.shape(2))[i], experts[i], "shares and experts");
    y.pop_back();
  }
  y.push_back((*c.shape(3))[0]);
  c.out(0, c.dtype(0), y);
}

// One zero point for all, or one for each of `count`, as far as sizes are known; the kernels look at the others.
void check_zeros(Context& c, std::size_t i, const Expr& count, const char* of) {
  const auto zeros = c.count(i), wanted = count.constant();
  if (zeros && wanted && *zeros != 1 && *zeros != *wanted)
    c.fail("has " + std::to_string(*zeros) + " zero points for " + std::to_string(*wanted) + of);
}

void matmul_integer(Context& c) {
  const auto y = product(c, false, false);
  if (y && c.rank(0) >= 2) check_zeros(c, 2, (*c.shape(0))[c.shape(0)->size() - 2], " rows");
  if (y && c.rank(1) >= 2) check_zeros(c, 3, c.shape(1)->back(), " columns");
  c.out(0, DType::kI32, y);
}

// Whether input i holds the product of `factors`, all positive, where its size is known. Nothing here can overflow.
void check_count(Context& c, std::size_t i, std::initializer_list<int64_t> factors, const std::string& what) {
  const auto known = c.count(i);
  if (!known) return;
  int64_t left = *known;
  bool fits = true;
  for (const int64_t f : factors) fits = fits && left % f == 0, left /= f;
  if (fits && left == 1) return;
  std::string wanted;
  for (const int64_t f : factors) wanted += (wanted.empty() ? "" : " * ") + std::to_string(f);
  c.fail("has " + std::to_string(*known) + " " + what + "; N, K, bits and block_size ask for " + wanted);
}

// What ONNX Runtime demands of the operands' sizes; bits, block_size, K and N are checked by the importer.
void check_nbits(Context& c) {
  const int64_t k = c.attributes().get(key::kK), n = c.attributes().get(key::kN),
                bits = c.attributes().get(key::kBits), block = c.attributes().get(key::kBlockSize);
  const int64_t blocks = (k - 1) / block + 1, per_byte = 8 / bits;
  if (c.dtype(1) != DType::kU8)
    c.fail("has weights of type " + std::string(name_of(c.dtype(1))) + ", not uint8");
  if (!is_floating(c.dtype(2))) c.fail("has scales of type " + std::string(name_of(c.dtype(2))));
  check_count(c, 1, {n, blocks, block / 8 * bits}, "bytes of weights");
  check_count(c, 2, {n, blocks}, "scales");
  if (c.has(3) && c.dtype(3) == DType::kU8) {
    check_count(c, 3, {n, (blocks - 1) / per_byte + 1}, "bytes of zero points");
  } else if (c.has(3)) {
    if (c.dtype(3) != c.dtype(2)) c.fail("has zero points of type " + std::string(name_of(c.dtype(3))));
    check_count(c, 3, {n, blocks}, "zero points");
  }
  if (!c.has(4)) return;
  if (!is_integer(c.dtype(4))) c.fail("has g_idx of type " + std::string(name_of(c.dtype(4))));
  const bool padded = c.count(4).value_or(k) != k;  // to whole blocks
  check_count(c, 4, {padded ? blocks * block : k}, "elements of g_idx");
}

void matmul_nbits(Context& c) {
  check_nbits(c);
  std::optional<Shape> y = c.shape(0);
  if (y) {
    c.check_rank(0, 1);
    c.same(y->back(), Expr(c.attributes().get(key::kK)), "K and the last axis of the input");
    y->back() = c.attributes().get(key::kN);
  }
  if (c.has(5) && c.shape(5)) {
    c.check_rank(5, 1);
    c.same(Expr(c.attributes().get(key::kN)), c.shape(5)->back(), "N and the bias");
  }
  c.out(0, c.dtype(0), y);
}

void einsum(Context& c) {
  std::vector<int64_t> ranks;
  for (std::size_t i = 0; i < c.inputs(); ++i) {
    if (!c.shape(i)) return c.out(0, c.dtype(0), std::nullopt);
    ranks.push_back(*c.rank(i));
  }
  const EinsumLabels labels = einsum_labels(c.attributes().get_or(key::kEquation, ""), ranks);
  std::map<char, Expr> sizes;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    for (std::size_t axis = 0; axis < labels.operands[i].size(); ++axis) {
      const auto [it, fresh] = sizes.emplace(labels.operands[i][axis], (*c.shape(i))[axis]);
      if (!fresh) it->second = c.broadcast(it->second, (*c.shape(i))[axis]);
    }
  Shape y;
  for (const char label : labels.result) y.push_back(sizes.at(label));
  c.out(0, c.dtype(0), y);
}

}  // namespace

std::span<const Entry> product_rules() {
  static constexpr Entry kRules[] = {
      {Op::kMatMul, matmul},
      {Op::kExpertMatMul, expert_matmul},
      {Op::kMatMulInteger, matmul_integer},
      {Op::kMatMulNBits, matmul_nbits},
      {Op::kEinsum, einsum},
  };
  return kRules;
}

}  // namespace ark::shape_rules
