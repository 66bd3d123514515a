#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <tutti/kernels/fold.hpp>

namespace tutti {
namespace {

// A floating type by its bits, as signed integers: the sign, and a magnitude that grows with the value and is above
// infinity's for a NaN. In vectors that every CPU has; a condition is all bits or none.
template <typename W, W infinity>
class WrappedFold {
 public:
  using Word = W;
  typedef Word Words __attribute__((vector_size(16)));

  WrappedFold(ReduceOp op, WrapPhase phase)
      : reversed_(all_if(op == ReduceOp::max)),
        entering_(all_if(phase == WrapPhase::enter)),
        leaving_(all_if(phase == WrapPhase::leave)) {}

  Words operator()(Words own, Words incoming) const {
    const Words is_mark = (magnitude(incoming) == kMark) & ~entering_;
    const Words from_above = entering_ | is_mark;
    const Words other = incoming & ~(is_mark & kMagnitude);  // a mark has its zero's sign
    const Words own_order = order(own);
    const Words other_order = order(other);
    const Words own_wins = (own_order < other_order) | (from_above & (own_order == other_order));
    const Words marked = from_above & (other_order == 0) & ~leaving_;
    const Words best = (own_wins & own) | (~own_wins & (other | (marked & kMark)));
    const Words is_nan = (magnitude(own) > infinity) | (magnitude(other) > infinity);
    return (is_nan & kQuietNan) | (~is_nan & best);
  }

 private:
  static constexpr Word kMagnitude = std::numeric_limits<Word>::max();
  static constexpr Word kTopFractionBit = (infinity >> 1) & ~infinity;
  static constexpr Word kQuietNan = infinity | kTopFractionBit;
  static constexpr Word kMark = kQuietNan | 1;

  static Words all_if(bool condition) { return Words{} - static_cast<Word>(condition); }
  static Words magnitude(Words words) { return words & kMagnitude; }

  // What is better is less: the order of the values for Min, the reverse for Max. Both zeros are 0.
  Words order(Words words) const {
    const Words negative = (words < 0) ^ reversed_;
    return (magnitude(words) ^ negative) - negative;
  }

  Words reversed_;
  Words entering_;
  Words leaving_;
};

template <typename Fold>
void fold_words(const Fold& fold_vector, void* destination, const void* own, const void* incoming, std::size_t length) {
  using Words = typename Fold::Words;
  typedef Words Anywhere __attribute__((aligned(1), may_alias));
  auto* to = static_cast<std::byte*>(destination);
  const auto* from_own = static_cast<const std::byte*>(own);
  const auto* from_incoming = static_cast<const std::byte*>(incoming);
  std::size_t left = length * sizeof(typename Fold::Word);
  for (; left >= sizeof(Words); left -= sizeof(Words)) {
    *reinterpret_cast<Anywhere*>(to) =
        fold_vector(*reinterpret_cast<const Anywhere*>(from_own), *reinterpret_cast<const Anywhere*>(from_incoming));
    to += sizeof(Words);
    from_own += sizeof(Words);
    from_incoming += sizeof(Words);
  }
  if (left == 0) return;
  Words last_own{}, last_incoming{};
  std::memcpy(&last_own, from_own, left);
  std::memcpy(&last_incoming, from_incoming, left);
  const Words last = fold_vector(last_own, last_incoming);
  std::memcpy(to, &last, left);
}

using Float32 = WrappedFold<std::int32_t, 0x7f800000>;
using Float64 = WrappedFold<std::int64_t, 0x7ff0000000000000>;
using Float16 = WrappedFold<std::int16_t, 0x7c00>;
using BFloat16 = WrappedFold<std::int16_t, 0x7f80>;

}  // namespace

void fold_wrapped(ReduceOp op, DataType type, void* destination, const void* own, const void* incoming,
                  std::size_t length, WrapPhase phase) {
  if (op == ReduceOp::sum || op == ReduceOp::mean) return fold(op, type, destination, own, incoming, length);
  switch (type) {
    case DataType::float32: return fold_words(Float32(op, phase), destination, own, incoming, length);
    case DataType::float64: return fold_words(Float64(op, phase), destination, own, incoming, length);
    case DataType::float16: return fold_words(Float16(op, phase), destination, own, incoming, length);
    case DataType::bfloat16: return fold_words(BFloat16(op, phase), destination, own, incoming, length);
    case DataType::int32:
    case DataType::int64: return fold(op, type, destination, own, incoming, length);
  }
}

}  // namespace tutti
