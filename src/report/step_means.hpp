// What several steps were on average, weighted by their rows.
//
//   StepMeans means;
//   means.start(0);
//   means.add(step);
//   if (!means.empty()) tell(means.take());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/base/events.hpp>

namespace tutti::detail {

class StepMeans {
 public:
  struct Means {
    std::int64_t step = 0;  // step, epoch, seconds and lr are those of the last step
    std::int64_t epoch = 0;
    double seconds = 0;
    double lr = 0;
    double loss = 0;
    double rows_per_second = 0;  // NaN where no time passed
    std::vector<NamedNumber> metrics = {};
    std::vector<NamedNumber> counts = {};  // of all of them together
  };

  // Forgets all steps; the first one began when training had taken so many seconds.
  void start(double seconds);
  void add(const event::StepEnded& step);
  bool empty() const { return steps_ == 0; }
  // Of the steps since the last take().
  Means take();

 private:
  struct Sum {
    std::string name = {};
    double value = 0;
    double weight = 0;
    void add(double number, double its_weight) {
      value += number * its_weight;
      weight += its_weight;
    }
  };

  double begin_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t rows_ = 0;
  Sum loss_;
  std::vector<Sum> metrics_;
  std::vector<NamedNumber> counts_;
  event::StepEnded last_;
};

}  // namespace tutti::detail
