// A model with a rule by which gradients change it, a set at a time: what coordinators of gradients have in common.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <tutti/coordinate/gradient_updates.hpp>
#include <tutti/coordinate/main_model.hpp>
#include <tutti/coordinate/update_rule.hpp>

namespace tutti::detail {

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
  GradientChangeMode mode() const { return mode_; }

  // A UsageError for gradients that are not of this model, or have numbers that are not finite.
  void refuse_unless_good(const ParameterSet& gradients, const GradientOrigin& origin) const;
  // Those that are good. Returns the version that they made.
  std::int64_t apply(const ParameterSet& gradients, const GradientOrigin& origin);

  StalenessCounts staleness() const;

  // The model under its own names, and the rest under names with this prefix.
  void save(ParameterSet& arrays, const std::string& prefix) const;
  void restore(const ParameterSet& arrays, const std::string& prefix);

 private:
  void take_layout(const ParameterSet& parameters);
  const ParameterSet& compensated(const ParameterSet& gradients, const ParameterSet& now, const ParameterSet& base);

  std::unique_ptr<UpdateRule> rule_;  // used by who changes the model
  std::atomic<GradientChangeMode> mode_;
  StalenessOptions options_;
  MainModel model_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ParameterSet> layout_;
  StalenessCounts staleness_;
  std::optional<ParameterSet> scratch_;  // of who changes the model
};

}  // namespace tutti::detail
