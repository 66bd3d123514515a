// Where values stand along an axis, and which of them are written beside it.
//
//   const Axis axis = Axis::of({0.013, 0.8});      // wide apart, so that it is logarithmic
//   axis.share(0.013);                             // 0, the low end
//   axis.share(0.8);                               // 1, the high end
//   axis.ticks();                                  // 0.02, 0.05, 0.1, 0.2, 0.5
#pragma once

#include <string>
#include <vector>

namespace tutti::detail {

struct Tick {
  double value = 0;
  std::string label = {};
};

class Axis {
 public:
  // From the smallest to the largest value; logarithmic where all are positive and the largest is at least 20 times the
  // smallest. Where they are all the same, it stands in the middle.
  static Axis of(const std::vector<double>& values);
  static Axis linear(const std::vector<double>& values);

  bool is_logarithmic() const { return is_logarithmic_; }
  double share(double value) const;
  // At most ten, of round numbers; of a linear axis, at least so far apart.
  std::vector<Tick> ticks(double smallest_step = 0) const;

 private:
  Axis(double low, double high, bool is_logarithmic) : low_(low), high_(high), is_logarithmic_(is_logarithmic) {}
  std::vector<Tick> linear_ticks(double smallest_step) const;
  std::vector<Tick> logarithmic_ticks() const;

  double low_;
  double high_;
  bool is_logarithmic_;
};

}  // namespace tutti::detail
