// Some points of a cross product, for builds and worlds in which each takes long.
//
//   Sample sample(3);                       // about one in three
//   for (...) for (...) if (sample.takes()) try_it(...);
#pragma once

#include <tutti/base/random.hpp>

namespace tutti::testing {

// One in so many, in this build.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kEveryWhereSanitized = 12;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kEveryWhereSanitized = 6;
#else
inline constexpr int kEveryWhereSanitized = 1;
#endif

class Sample {
 public:
  explicit Sample(int every) : every_(static_cast<std::uint64_t>(every)) {}

  // Whether to go over the next point: drawn, so that no dimension of the product falls together with it. Ranks that
  // ask alike are told alike.
  bool takes() { return draws_.below(every_) == 0; }

 private:
  std::uint64_t every_;
  RandomStream draws_{{7}};
};

}  // namespace tutti::testing
