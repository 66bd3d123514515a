#include <tutti/base/checksum.hpp>

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace tutti {
namespace {

// XXH64's: odd numbers whose bits look random.
constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87u;
constexpr std::uint64_t kPrime2 = 0xc2b2ae3d27d4eb4fu;
constexpr std::uint64_t kPrime3 = 0x165667b19e3779f9u;
constexpr std::uint64_t kPrime4 = 0x85ebca77c2b2ae63u;
constexpr std::uint64_t kPrime5 = 0x27d4eb2f165667c5u;

// The first byte is the lowest, on every machine.
std::uint64_t load_8(const std::byte* bytes) {
  std::uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  return std::endian::native == std::endian::little ? value : __builtin_bswap64(value);
}

std::uint64_t load_4(const std::byte* bytes) {
  std::uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return std::endian::native == std::endian::little ? value : __builtin_bswap32(value);
}

std::uint64_t mixed(std::uint64_t lane, std::uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

void mix_stripe(std::array<std::uint64_t, 4>& lanes, const std::byte* stripe) {
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mixed(lanes[i], load_8(stripe + 8 * i));
}

}  // namespace

Checksum::Checksum() : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

void Checksum::add(std::span<const std::byte> bytes) {
  const std::size_t waiting = length_ % kStripe;
  length_ += bytes.size();
  if (waiting > 0) {
    const std::size_t taken = std::min(bytes.size(), kStripe - waiting);
    std::copy_n(bytes.begin(), taken, rest_.begin() + waiting);
    bytes = bytes.subspan(taken);
    if (waiting + taken < kStripe) return;
    mix_stripe(lanes_, rest_.data());
  }
  std::array<std::uint64_t, 4> lanes = lanes_;  // in registers
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) mix_stripe(lanes, bytes.data());
  lanes_ = lanes;
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

std::uint64_t Checksum::value() const {
  std::uint64_t sum = kPrime5;
  if (length_ >= kStripe) {
    sum = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) sum = (sum ^ mixed(0, lane)) * kPrime1 + kPrime4;
  }
  sum += length_;
  const std::byte* next = rest_.data();
  const std::byte* const end = next + length_ % kStripe;
  for (; end - next >= 8; next += 8) sum = std::rotl(sum ^ mixed(0, load_8(next)), 27) * kPrime1 + kPrime4;
  for (; end - next >= 4; next += 4) sum = std::rotl(sum ^ (load_4(next) * kPrime1), 23) * kPrime2 + kPrime3;
  for (; end != next; ++next) sum = std::rotl(sum ^ (std::to_integer<std::uint64_t>(*next) * kPrime5), 11) * kPrime1;
  sum = (sum ^ (sum >> 33)) * kPrime2;
  sum = (sum ^ (sum >> 29)) * kPrime3;
  return sum ^ (sum >> 32);
}

std::string to_hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace tutti
