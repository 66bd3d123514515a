// The loops behind fold.hpp, compiled once per kind of instructions: fold_baseline.cpp, fold_avx2.cpp and
// fold_avx512.cpp name their table and include this file.
//
// Everything here is in an unnamed namespace and nothing of the standard library but memcpy is called. A function whose
// name other files share could be kept by the linker in its AVX-512 form and run on a CPU without.
//
// A loop walks all arrays together, a vector of each at a time, and writes a result only after it has read all operands
// of it: so a destination may be a source. What does not fill a vector goes through the same vector code, padded with
// zeros: so the bits of an element never depend on where in the array it stands.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "fold_table.hpp"

#define TUTTI_INLINE __attribute__((always_inline)) inline
#define TUTTI_OUT_OF_LINE __attribute__((noinline))

namespace tutti::detail {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t UnsignedInts __attribute__((vector_size(kVectorBytes)));
typedef std::int64_t Longs __attribute__((vector_size(kVectorBytes)));
typedef std::uint64_t UnsignedLongs __attribute__((vector_size(kVectorBytes)));
// As many as there are Floats in a vector.
typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));

// The 16-bit elements of a vector, widened: those in the lower and those in the upper half of each 32 bits. Taken apart
// and put together this way no element ever changes its lane, which is what costs.
struct FloatPair {
  Floats lower;
  Floats upper;
};

TUTTI_INLINE Floats quiet_nan(Floats) { return reinterpret_cast<Floats>(Ints{} + 0x7fc00000); }
TUTTI_INLINE Doubles quiet_nan(Doubles) { return reinterpret_cast<Doubles>(Longs{} + 0x7ff8000000000000); }

// NaN becomes the one quiet NaN.
template <typename V>
TUTTI_INLINE V quiet(V v) {
  return v == v ? v : quiet_nan(v);
}
TUTTI_INLINE Ints quiet(Ints v) { return v; }
TUTTI_INLINE Longs quiet(Longs v) { return v; }

// The quiet NaN if an operand is a NaN, and the result of the two otherwise.
template <typename V>
TUTTI_INLINE V quiet_unless_ordered(V lower, V upper, V result) {
  return ((lower == lower) & (upper == upper)) ? result : quiet_nan(result);
}
TUTTI_INLINE Ints quiet_unless_ordered(Ints, Ints, Ints result) { return result; }
TUTTI_INLINE Longs quiet_unless_ordered(Longs, Longs, Longs result) { return result; }

// The element types. `Packed` is a vector as it lies in memory, `Vector` what is computed with, `Scalar` an element of
// that. What is packed holds no NaN but the quiet one.

template <typename T, typename V>
struct Plain {
  using Element = T;
  using Packed = V;
  using Vector = V;
  using Scalar = T;

  static TUTTI_INLINE Vector unpack(Packed packed) { return packed; }
  static TUTTI_INLINE Packed pack(Vector vector) { return vector; }
};

using Float32 = Plain<float, Floats>;
using Float64 = Plain<double, Doubles>;
using Int32 = Plain<std::int32_t, Ints>;
using Int64 = Plain<std::int64_t, Longs>;

struct BFloat16 {
  using Element = std::uint16_t;
  using Packed = UnsignedInts;
  using Vector = FloatPair;
  using Scalar = float;

  static TUTTI_INLINE Vector unpack(Packed packed) {
    return {reinterpret_cast<Floats>(packed << 16), reinterpret_cast<Floats>(packed & 0xffff0000)};
  }
  static TUTTI_INLINE Packed pack(Vector vector) {
    return (rounded(vector.lower) >> 16) | (rounded(vector.upper) & 0xffff0000);
  }

 private:
  // The upper half of the bits is the result. (The instruction of AVX512_BF16 flushes subnormals.)
  static TUTTI_INLINE UnsignedInts rounded(Floats value) {
    const UnsignedInts bits = reinterpret_cast<UnsignedInts>(value);
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

#if defined(__AVX512F__)

struct Float16 {
  using Element = std::uint16_t;
  using Packed = Halves;
  using Vector = Floats;
  using Scalar = float;

  // Masked, if with all lanes: GCC 12 takes the plain ones for uses of an uninitialised variable.
  static TUTTI_INLINE Vector unpack(Packed packed) {
    return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(packed));
  }
  static TUTTI_INLINE Packed pack(Vector vector) {
    return reinterpret_cast<Packed>(_mm512_maskz_cvtps_ph(0xffff, vector, _MM_FROUND_TO_NEAREST_INT));
  }
};

#elif defined(__F16C__)

struct Float16 {
  using Element = std::uint16_t;
  using Packed = Halves;
  using Vector = Floats;
  using Scalar = float;

  static TUTTI_INLINE Vector unpack(Packed packed) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(packed)); }
  static TUTTI_INLINE Packed pack(Vector vector) {
    return reinterpret_cast<Packed>(_mm256_cvtps_ph(vector, _MM_FROUND_TO_NEAREST_INT));
  }
};

#else

// The arithmetic of half.hpp, on vectors.
struct Float16 {
  using Element = std::uint16_t;
  using Packed = UnsignedInts;
  using Vector = FloatPair;
  using Scalar = float;

  static TUTTI_INLINE Vector unpack(Packed packed) {
    return {widened(reinterpret_cast<Ints>(packed & 0xffff)), widened(reinterpret_cast<Ints>(packed >> 16))};
  }
  static TUTTI_INLINE Packed pack(Vector vector) {
    return reinterpret_cast<Packed>(narrowed(vector.lower) | (narrowed(vector.upper) << 16));
  }

 private:
  static TUTTI_INLINE Floats widened(Ints half) {
    const Ints magnitude = half & 0x7fff;
    const Ints normal = (magnitude << 13) + (112 << 23);
    const Ints infinite_or_nan = normal + (112 << 23);
    // Read as a normal number of the smallest exponent, a subnormal one is too large by 2^-14 and otherwise exact.
    const Floats excess = reinterpret_cast<Floats>(Ints{} + (113 << 23));
    const Ints subnormal = reinterpret_cast<Ints>(reinterpret_cast<Floats>(normal + (1 << 23)) - excess);
    const Ints value = magnitude >= 0x7c00 ? infinite_or_nan : magnitude < 0x0400 ? subnormal : normal;
    return reinterpret_cast<Floats>(value | ((half & 0x8000) << 16));
  }

  static TUTTI_INLINE Ints narrowed(Floats value) {
    const Ints bits = reinterpret_cast<Ints>(value);
    const Ints magnitude = bits & 0x7fffffff;
    const Ints normal = (magnitude - 0x38000000 + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
    // Next to 0.5 the float adder rounds at 2^-24, the last bit of a subnormal half.
    const Floats half = Floats{} + 0.5f;
    const Ints subnormal = reinterpret_cast<Ints>(reinterpret_cast<Floats>(magnitude) + half) - 0x3f000000;
    const Ints infinite_or_nan = magnitude > 0x7f800000 ? Ints{} + 0x7e00 : Ints{} + 0x7c00;
    const Ints result = magnitude >= 0x477ff000 ? infinite_or_nan : magnitude < 0x38800000 ? subnormal : normal;
    return result | ((bits >> 16) & 0x8000);
  }
};

#endif

template <typename Type>
constexpr std::size_t kLanes = sizeof(typename Type::Packed) / sizeof(typename Type::Element);

// The operations. `combine` joins two operands, of which `alone` makes one of a source; `finish` makes the result of
// what is left in the end.

struct Sum {
  template <typename V>
  TUTTI_INLINE V alone(V v) const {
    return v;
  }
  template <typename V>
  TUTTI_INLINE V combine(V lower, V upper) const {
    return lower + upper;
  }
  TUTTI_INLINE Ints combine(Ints lower, Ints upper) const {  // the signed sum must not overflow
    return reinterpret_cast<Ints>(reinterpret_cast<UnsignedInts>(lower) + reinterpret_cast<UnsignedInts>(upper));
  }
  TUTTI_INLINE Longs combine(Longs lower, Longs upper) const {
    return reinterpret_cast<Longs>(reinterpret_cast<UnsignedLongs>(lower) + reinterpret_cast<UnsignedLongs>(upper));
  }
  template <typename V>
  TUTTI_INLINE V finish(V v) const {
    return quiet(v);
  }
};

template <typename Scalar>
struct Quotient : Sum {
  Scalar divisor;

  template <typename V>
  TUTTI_INLINE V finish(V v) const {
    return quiet(v / divisor);
  }
};

// Where the divisor is a power of two, the quotient's bits in a fraction of its time: the reciprocal is exact, so both
// round the same number once.
template <typename Scalar>
struct Product : Sum {
  Scalar reciprocal;

  template <typename V>
  TUTTI_INLINE V finish(V v) const {
    return quiet(v * reciprocal);
  }
};

// Min and Max take the lower operand on a tie. No comparison holds for a NaN, so it has to be asked for; that makes it
// quiet, and nothing is left to finish.
template <typename Better>
struct Best {
  template <typename V>
  TUTTI_INLINE V alone(V v) const {
    return quiet(v);
  }
  template <typename V>
  TUTTI_INLINE V combine(V lower, V upper) const {
    return quiet_unless_ordered(lower, upper, Better::of(lower, upper));
  }
  template <typename V>
  TUTTI_INLINE V finish(V v) const {
    return v;
  }
};

struct Smaller {
  template <typename V>
  static TUTTI_INLINE V of(V lower, V upper) {
    return upper < lower ? upper : lower;
  }
};

struct Larger {
  template <typename V>
  static TUTTI_INLINE V of(V lower, V upper) {
    return upper > lower ? upper : lower;
  }
};

using Min = Best<Smaller>;
using Max = Best<Larger>;

template <typename Op, typename V>
TUTTI_INLINE V alone(const Op& op, V v) {
  return op.alone(v);
}
template <typename Op>
TUTTI_INLINE FloatPair alone(const Op& op, FloatPair pair) {
  return {op.alone(pair.lower), op.alone(pair.upper)};
}
template <typename Op, typename V>
TUTTI_INLINE V combine(const Op& op, V lower, V upper) {
  return op.combine(lower, upper);
}
template <typename Op>
TUTTI_INLINE FloatPair combine(const Op& op, FloatPair lower, FloatPair upper) {
  return {op.combine(lower.lower, upper.lower), op.combine(lower.upper, upper.upper)};
}
template <typename Op, typename V>
TUTTI_INLINE V finish(const Op& op, V v) {
  return op.finish(v);
}
template <typename Op>
TUTTI_INLINE FloatPair finish(const Op& op, FloatPair pair) {
  return {op.finish(pair.lower), op.finish(pair.upper)};
}

// How many elements a step moves: a whole vector, or fewer at either end of an array.
struct Whole {};
struct Part {
  std::size_t count;
};

// Memory of any alignment, read and written as vectors. (GCC 12 makes two 64-bit moves of a __builtin_memcpy of 16
// bytes.)
template <typename Packed>
struct Memory {
  typedef Packed Anywhere __attribute__((aligned(1), may_alias));
};

template <typename Type>
TUTTI_INLINE typename Type::Vector load(const typename Type::Element* from, Whole) {
  return Type::unpack(*reinterpret_cast<const typename Memory<typename Type::Packed>::Anywhere*>(from));
}

// The parts are out of line: there are hundreds of loops, and their ends need not be fast.
template <typename Type>
TUTTI_OUT_OF_LINE typename Type::Vector load(const typename Type::Element* from, Part part) {
  typename Type::Packed packed{};
  __builtin_memcpy(&packed, from, part.count * sizeof *from);
  return Type::unpack(packed);
}

template <typename Element, typename Packed>
TUTTI_INLINE void store(Element* to, Packed packed, Whole) {
  *reinterpret_cast<typename Memory<Packed>::Anywhere*>(to) = packed;
}

template <typename Element, typename Packed>
TUTTI_OUT_OF_LINE void store(Element* to, Packed packed, Part part) {
  __builtin_memcpy(to, &packed, part.count * sizeof *to);
}

// Up to four sources, whose tree fits into registers.
template <typename Type, std::size_t Count>
struct Sources {
  using Element = typename Type::Element;
  using Vector = typename Type::Vector;
  const Element* first[Count];

  explicit TUTTI_INLINE Sources(const void* const* sources) {
    for (std::size_t i = 0; i < Count; ++i) first[i] = static_cast<const Element*>(sources[i]);
  }

  template <typename Op, typename Extent>
  TUTTI_INLINE Vector folded(Op op, std::size_t at, Extent extent) const {
    static_assert(Count >= 1 && Count <= 4);
    Vector result = load<Type>(first[0] + at, extent);
    if constexpr (Count == 1) result = alone(op, result);
    if constexpr (Count >= 2) result = combine(op, result, load<Type>(first[1] + at, extent));
    if constexpr (Count == 3) result = combine(op, result, load<Type>(first[2] + at, extent));
    if constexpr (Count == 4) {
      const Vector lower = load<Type>(first[2] + at, extent);
      result = combine(op, result, combine(op, lower, load<Type>(first[3] + at, extent)));
    }
    return result;
  }
};

template <typename Type, std::size_t Count>
struct Destinations {
  using Element = typename Type::Element;
  Element* first[Count];

  explicit TUTTI_INLINE Destinations(void* const* destinations) {
    for (std::size_t i = 0; i < Count; ++i) first[i] = static_cast<Element*>(destinations[i]);
  }

  template <typename Extent>
  TUTTI_INLINE void write(typename Type::Packed packed, std::size_t at, Extent extent) const {
    static_assert(Count >= 1 && Count <= 4);
    store(first[0] + at, packed, extent);
    if constexpr (Count >= 2) store(first[1] + at, packed, extent);
    if constexpr (Count >= 3) store(first[2] + at, packed, extent);
    if constexpr (Count >= 4) store(first[3] + at, packed, extent);
  }
};

// Arrays usually lie alike relative to the cache lines. In a long one it pays to begin with as many elements as bring
// the rest to where no vector straddles two lines.
template <typename Type>
std::size_t elements_before_line(const typename Type::Element* array, std::size_t length) {
  constexpr std::size_t kPackedBytes = sizeof(typename Type::Packed);
  if (length < 64 * kLanes<Type>) return 0;
  return (0 - reinterpret_cast<std::uintptr_t>(array)) % kPackedBytes / sizeof *array;
}

// One pass, everything in registers.
template <typename Type, std::size_t SourceCount, std::size_t DestinationCount, typename Op>
TUTTI_OUT_OF_LINE void fold_in_registers(const FoldArguments& arguments, const Op op) {
  constexpr std::size_t kStep = kLanes<Type>;
  const Sources<Type, SourceCount> sources(arguments.sources);
  const Destinations<Type, DestinationCount> destinations(arguments.destinations);
  const std::size_t length = arguments.length;
  const auto result = [&](std::size_t at, auto extent) __attribute__((always_inline)) {
    return Type::pack(finish(op, sources.folded(op, at, extent)));
  };

  std::size_t at = elements_before_line<Type>(destinations.first[0], length);
  if (at != 0) destinations.write(result(0, Part{at}), 0, Part{at});
  // Several vectors are read before any is written: where the addresses of a read and of a write just before agree in
  // their last 12 bits, the CPU takes one for the other and waits. (With pairs the computing takes longer than that.)
  constexpr std::size_t kTogether = sizeof(typename Type::Vector) == kVectorBytes ? 4 : 1;
  for (; length - at >= kTogether * kStep; at += kTogether * kStep) {
    typename Type::Packed results[kTogether];
    for (std::size_t i = 0; i < kTogether; ++i) results[i] = result(at + i * kStep, Whole{});
    for (std::size_t d = 0; d < DestinationCount; ++d)
      for (std::size_t i = 0; i < kTogether; ++i) store(destinations.first[d] + at + i * kStep, results[i], Whole{});
  }
  for (; length - at >= kStep; at += kStep) destinations.write(result(at, Whole{}), at, Whole{});
  if (at < length) destinations.write(result(at, Part{length - at}), at, Part{length - at});
}

// Any number of sources and destinations: a block at a time goes through the whole tree, so that each array is read and
// written once while its part of the block is in the cache. Unrounded partial results wait on the stack.
template <typename Type, typename Op>
class BlockFold {
 public:
  BlockFold(const FoldArguments& arguments, const Op& op) : arguments_(arguments), op_(op) {}

  void run() {
    // All arrays' parts of a block stay in the second-level cache while it is worked on.
    constexpr std::size_t kSecondLevelBytes = 256 * 1024;
    const std::size_t arrays = arguments_.source_count + arguments_.destination_count;
    row_ = kSecondLevelBytes / (arrays * sizeof(Vector));
    if (row_ < kShortestRow) row_ = kShortestRow;
    if (row_ > kLongestRow) row_ = kLongestRow;
    const std::size_t block = row_ * kLanes<Type>;
    const std::size_t length = arguments_.length;
    count_ = elements_before_line<Type>(static_cast<const Element*>(arguments_.destinations[0]), length);
    if (count_ == 0) count_ = block < length ? block : length;
    while (at_ < length) {
      fold_block(arguments_.sources, arguments_.source_count, buffers_);
      write_block();
      at_ += count_;
      count_ = block < length - at_ ? block : length - at_;
    }
  }

 private:
  using Element = typename Type::Element;
  using Vector = typename Type::Vector;

  // Longer rows leave the memory idle while they are written, shorter ones are all beginning and end.
  static constexpr std::size_t kLongestRow = 1024 / sizeof(Vector);
  static constexpr std::size_t kShortestRow = 4;
  // The tree has leaves of four sources, and an int counts the sources.
  static constexpr std::size_t kRows = 30;

  static std::size_t largest_power_of_two_below(std::size_t count) {
    std::size_t power = 1;
    while (power < count - power) power *= 2;
    return power;
  }

  // Leaves the block's fold over `count` sources in the first row of `buffer`, using those after it.
  TUTTI_OUT_OF_LINE void fold_block(const void* const* sources, std::size_t count, Vector* buffer) {
    switch (count) {
      case 1: return fold_leaf<1>(sources, buffer);
      case 2: return fold_leaf<2>(sources, buffer);
      case 3: return fold_leaf<3>(sources, buffer);
      case 4: return fold_leaf<4>(sources, buffer);
      default: break;
    }
    const std::size_t lower = largest_power_of_two_below(count);
    Vector* upper_buffer = buffer + row_;
    fold_block(sources, lower, buffer);
    fold_block(sources + lower, count - lower, upper_buffer);
    const Op op = op_;
    const std::size_t vectors = (count_ + kLanes<Type> - 1) / kLanes<Type>;
    for (std::size_t i = 0; i < vectors; ++i) buffer[i] = combine(op, buffer[i], upper_buffer[i]);
  }

  template <std::size_t Count>
  void fold_leaf(const void* const* pointers, Vector* buffer) {
    const Sources<Type, Count> sources(pointers);
    const Op op = op_;
    const std::size_t end = at_ + count_;
    std::size_t at = at_;
    for (; end - at >= kLanes<Type>; at += kLanes<Type>) *buffer++ = sources.folded(op, at, Whole{});
    if (at < end) *buffer = sources.folded(op, at, Part{end - at});
  }

  // One destination after the other: arrays that lie alike relative to the pages push each other out of the cache when
  // they are written in turns.
  void write_block() {
    const Destinations<Type, 1> first(arguments_.destinations);
    const Op op = op_;
    const Vector* buffer = buffers_;
    const std::size_t end = at_ + count_;
    std::size_t at = at_;
    for (; end - at >= kLanes<Type>; at += kLanes<Type>) first.write(Type::pack(finish(op, *buffer++)), at, Whole{});
    if (at < end) first.write(Type::pack(finish(op, *buffer)), at, Part{end - at});
    for (std::size_t i = 1; i < arguments_.destination_count; ++i) {
      Element* other = static_cast<Element*>(arguments_.destinations[i]);
      if (other != first.first[0]) __builtin_memcpy(other + at_, first.first[0] + at_, count_ * sizeof(Element));
    }
  }

  const FoldArguments& arguments_;
  const Op op_;
  std::size_t row_ = 0;    // vectors in a row of the buffers
  std::size_t at_ = 0;     // the block's first element
  std::size_t count_ = 0;  // its elements
  Vector buffers_[kRows * kLongestRow];
};

// Out of line, so that nobody else pays for the buffers on the stack.
template <typename Type, typename Op>
TUTTI_OUT_OF_LINE void fold_in_blocks(const FoldArguments& arguments, const Op& op) {
  BlockFold<Type, Op>(arguments, op).run();
}

template <typename Type, typename Op>
void fold_with(const FoldArguments& arguments, const Op& op) {
  if (arguments.destination_count == 1) {
    switch (arguments.source_count) {
      case 1: return fold_in_registers<Type, 1, 1>(arguments, op);
      case 2: return fold_in_registers<Type, 2, 1>(arguments, op);
      case 3: return fold_in_registers<Type, 3, 1>(arguments, op);
      case 4: return fold_in_registers<Type, 4, 1>(arguments, op);
      default: break;
    }
  } else if (arguments.destination_count == arguments.source_count) {
    switch (arguments.source_count) {
      case 2: return fold_in_registers<Type, 2, 2>(arguments, op);
      case 3: return fold_in_registers<Type, 3, 3>(arguments, op);
      case 4: return fold_in_registers<Type, 4, 4>(arguments, op);
      default: break;
    }
  }
  fold_in_blocks<Type>(arguments, op);
}

template <typename Type>
void sum(const FoldArguments& arguments) {
  fold_with<Type>(arguments, Sum{});
}

template <typename Type>
void mean(const FoldArguments& arguments) {
  using Scalar = typename Type::Scalar;
  const auto divisor = static_cast<Scalar>(arguments.divisor);
  const bool power_of_two = (arguments.divisor & (arguments.divisor - 1)) == 0;
  if (power_of_two)
    fold_with<Type>(arguments, Product<Scalar>{{}, 1 / divisor});
  else
    fold_with<Type>(arguments, Quotient<Scalar>{{}, divisor});
}

template <typename Type>
void min(const FoldArguments& arguments) {
  fold_with<Type>(arguments, Min{});
}

template <typename Type>
void max(const FoldArguments& arguments) {
  fold_with<Type>(arguments, Max{});
}

template <typename Type>
constexpr FoldLoops kFloatingLoops = {.sum = sum<Type>, .mean = mean<Type>, .min = min<Type>, .max = max<Type>};
template <typename Type>
constexpr FoldLoops kIntegerLoops = {.sum = sum<Type>, .min = min<Type>, .max = max<Type>};

}  // namespace

constinit const FoldTable TUTTI_FOLD_TABLE = {.float32 = kFloatingLoops<Float32>,
                                              .float64 = kFloatingLoops<Float64>,
                                              .float16 = kFloatingLoops<Float16>,
                                              .bfloat16 = kFloatingLoops<BFloat16>,
                                              .int32 = kIntegerLoops<Int32>,
                                              .int64 = kIntegerLoops<Int64>};

}  // namespace tutti::detail

#undef TUTTI_INLINE
#undef TUTTI_OUT_OF_LINE
