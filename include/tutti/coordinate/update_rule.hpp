// How gradients change the parameters of a model: a rule with whatever it remembers from one change to the next.
//
//   const std::unique_ptr<UpdateRule> rule = make_update_rule(Adam{.lr = 1e-3});
//   rule->prepare(parameters);
//   rule->apply(parameters, gradients, {.gradient_scale = 0.5});
//
// A rule of one's own is a class with these functions: coordinators take any (DistributedGradientsCoordinator,
// ParameterServer).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/kernels/optimizer.hpp>

namespace tutti {

struct UpdateStep {
  double gradient_scale = 1;  // what gradients are multiplied by first: their share of a batch; negative to ascend
  double rate_factor = 1;     // what the rule's learning rate is multiplied by
};

// One thread at a time, but for check().
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Called before the first change of these parameters. A UsageError for what it cannot change, and for another layout
  // than it remembers something of.
  virtual void prepare(const ParameterSet& /*parameters*/) {}

  // A UsageError for a step that cannot be, whatever the gradients: its scale or its rate are none that numbers of
  // these types can be multiplied by. Coordinators ask before they take gradients. Any thread, also during a change,
  // once parameters are prepared.
  virtual void check(const UpdateStep& /*step*/) const {}

  // Gradients have the layout of the parameters. It has these: who asks its own coordinator for a snapshot in here
  // waits for itself.
  virtual void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) = 0;

  // Whether apply() never fails halfway. Parameters are changed in their place then, where nobody looks at them;
  // otherwise in a copy.
  virtual bool never_fails() const { return false; }

  // What it remembers, under names that begin with the prefix, for checkpoints; nothing, unless it says so. Restoring
  // comes after prepare(), and refuses what does not fit with a UsageError. What is under the prefix and `kind` is of
  // another rule where its bytes are others.
  virtual void save(ParameterSet& /*arrays*/, const std::string& /*prefix*/) const {}
  virtual void restore(const ParameterSet& /*arrays*/, const std::string& /*prefix*/) {}
};

// An optimizer: a learning rate (Sgd), momentum (Sgd), Adam, AdamW, RmsProp, Adagrad, with the bits that training has
// everywhere else. Parameters are float32 or float64. Their learning rate is multiplied by `rate_factors`, by array,
// where there are any. A UsageError for options that cannot be. It goes on from what the same optimizer has saved, with
// whatever numbers for options: not from another's, nor from state that cannot be, such as means of squares below 0.
std::unique_ptr<UpdateRule> make_update_rule(const OptimizerRule& rule, std::vector<double> rate_factors = {});

// Which of what a checkpoint has of a rule is gone on from.
enum class Restored {
  all,        // a UsageError where it is of another rule, or of other parameters
  what_fits,  // another rule begins anew, and so do parameters that it had nothing of; what is of others is left out
};

// For a rule that has made no step yet. A UsageError for state that cannot be.
void restore_rule(UpdateRule& rule, const ParameterSet& arrays, const std::string& prefix, Restored what);

}  // namespace tutti
