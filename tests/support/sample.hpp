// One in so many points of a cross product, for builds and worlds in which each takes long. The numbers share no
// divisor with the dimensions, so that those taken differ in all of them.
#pragma once

namespace tutti::testing {

#if defined(__SANITIZE_THREAD__)
inline constexpr int kEveryWhereSanitized = 7;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kEveryWhereSanitized = 3;
#else
inline constexpr int kEveryWhereSanitized = 1;
#endif

class Sample {
 public:
  explicit Sample(int every) : every_(every) {}

  // Whether to go over the next point. Ranks that ask alike are told alike.
  bool takes() { return next_++ % every_ == 0; }

 private:
  int every_;
  int next_ = 0;
};

}  // namespace tutti::testing
