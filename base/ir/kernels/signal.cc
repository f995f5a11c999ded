// Dft, MelWeightMatrix, and Det. They compute in double.
#include <bit>
#include <cmath>
#include <complex>
#include <memory>
#include <numbers>
#include <utility>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

using Complex = std::complex<double>;

// The forward transform of one length, by the prime factors of it; what is left of a large prime becomes a convolution
// of a power of two (Bluestein's way).
class Fourier {
 public:
  explicit Fourier(int64_t n) : n_(n) {
    turns_.reserve(static_cast<std::size_t>(n));
    for (int64_t k = 0; k < n; ++k) turns_.push_back(turn(k, n));
    int64_t rest = n;
    for (int64_t p = 2; p <= kLargestFactor; ++p)
      while (rest % p == 0) rest /= p;
    if (rest > 1) convolution_ = std::make_unique<const Convolution>(rest);
  }
  void run(std::span<const Complex> from, std::span<Complex> to) const { run(from.data(), 1, n_, to.data()); }

 private:
  static constexpr int64_t kLargestFactor = 64;

  static Complex turn(int64_t k, int64_t n) {
    const double angle = -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
    return {std::cos(angle), std::sin(angle)};
  }
  static int64_t smallest_factor(int64_t n) {
    for (int64_t p = 2; p * p <= n; ++p)
      if (n % p == 0) return p;
    return n;
  }

  // n elements, `stride` apart; the turns of n are every (n_ / n)-th.
  void run(const Complex* from, int64_t stride, int64_t n, Complex* to) const {
    if (n <= 1) {
      if (n == 1) *to = *from;
      return;
    }
    const int64_t p = smallest_factor(n), part = n / p;
    if (p > kLargestFactor) return convolution_->run(from, stride, to);
    for (int64_t i = 0; i < p; ++i) run(from + i * stride, stride * p, part, to + i * part);
    Complex sums[kLargestFactor];
    for (int64_t k = 0; k < part; ++k) {
      for (int64_t j = 0; j < p; ++j) {
        Complex sum = to[k];
        for (int64_t i = 1; i < p; ++i) sum += to[i * part + k] * turns_[i * (k + j * part) % n * (n_ / n)];
        sums[j] = sum;
      }
      for (int64_t j = 0; j < p; ++j) to[k + j * part] = sums[j];
    }
  }

  // n elements whose prime factors are all large.
  class Convolution {
   public:
    explicit Convolution(int64_t n)
        : n_(n),
          size_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * n - 1)))),
          transform_(std::make_unique<const Fourier>(size_)) {
      std::vector<Complex> b(static_cast<std::size_t>(size_));
      for (int64_t i = 0; i < n; ++i) {
        chirp_.push_back(turn(i * i % (2 * n), 2 * n));
        b[i] = b[(size_ - i) % size_] = std::conj(chirp_[i]);
      }
      transformed_.resize(b.size());
      transform_->run(b, transformed_);
    }
    void run(const Complex* from, int64_t stride, Complex* to) const {
      std::vector<Complex> a(static_cast<std::size_t>(size_)), product(a.size());
      for (int64_t i = 0; i < n_; ++i) a[i] = from[i * stride] * chirp_[i];
      transform_->run(a, product);
      for (int64_t i = 0; i < size_; ++i) product[i] = std::conj(product[i] * transformed_[i]);
      transform_->run(product, a);
      for (int64_t i = 0; i < n_; ++i) to[i] = std::conj(a[i]) / static_cast<double>(size_) * chirp_[i];
    }

   private:
    int64_t n_, size_;
    std::unique_ptr<const Fourier> transform_;
    std::vector<Complex> chirp_, transformed_;
  };

  int64_t n_;
  std::vector<Complex> turns_;
  std::unique_ptr<const Convolution> convolution_;
};

std::size_t dft_axis(const KernelCall& call) {
  const int64_t axis =
      has_input(call, 2) ? scalar<int64_t>(call, 2, "the axis of DFT") : call.attributes->get(key::kAxis);
  return static_cast<std::size_t>(norm_axis(axis, call.inputs[0].rank));
}

constexpr int64_t kDftRows = 16;  // of one tile
int64_t dft_rows(const KernelCall& call, std::size_t axis) {
  return product(call.inputs[0].shape().first(axis)) *
         product(call.inputs[0]
                     .shape()
                     .first(static_cast<std::size_t>(call.inputs[0].rank - 1))
                     .subspan(axis + 1));
}
// An axis that is an input is not known before the step runs: then one tile has all rows.
int64_t dft_grid(const KernelCall& call) {
  return has_input(call, 2) ? 1 : (dft_rows(call, dft_axis(call)) + kDftRows - 1) / kDftRows;
}

void dft_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const std::size_t axis = dft_axis(call);
  const bool inverse = call.attributes->get_or(key::kInverse, 0) != 0,
             onesided = call.attributes->get_or(key::kOnesided, 0) != 0, to_real = inverse && onesided;
  const int64_t parts = x.dims[x.rank - 1], results = y.dims[y.rank - 1], have = x.dims[axis],
                out = y.dims[axis];
  int64_t n = have;
  if (to_real) n = out;
  if (onesided && !inverse) n = has_input(call, 1) ? load_one<int64_t>(call.inputs[1], 0) : have;
  if (!onesided) n = out;
  const int64_t inner = product(x.shape().first(static_cast<std::size_t>(x.rank - 1)).subspan(axis + 1)),
                rows = dft_rows(call, axis),
                last = has_input(call, 2) ? rows : std::min(rows, (tile + 1) * kDftRows);
  const Fourier transform(n);
  std::vector<Complex> from(static_cast<std::size_t>(n)), to(from.size());
  const int64_t used = std::min(have, to_real ? n / 2 + 1 : n);
  for (int64_t row = tile * kDftRows; row < last; ++row) {
    const int64_t before = row / inner, behind = row % inner;
    std::fill(from.begin(), from.end(), Complex{});
    for (int64_t i = 0; i < used; ++i) {
      const int64_t at = ((before * have + i) * inner + behind) * parts;
      const Complex value{load_one<double>(x, at), parts == 2 ? load_one<double>(x, at + 1) : 0};
      from[i] = inverse ? std::conj(value) : value;
      if (!to_real) continue;
      if (i == 0 || 2 * i == n)
        from[i] = value.real();
      else
        from[n - i] = value;  // a real signal's other half
    }
    transform.run(from, to);
    for (int64_t i = 0; i < out; ++i) {
      const Complex value = inverse ? std::conj(to[i]) / static_cast<double>(n) : to[i];
      const int64_t at = ((before * out + i) * inner + behind) * results;
      store_one<double>(y, at, value.real());
      if (results == 2) store_one<double>(y, at + 1, value.imag());
    }
  }
}

struct MelBands {
  int64_t bins, rows;
  std::vector<int64_t> edges;  // of the triangles: bins + 2
};
MelBands mel_bands(const KernelCall& call) {
  const auto bins = scalar<int64_t>(call, 0, "num_mel_bins"), length = scalar<int64_t>(call, 1, "dft_length"),
             rate = scalar<int64_t>(call, 2, "sample_rate");
  const auto low = scalar<double>(call, 3, "lower_edge_hertz"),
             high = scalar<double>(call, 4, "upper_edge_hertz");
  constexpr int64_t kMost = 1 << 24;
  if (bins < 1 || bins > kMost || length < 1 || length > kMost || rate < 1 ||
      !(low >= 0 && low <= high && high < 1e9))
    misfit("MelWeightMatrix of " + std::to_string(bins) + " bins, length " + std::to_string(length) +
           " and rate " + std::to_string(rate) + "; they must be positive, the first two at most " +
           std::to_string(kMost) + ", and 0 <= lower edge <= upper edge");
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double step = (mel(high) - mel(low)) / static_cast<double>(bins + 2);
  MelBands bands{bins, length / 2 + 1, {}};
  for (int64_t i = 0; i < bins + 2; ++i) {
    const double hertz = 700 * (std::pow(10, (mel(low) + static_cast<double>(i) * step) / 2595) - 1);
    bands.edges.push_back(static_cast<int64_t>(
        std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate))));
  }
  if (bands.edges.back() > bands.rows)
    misfit("MelWeightMatrix has an upper edge beyond half the sample rate");
  return bands;
}

std::vector<OutputType> mel_shapes(const KernelCall& call) {
  std::vector<OutputType> types = by_rule(call);
  if (call.inputs[0].data) mel_bands(call);
  return types;
}

void mel_tile(const KernelCall& call, int64_t) {
  const MelBands bands = mel_bands(call);
  const TensorView& y = call.outputs[0];
  std::vector<double> all(static_cast<std::size_t>(y.size()));
  for (int64_t b = 0; b < bands.bins; ++b) {
    const int64_t low = bands.edges[b], top = bands.edges[b + 1], high = bands.edges[b + 2];
    const auto set = [&](int64_t row, double value) {
      if (row < bands.rows) all[row * bands.bins + b] = value;
    };
    if (low == top) set(top, 1);
    for (int64_t i = low; i <= top && low < top; ++i)
      set(i, static_cast<double>(i - low) / static_cast<double>(top - low));
    for (int64_t i = top; i < high; ++i)
      set(i, static_cast<double>(high - i) / static_cast<double>(high - top));
  }
  store(y, 0, y.size(), all.data());
}

int64_t det_grid(const KernelCall& call) { return call.outputs[0].size(); }

// By elimination with the largest pivot.
void det_tile(const KernelCall& call, int64_t tile) {
  const TensorView& x = call.inputs[0];
  const int64_t n = x.dims[x.rank - 1];
  std::vector<double> m(static_cast<std::size_t>(n * n));
  load(x, tile * n * n, n * n, m.data());
  double det = 1;
  for (int64_t k = 0; k < n && det != 0; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i)
      if (std::fabs(m[i * n + k]) > std::fabs(m[pivot * n + k])) pivot = i;
    if (pivot != k) {
      std::swap_ranges(&m[pivot * n], &m[pivot * n] + n, &m[k * n]);
      det = -det;
    }
    det *= m[k * n + k];
    for (int64_t i = k + 1; i < n && m[k * n + k] != 0; ++i) {
      const double factor = m[i * n + k] / m[k * n + k];
      for (int64_t j = k; j < n; ++j) m[i * n + j] -= factor * m[k * n + j];
    }
  }
  store_one<double>(call.outputs[0], tile, det);
}

}  // namespace

void register_signal(std::vector<Kernel>& into) {
  into.push_back({Op::kDft, by_rule, dft_grid, dft_tile});
  into.push_back({Op::kMelWeightMatrix, mel_shapes, grid_one, mel_tile});
  into.push_back({Op::kDet, by_rule, det_grid, det_tile});
}

}  // namespace ark::kernels
