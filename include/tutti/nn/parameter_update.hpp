// Parameters and what becomes of them when somebody has added up their gradients: these are looked at, added to those
// of steps before, and applied by tutti's kernels. For what trains a part of a network, while others train the rest.
//
//   ParameterUpdate update({{"hidden.weight", tensor}}, optimizer);
//   update.take(sums);                                  // undefined where there is none
//   if (!update.not_finite().empty()) update.forget();  // nothing was changed
//   ... squares_of(i) of all workers give the norm of the whole gradient ...
//   update.apply(scale);                                // or keep(), for the next step
//
// The same bits as DataParallel's. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>
#include <tutti/base/parameter_set.hpp>
#include <tutti/base/shape.hpp>

namespace tutti {

// How far it is, as DataParallel saves it too: one for all that train together.
struct UpdateProgress {
  std::int64_t steps = 0;
  std::int64_t kept_steps = 0;  // that wait for their update
  double kept_weight = 0;
};
void save_progress(ParameterSet& state, const UpdateProgress& progress);
UpdateProgress progress_in(const ParameterSet& state);

class ParameterUpdate {
 public:
  using Parameters = std::vector<std::pair<std::string, torch::Tensor>>;

  // A UsageError where the optimizer is none that tutti has kernels for.
  ParameterUpdate(Parameters parameters, std::shared_ptr<torch::optim::Optimizer> optimizer);

  const Parameters& parameters() const { return parameters_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  // The sums of a step, by parameter and laid out as these.
  void take(std::vector<torch::Tensor> sums);
  // The first whose gradient is NaN or infinite; nothing where all are finite.
  std::string not_finite() const;
  // Of what was taken and kept, piece by piece: their sum over all parameters is the square of the norm.
  std::vector<double> squares_of(std::size_t parameter) const;
  static std::size_t piece_count(const Shape& shape);

  // Ends a step, one way or another.
  void apply(double scale);
  void keep();
  void forget();

  // As DataParallel: parameters, what the optimizer has of them, and what was kept. restore() looks at all of it before
  // it changes anything; what was kept counts where `goes_on`.
  void save(ParameterSet& state) const;
  void restore(const ParameterSet& state, bool goes_on);

 private:
  Parameters parameters_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<torch::Tensor> sums_;  // of the step, and of those before
  std::vector<torch::Tensor> kept_;
};

}  // namespace tutti
