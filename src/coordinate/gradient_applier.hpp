// A model with a rule by which gradients change it, a set at a time: what coordinators of gradients have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <tutti/coordinate/gradient_updates.hpp>
#include <tutti/coordinate/main_model.hpp>
#include <tutti/coordinate/update_rule.hpp>

namespace tutti::detail {

// Gradients that are good, as they wait to be applied. They hold the parameters that they are of only where those are
// needed: what nobody holds need not be copied to be changed.
struct GoodGradients {
  std::shared_ptr<const ParameterSet> values = {};
  double weight = 1;
  double rate_factor = 1;
  std::map<std::int64_t, std::int64_t> versions = {};  // how many sets are of each, or of kNoVersion
  std::shared_ptr<const ParameterSet> base = {};       // the oldest of these, for a compensation
  std::shared_ptr<ParameterSet> own = {};              // the values, where they are nobody else's and may be changed

  static constexpr std::int64_t kNoVersion = -1;  // of nothing in particular
};

// Both times what they count for: with the larger rate of the two, of which the other ones get their share. An Error,
// and nothing is changed, where they add up to what is not finite.
void merge_gradients(GoodGradients& newest, const GoodGradients& added);

// Any thread may call any of these.
class GradientApplier {
 public:
  GradientApplier(std::unique_ptr<UpdateRule> rule, GradientChangeMode mode, const StalenessOptions& staleness);

  // A UsageError where there are parameters of other names, shapes or types, and for what the rule cannot change.
  void set_model(ParameterSet parameters);
  void set_model(std::shared_ptr<const ParameterSet> parameters);
  const MainModel& model() const { return model_; }
  // Names, shapes and types; nothing where there is no model yet.
  std::shared_ptr<const ParameterSet> layout() const;

  void set_mode(GradientChangeMode mode) { mode_ = mode; }
  // What all learning rates are multiplied by. A UsageError for what is no factor.
  void set_rate_factor(double factor);

  // A UsageError for gradients that are not of this model, or have numbers that are not finite.
  GoodGradients good(std::shared_ptr<const ParameterSet> gradients, const GradientOrigin& origin) const;
  // Returns the version that they made. Where the rule throws, or a compensation is not finite, nothing is changed.
  std::int64_t apply(const GoodGradients& gradients);

  StalenessCounts staleness() const;

  // The model under its own names, and the rest under names with this prefix.
  void save(ParameterSet& arrays, const std::string& prefix) const;
  // A UsageError, and nothing is changed, where they are of something else.
  void restore(const ParameterSet& arrays, const std::string& prefix, Restored what);

 private:
  void take_layout(const ParameterSet& parameters);
  // An Error where it is not finite.
  const ParameterSet& compensated(const ParameterSet& gradients, const ParameterSet& now, const ParameterSet& base,
                                  double lambda);

  std::unique_ptr<UpdateRule> rule_;  // used by who changes the model
  std::atomic<GradientChangeMode> mode_;
  std::atomic<double> rate_factor_ = 1;
  StalenessOptions options_;
  MainModel model_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ParameterSet> layout_;
  StalenessCounts staleness_;
  ParameterSet compensated_;  // of who changes the model
};

}  // namespace tutti::detail
