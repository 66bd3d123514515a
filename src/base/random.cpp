// Built with -ffp-contract=off (CMakeLists.txt).
#include <tutti/base/random.hpp>

#include <bit>
#include <cfloat>
#include <cmath>

#include <tutti/base/error.hpp>

// On 32-bit x86, for example, -msse2 -mfpmath=sse gives that.
static_assert(FLT_EVAL_METHOD == 0, "random numbers are the same everywhere only where double is not widened");

namespace tutti {
namespace detail {

PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  constexpr std::uint64_t kMultiplier0 = 0xd2511f53;
  constexpr std::uint64_t kMultiplier1 = 0xcd9e8d57;
  constexpr std::uint32_t kWeyl0 = 0x9e3779b9;
  constexpr std::uint32_t kWeyl1 = 0xbb67ae85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

}  // namespace detail

namespace {

std::array<std::uint32_t, 2> halves(std::uint64_t value) {
  return {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32)};
}

// The natural logarithm of a normal number above 0, of + - * / alone: those round the same everywhere, and the
// standard library's logarithm does not. With x = m 2^e and t = (m-1)/(m+1), ln m = 2 (t + t^3/3 + t^5/5 + ...).
double portable_log(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1022;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3fe0000000000000u);  // in [1/2, 1)
  if (m < kSqrtHalf) {
    m *= 2;
    --exponent;
  }
  const double t = (m - 1) / (m + 1);  // |t| < 0.172, so 11 terms reach beyond the last bit
  double sum = 0;
  for (int n = 21; n >= 3; n -= 2) sum = (sum + 1.0 / n) * (t * t);
  return exponent * kLn2 + 2 * (t + t * sum);
}

}  // namespace

// The list is folded into 128 bits by Davies and Meyer's construction, with Philox as the cipher: each number is the
// key that enciphers what there is so far. The length goes first, so that {1} and {1, 0} part at once.
RandomStream::RandomStream(std::span<const std::uint64_t> list) {
  const auto length = halves(list.size());
  detail::PhiloxBlock folded = {length[0], length[1], 0x74757474, 0x69000000};  // "tutti": any constant would do
  for (const std::uint64_t number : list) {
    const detail::PhiloxBlock enciphered = detail::philox(folded, halves(number));
    for (std::size_t i = 0; i < folded.size(); ++i) folded[i] ^= enciphered[i];
  }
  key_ = {folded[0], folded[1]};
  upper_counter_ = {folded[2], folded[3]};
}

void RandomStream::load_block(std::uint64_t number) {
  const auto lower_counter = halves(number);
  block_ = detail::philox({lower_counter[0], lower_counter[1], upper_counter_[0], upper_counter_[1]}, key_);
  block_number_ = number;
}

std::uint64_t RandomStream::below(std::uint64_t n) {
  if (n == 0) throw UsageError("expected a number of choices of at least 1, found 0");
  // The first 2^64 mod n of the 2^64 values would make the smallest results likelier than the others.
  const std::uint64_t surplus = (0 - n) % n;
  std::uint64_t draw = (*this)();
  while (draw < surplus) draw = (*this)();
  return draw % n;
}

// Marsaglia's polar method. The second number it yields is thrown away: kept, it would be state besides the position.
double RandomStream::normal() {
  double u = 0;
  double square = 0;
  do {
    u = 2 * uniform() - 1;
    const double v = 2 * uniform() - 1;
    square = u * u + v * v;
  } while (square >= 1 || square == 0);
  return u * std::sqrt(-2 * portable_log(square) / square);
}

}  // namespace tutti
