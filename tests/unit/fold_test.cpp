#include <tutti/kernels/fold.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>

#include "support/instructions.hpp"
#include "support/sample.hpp"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using testing::kEveryWhereSanitized;
using testing::Sample;
using ::testing::ThrowsMessage;
using testing::with_all_instructions;

constexpr unsigned kSeed = 20'240'501;

// The element types as bit patterns.

template <typename T>
using Bits =
    std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

template <typename T>
constexpr bool kFloating = is_floating(data_type_of<T>);

template <typename T>
constexpr int kFractionBits = std::same_as<T, float>     ? 23
                              : std::same_as<T, double>  ? 52
                              : std::same_as<T, float16> ? 10
                                                         : 7;

template <typename T>
struct Format {
  static constexpr Bits<T> kSign = static_cast<Bits<T>>(Bits<T>{1} << (8 * sizeof(T) - 1));
  static constexpr Bits<T> kOneUlp = 1;
  static constexpr Bits<T> kSmallestNormal = static_cast<Bits<T>>(Bits<T>{1} << kFractionBits<T>);
  static constexpr Bits<T> kInfinity = static_cast<Bits<T>>((kSign - 1) & ~(kSmallestNormal - 1));
  static constexpr Bits<T> kQuietNan = static_cast<Bits<T>>(kInfinity | (kSmallestNormal >> 1));
  static constexpr Bits<T> kOne = static_cast<Bits<T>>((kInfinity >> 1) & ~(kSmallestNormal - 1));
};

static_assert(Format<float>::kOne == std::bit_cast<std::uint32_t>(1.0f));
static_assert(Format<float>::kQuietNan == 0x7fc00000 && Format<double>::kQuietNan == 0x7ff8000000000000);
static_assert(Format<float16>::kQuietNan == 0x7e00 && Format<bfloat16>::kQuietNan == 0x7fc0);

template <typename T>
T with_sign(Bits<T> bits, bool negative) {
  return std::bit_cast<T>(static_cast<Bits<T>>(negative ? bits | Format<T>::kSign : bits));
}

// The oracle: one element at a time, on the types of half.hpp, in the plainest words.

template <typename T>
auto widen(T value) {
  if constexpr (kFloating<T> && sizeof(T) == 2)
    return value.to_float();
  else
    return value;
}

template <typename T, typename Wide>
T narrow(Wide value) {
  if constexpr (kFloating<T>) {
    if (std::isnan(value)) return std::bit_cast<T>(Format<T>::kQuietNan);
  }
  if constexpr (kFloating<T> && sizeof(T) == 2)
    return T::from_float(value);
  else
    return value;
}

template <typename Wide>
Wide combine(ReduceOp op, Wide lower, Wide upper) {
  if (op == ReduceOp::sum || op == ReduceOp::mean) {
    if constexpr (std::integral<Wide>) {
      using Unsigned = std::make_unsigned_t<Wide>;
      return static_cast<Wide>(static_cast<Unsigned>(lower) + static_cast<Unsigned>(upper));
    } else {
      return lower + upper;
    }
  }
  if (lower != lower) return lower;
  if (upper != upper) return upper;
  return (op == ReduceOp::min ? upper < lower : upper > lower) ? upper : lower;
}

template <typename Wide>
Wide fold_tree(ReduceOp op, std::span<const Wide> values) {
  if (values.size() == 1) return values[0];
  const std::size_t split = std::bit_floor(values.size() - 1);
  return combine(op, fold_tree(op, values.first(split)), fold_tree(op, values.subspan(split)));
}

// An array that starts wherever an element may, between guards that nobody may touch.
template <typename T>
class Guarded {
 public:
  Guarded(std::size_t length, std::size_t shift)
      : before_(kGuard + shift),
        length_(length),
        elements_(before_ + length + kGuard, std::bit_cast<T>(static_cast<Bits<T>>(0x5a5a5a5a5a5a5a5a))) {}

  T* data() { return elements_.data() + before_; }
  const T* data() const { return elements_.data() + before_; }
  std::span<T> span() { return {data(), length_}; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }

  // The same bits, guards included; or where not.
  ::testing::AssertionResult equals(const Guarded& expected) const {
    if (std::memcmp(elements_.data(), expected.elements_.data(), elements_.size() * sizeof(T)) == 0)
      return ::testing::AssertionSuccess();
    std::size_t i = 0;
    while (bits(i) == expected.bits(i)) ++i;
    return ::testing::AssertionFailure() << fmt::format(
               "element {} is {:#x}, expected {:#x}",
               static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(before_), bits(i), expected.bits(i));
  }

 private:
  static constexpr std::size_t kGuard = 16;

  Bits<T> bits(std::size_t i) const { return std::bit_cast<Bits<T>>(elements_[i]); }

  std::size_t before_;
  std::size_t length_;
  std::vector<T> elements_;
};

// Where arithmetic has corners; one draw in `rareness` may be NaN, infinite or any bits at all.
template <typename T>
class Draw {
 public:
  Draw(unsigned seed, std::size_t rareness) : random_(seed), rareness_(rareness) {}

  T operator()() {
    const bool negative = random_() % 2 == 0;
    if constexpr (!kFloating<T>) {
      switch (random_() % 4) {
        case 0: return std::numeric_limits<T>::max();
        case 1: return std::numeric_limits<T>::min();
        case 2: return static_cast<T>(random_() % 7) - 3;
        default: return static_cast<T>(random_());
      }
    } else {
      using F = Format<T>;
      if (random_() % rareness_ == 0) {
        switch (random_() % 8) {
          case 0: return with_sign<T>(F::kQuietNan, negative);
          case 1: return with_sign<T>(F::kQuietNan | 1, negative);  // as fold_wrapped marks zeros
          case 2: return with_sign<T>(F::kInfinity | 1, negative);  // signalling
          case 3: return with_sign<T>(F::kSign - 1, negative);      // all fraction bits
          case 4:
          case 5: return with_sign<T>(F::kInfinity, negative);
          default: return std::bit_cast<T>(static_cast<Bits<T>>(random_()));
        }
      }
      switch (random_() % 8) {
        case 0:
        case 1: return with_sign<T>(0, negative);
        case 2: return with_sign<T>(F::kOneUlp, negative);
        case 3: return with_sign<T>(static_cast<Bits<T>>(random_() % F::kSmallestNormal), negative);
        case 4: return with_sign<T>(F::kSmallestNormal, negative);
        case 5: return with_sign<T>(F::kInfinity - 1, negative);
        case 6: return with_sign<T>(F::kOne, negative);
        default:  // near 1, where sums round
          return with_sign<T>(
              static_cast<Bits<T>>(F::kOne - 2 * F::kSmallestNormal + random_() % (4 * F::kSmallestNormal)), negative);
      }
    }
  }

  void fill(std::span<T> elements) {
    for (T& element : elements) element = (*this)();
  }

 private:
  std::mt19937_64 random_;
  std::size_t rareness_;
};

template <typename Body>
void for_all_ops_and_types(Body body) {
  for (DataType type : kAllDataTypes) {
    for (ReduceOp op : kAllReduceOps) {
      if (op == ReduceOp::mean && !is_floating(type)) continue;
      SCOPED_TRACE(fmt::format("{} of {}, seed {}", to_string(op), to_string(type), kSeed));
      dispatch(type, [&]<typename T>(std::type_identity<T> element) { body(op, element); });
    }
  }
}

std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all(71);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  for (std::size_t length : {255, 511, 1027, 4099, 20'011}) all.push_back(length);
  return all;
}

enum class Into { fresh, first, last, all_sources, reversed_sources, sources_and_fresh };
constexpr Into kAllInto[] = {
    Into::fresh, Into::first, Into::last, Into::all_sources, Into::reversed_sources, Into::sources_and_fresh};

// fold_all of `count` arrays, with every choice of destinations, against the oracle.
template <typename T>
void check_fold_all(ReduceOp op, std::size_t count, std::size_t length, std::span<const Into> choices) {
  std::mt19937_64 random(kSeed + length);
  Draw<T> draw(kSeed + static_cast<unsigned>(length), 4 * count);
  const bool alike = random() % 2 == 0;  // all arrays start at the same place of a cache line
  const std::size_t shift = random() % 16;
  std::vector<Guarded<T>> sources;
  for (std::size_t i = 0; i < count; ++i) {
    sources.emplace_back(length, alike ? shift : random() % 16);
    draw.fill(sources.back().span());
  }
  using Wide = decltype(widen(T{}));
  std::vector<T> expected(length);
  std::vector<Wide> column(count);
  for (std::size_t e = 0; e < length; ++e) {
    for (std::size_t i = 0; i < count; ++i) column[i] = widen(sources[i][e]);
    Wide result = fold_tree<Wide>(op, column);
    if (op == ReduceOp::mean) result = result / static_cast<Wide>(count);
    expected[e] = narrow<T>(result);
  }
  with_all_instructions([&] {
    for (Into into : choices) {
      SCOPED_TRACE(fmt::format("{} sources of {} elements, destinations {}", count, length, static_cast<int>(into)));
      std::vector<Guarded<T>> arrays = sources;
      arrays.emplace_back(length, random() % 16);
      std::vector<Guarded<T>> results = arrays;
      std::vector<std::size_t> written;
      if (into == Into::fresh || into == Into::sources_and_fresh) written.push_back(count);
      if (into == Into::first) written.push_back(0);
      if (into == Into::last) written.push_back(count - 1);
      if (into >= Into::all_sources)
        for (std::size_t i = 0; i < count; ++i) written.push_back(into == Into::reversed_sources ? count - 1 - i : i);
      std::vector<const void*> from;
      for (std::size_t i = 0; i < count; ++i) from.push_back(arrays[i].data());
      std::vector<void*> to;
      for (std::size_t i : written) {
        to.push_back(arrays[i].data());
        for (std::size_t e = 0; e < length; ++e) results[i][e] = expected[e];
      }
      fold_all(op, data_type_of<T>, from, to, length);
      for (std::size_t i = 0; i < arrays.size(); ++i) ASSERT_TRUE(arrays[i].equals(results[i])) << "in array " << i;
    }
  });
}

TEST(Fold, GivesTheOraclesBitsWithAllInstructions) {
  for_all_ops_and_types([]<typename T>(ReduceOp op, std::type_identity<T>) {
    for (std::size_t length : lengths()) {
      Draw<T> draw(kSeed, 4);
      Guarded<T> lower(length, length % 7), upper(length, length % 5);
      draw.fill(lower.span());
      draw.fill(upper.span());
      Guarded<T> expected_fresh(length, length % 3), expected_lower = lower, expected_upper = upper;
      for (std::size_t i = 0; i < length; ++i) {
        const T result = narrow<T>(combine(op, widen(lower[i]), widen(upper[i])));
        expected_fresh[i] = expected_lower[i] = expected_upper[i] = result;
      }
      with_all_instructions([&] {
        Guarded<T> fresh(length, length % 3), into_lower = lower, into_upper = upper;
        fold(op, data_type_of<T>, fresh.data(), lower.data(), upper.data(), length);
        fold(op, data_type_of<T>, into_lower.data(), into_lower.data(), upper.data(), length);
        fold(op, data_type_of<T>, into_upper.data(), lower.data(), into_upper.data(), length);
        ASSERT_TRUE(fresh.equals(expected_fresh));
        ASSERT_TRUE(into_lower.equals(expected_lower));
        ASSERT_TRUE(into_upper.equals(expected_upper));
      });
    }
  });
}

TEST(Fold, AcceptsOneArrayAsBothOperands) {
  with_all_instructions([] {
    std::vector<float> doubled(1000, 3);
    fold(ReduceOp::sum, DataType::float32, doubled.data(), doubled.data(), doubled.data(), doubled.size());
    EXPECT_EQ(doubled, std::vector<float>(1000, 6));
  });
}

TEST(FoldAll, GivesTheOraclesBitsForEveryLength) {
  Sample sample(kEveryWhereSanitized);
  for_all_ops_and_types([&]<typename T>(ReduceOp op, std::type_identity<T>) {
    for (std::size_t count = 1; count <= 5; ++count) {
      for (std::size_t length : lengths()) {
        if (sample.takes()) check_fold_all<T>(op, count, length, kAllInto);
      }
    }
  });
}

TEST(FoldAll, GivesTheOraclesBitsForEveryNumberOfSources) {
  Sample sample(kEveryWhereSanitized);
  for_all_ops_and_types([&]<typename T>(ReduceOp op, std::type_identity<T>) {
    for (std::size_t count = 1; count <= 35; ++count) {
      for (std::size_t length : {1, 33, 2067}) {
        if (sample.takes()) check_fold_all<T>(op, count, length, kAllInto);
      }
    }
  });
}

TEST(FoldAll, FoldsAThousandSources) {
  Sample sample(kEveryWhereSanitized);
  for_all_ops_and_types([&]<typename T>(ReduceOp op, std::type_identity<T>) {
    for (std::size_t count : {1000, 1024, 1025}) {
      if (sample.takes()) check_fold_all<T>(op, count, 149, std::vector{Into::fresh, Into::all_sources});
    }
  });
}

TEST(FoldAll, SplitsTheTreeAtTheLargestPowerOfTwo) {
  const std::vector<float> x = {1.1f, 1e8f, -1e8f, 0.7f, 1e7f, -5.1f, 9.9f};
  const auto sum = [&](std::size_t count) {
    std::vector<const void*> sources;
    for (std::size_t i = 0; i < count; ++i) sources.push_back(&x[i]);
    float result = 0;
    void* destination = &result;
    fold_all(ReduceOp::sum, DataType::float32, sources, std::span(&destination, 1), 1);
    return result;
  };
  with_all_instructions([&] {
    EXPECT_EQ(sum(3), (x[0] + x[1]) + x[2]);
    EXPECT_EQ(sum(4), (x[0] + x[1]) + (x[2] + x[3]));
    EXPECT_EQ(sum(5), ((x[0] + x[1]) + (x[2] + x[3])) + x[4]);
    EXPECT_EQ(sum(6), ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5]));
    EXPECT_EQ(sum(7), ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + x[6]));
  });
}

TEST(FoldAll, RoundsHalvesOnceAtTheEnd) {
  const float16 big = float16::from_float(2048), one = float16::from_float(1);
  const void* const sources[] = {&big, &one, &one};
  with_all_instructions([&] {
    float16 sum, mean, stepwise = big;
    void* into_sum = &sum;
    void* into_mean = &mean;
    fold_all(ReduceOp::sum, DataType::float16, sources, std::span(&into_sum, 1), 1);
    fold_all(ReduceOp::mean, DataType::float16, sources, std::span(&into_mean, 1), 1);
    fold(ReduceOp::sum, DataType::float16, &stepwise, &stepwise, &one, 1);
    fold(ReduceOp::sum, DataType::float16, &stepwise, &stepwise, &one, 1);
    EXPECT_EQ(sum.to_float(), 2050);
    EXPECT_EQ(mean, float16::from_float(2050.0f / 3));
    EXPECT_EQ(stepwise.to_float(), 2048) << "two calls round twice";
  });
}

TEST(FoldAll, KeepsAMeanOfHalvesWhoseSumOverflows) {
  const float16 largest{0x7bff};
  const void* const sources[] = {&largest, &largest};
  with_all_instructions([&] {
    float16 mean;
    void* destination = &mean;
    fold_all(ReduceOp::mean, DataType::float16, sources, std::span(&destination, 1), 1);
    EXPECT_EQ(mean, largest);
  });
}

TEST(FoldAll, WritesEveryHalfThatIsNoNanUnchanged) {
  const auto check = []<typename T>(std::type_identity<T>) {
    Guarded<T> all(65'536, 3), expected(65'536, 3);
    for (std::size_t i = 0; i < 65'536; ++i) {
      all[i] = T{static_cast<std::uint16_t>(i)};
      expected[i] = std::isnan(all[i].to_float()) ? std::bit_cast<T>(Format<T>::kQuietNan) : all[i];
    }
    with_all_instructions([&] {
      for (ReduceOp op : kAllReduceOps) {
        Guarded<T> copy = all;
        const void* source = copy.data();
        void* destination = copy.data();
        fold_all(op, data_type_of<T>, std::span(&source, 1), std::span(&destination, 1), 65'536);
        EXPECT_TRUE(copy.equals(expected)) << to_string(op);
      }
    });
  };
  check(std::type_identity<float16>{});
  check(std::type_identity<bfloat16>{});
}

TEST(FoldAll, AcceptsArraysGivenTwice) {
  with_all_instructions([] {
    for (std::size_t count : {2, 5}) {
      std::vector<float> array(1000, 3);
      const std::vector<const void*> sources(count, array.data());
      const std::vector<void*> destinations(count, array.data());
      fold_all(ReduceOp::sum, DataType::float32, sources, destinations, array.size());
      EXPECT_EQ(array, std::vector<float>(1000, 3 * static_cast<float>(count)));
    }
  });
}

TEST(FoldAll, TakesNullPointersToNothing) {
  const void* const sources[] = {nullptr, nullptr};
  void* const destinations[] = {nullptr, nullptr, nullptr};
  for_all_ops_and_types([&]<typename T>(ReduceOp op, std::type_identity<T>) {
    with_all_instructions([&] {
      fold_all(op, data_type_of<T>, sources, destinations, 0);
      fold_all(op, data_type_of<T>, sources, std::span(destinations).first(2), 0);
    });
  });
}

TEST(FoldAll, WithoutDestinationsWritesNothing) {
  const float one = 1;
  const void* source = &one;
  EXPECT_NO_THROW(fold_all(ReduceOp::sum, DataType::float32, std::span(&source, 1), {}, 1));
}

// Powers of two go by way of the reciprocal; subnormal quotients show whether both round alike.
TEST(Divide, GivesTheBitsOfATrueDivision) {
  std::vector<int> divisors = {100, 1000, 65'535, 16'777'217, std::numeric_limits<int>::max()};
  for (int divisor = 1; divisor <= 40; ++divisor) divisors.push_back(divisor);
  for (int shift = 6; shift <= 30; ++shift) divisors.push_back(1 << shift);
  for (DataType type : kAllDataTypes) {
    if (!is_floating(type)) continue;
    SCOPED_TRACE(to_string(type));
    dispatch(type, [&]<typename T>(std::type_identity<T>) {
      if constexpr (kFloating<T>) {
        constexpr std::size_t kLength = 5003;
        Guarded<T> array(kLength, 1);
        Draw<T>(kSeed, 8).fill(array.span());
        for (std::size_t i = 0; i < kLength / 2; ++i)  // small ones, of all bits
          array[i] =
              with_sign<T>(static_cast<Bits<T>>(i * 0x9e3779b97f4a7c15 % (8 * Format<T>::kSmallestNormal)), i % 2);
        for (int divisor : divisors) {
          using Wide = decltype(widen(T{}));
          Guarded<T> expected = array;
          for (T& element : expected.span()) element = narrow<T>(widen(element) / static_cast<Wide>(divisor));
          with_all_instructions([&] {
            Guarded<T> quotient = array;
            divide(type, quotient.data(), kLength, divisor);
            ASSERT_TRUE(quotient.equals(expected)) << "divided by " << divisor << ", seed " << kSeed;
          });
        }
      }
    });
  }
}

TEST(Divide, RoundsEveryHalfAsFloat32WouldBeRounded) {
  const auto check = []<typename T>(std::type_identity<T>) {
    for (int divisor : {3, 5, 7, 8, 4096}) {
      Guarded<T> all(65'536, 0), expected(65'536, 0);
      for (std::size_t i = 0; i < 65'536; ++i) {
        all[i] = T{static_cast<std::uint16_t>(i)};
        expected[i] = narrow<T>(all[i].to_float() / static_cast<float>(divisor));
      }
      with_all_instructions([&] {
        Guarded<T> quotient = all;
        divide(data_type_of<T>, quotient.data(), 65'536, divisor);
        EXPECT_TRUE(quotient.equals(expected)) << "divided by " << divisor;
      });
    }
  };
  check(std::type_identity<float16>{});
  check(std::type_identity<bfloat16>{});
}

// A ring folds chunk c in the order c+1, ..., p-1, 0, ..., c. Rank r brings in element e the r-th digit of e, as one of
// the values where ties and NaN are decided: so the array holds every combination there is.
template <typename T>
void check_ring(ReduceOp op, int ranks) {
  using F = Format<T>;
  std::size_t combinations = 1;
  for (int r = 0; r < ranks; ++r) combinations *= 5;
  std::vector<std::vector<T>> brought(static_cast<std::size_t>(ranks));
  std::size_t place = 1;
  for (int r = 0; r < ranks; ++r, place *= 5) {
    // Somebody's own NaN may look like a mark and is none.
    const T nan = with_sign<T>(r % 2 == 0 ? F::kQuietNan | 1 : F::kInfinity | 2, r % 3 == 0);
    const T values[] = {with_sign<T>(0, true), with_sign<T>(0, false), with_sign<T>(F::kOne, false),
                        with_sign<T>(F::kOne, true), nan};
    for (std::size_t e = 0; e < combinations; ++e) brought[r].push_back(values[e / place % 5]);
  }
  std::vector<T> expected(combinations);
  using Wide = decltype(widen(T{}));
  for (std::size_t e = 0; e < combinations; ++e) {
    Wide result = widen(brought[0][e]);
    for (int r = 1; r < ranks; ++r) result = combine(op, result, widen(brought[r][e]));
    expected[e] = narrow<T>(result);
  }
  constexpr DataType kType = data_type_of<T>;
  for (int chunk = 0; chunk < ranks; ++chunk) {
    std::vector<T> passed = brought[(chunk + 1) % ranks];
    for (int step = 2; step <= ranks; ++step) {
      const int rank = (chunk + step) % ranks;
      const T* own = brought[rank].data();
      if (chunk == ranks - 1 || rank > chunk)
        fold(op, kType, passed.data(), passed.data(), own, combinations);
      else if (chunk == 0)
        fold(op, kType, passed.data(), own, passed.data(), combinations);
      else
        fold_wrapped(op, kType, passed.data(), own, passed.data(), combinations,
                     rank == 0       ? WrapPhase::enter
                     : rank == chunk ? WrapPhase::leave
                                     : WrapPhase::within);
    }
    ASSERT_EQ(std::memcmp(passed.data(), expected.data(), combinations * sizeof(T)), 0)
        << to_string(op) << " of " << to_string(kType) << " over " << ranks << " ranks, chunk " << chunk;
  }
}

TEST(FoldWrapped, LetsTheLowestRankWinTiesInARing) {
  for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (int ranks = 2; ranks <= 8; ++ranks) check_ring<float>(op, ranks);
    for (int ranks = 2; ranks <= 5; ++ranks) {
      check_ring<double>(op, ranks);
      check_ring<float16>(op, ranks);
      check_ring<bfloat16>(op, ranks);
    }
  }
}

TEST(FoldWrapped, MarksAZeroFromAboveUntilItLeaves) {
  const float minus_zero = -0.0f, one = 1, two = 2, plus_zero = 0;
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  float passed = minus_zero;
  fold_wrapped(ReduceOp::min, DataType::float32, &passed, &one, &passed, 1, WrapPhase::enter);
  EXPECT_EQ(bits(passed), 0xffc00001);
  fold_wrapped(ReduceOp::min, DataType::float32, &passed, &two, &passed, 1, WrapPhase::within);
  EXPECT_EQ(bits(passed), 0xffc00001);
  float left = passed;
  fold_wrapped(ReduceOp::min, DataType::float32, &left, &one, &left, 1, WrapPhase::leave);
  EXPECT_EQ(bits(left), bits(minus_zero));
  fold_wrapped(ReduceOp::min, DataType::float32, &passed, &plus_zero, &passed, 1, WrapPhase::leave);
  EXPECT_EQ(bits(passed), bits(plus_zero)) << "one's own zero is of a lower rank than the marked one";
}

TEST(FoldWrapped, IsFoldWhereTiesCannotBeTold) {
  for_all_ops_and_types([]<typename T>(ReduceOp op, std::type_identity<T>) {
    if (kFloating<T> && op != ReduceOp::sum && op != ReduceOp::mean) return;
    for (WrapPhase phase : {WrapPhase::enter, WrapPhase::within, WrapPhase::leave}) {
      constexpr std::size_t kLength = 1001;
      Guarded<T> own(kLength, 0), incoming(kLength, 1), expected(kLength, 2), result(kLength, 2);
      Draw<T> draw(kSeed, 4);
      draw.fill(own.span());
      draw.fill(incoming.span());
      fold(op, data_type_of<T>, expected.data(), own.data(), incoming.data(), kLength);
      fold_wrapped(op, data_type_of<T>, result.data(), own.data(), incoming.data(), kLength, phase);
      EXPECT_TRUE(result.equals(expected));
    }
  });
}

TEST(Fold, RefusesTheMeanOfIntegers) {
  std::int64_t x = 1;
  const void* source = &x;
  void* destination = &x;
  const auto refuses = [](auto call) {
    EXPECT_THAT(call, ThrowsMessage<UsageError>(HasSubstr("Mean needs a floating type, not int64")));
  };
  refuses([&] { fold(ReduceOp::mean, DataType::int64, &x, &x, &x, 1); });
  refuses([&] { fold_all(ReduceOp::mean, DataType::int64, std::span(&source, 1), std::span(&destination, 1), 1); });
  refuses([&] { fold_wrapped(ReduceOp::mean, DataType::int64, &x, &x, &x, 1, WrapPhase::enter); });
  refuses([&] { divide(DataType::int64, &x, 1, 1); });
}

TEST(Fold, RefusesNoSourcesAndDivisorsBelowOne) {
  float x = 1;
  void* destination = &x;
  EXPECT_THROW(fold_all(ReduceOp::sum, DataType::float32, {}, std::span(&destination, 1), 1), UsageError);
  EXPECT_THROW(divide(DataType::float32, &x, 1, 0), UsageError);
  EXPECT_THROW(divide(DataType::float32, &x, 1, -2), UsageError);
}

TEST(ReduceOps, AreNamedAsTheyAreParsed) {
  for (ReduceOp op : kAllReduceOps) EXPECT_EQ(parse_reduce_op(to_string(op)), op);
  EXPECT_EQ(to_string(ReduceOp::mean), "Mean");
  EXPECT_THAT([] { parse_reduce_op("sum"); },
              ThrowsMessage<UsageError>("'sum' is no reduction; allowed are Sum, Mean, Min and Max"));
}

}  // namespace
}  // namespace tutti
