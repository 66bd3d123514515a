#include "replica_comparison.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti::detail {
namespace {

bool is_about(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const double difference = (a - b).norm().item<double>();
  if (std::isnan(difference)) return true;  // that is for the step to refuse
  return difference <= 1e-3 * std::max(a.norm().item<double>(), b.norm().item<double>());
}

bool is_about(double a, double b) {
  return a == b || std::abs(a - b) <= 1e-5 * std::max(std::abs(a), 1e-3) || (std::isnan(a) && std::isnan(b));
}

std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::string text = fmt::format("'{}'", fmt::join(std::span(names).first(std::min(names.size(), kMost)), "', '"));
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

void refuse_other_function(const std::vector<ModuleParameter>& parameters, const ReplicaResult& first,
                           const ReplicaResult& result, std::size_t replica) {
  std::vector<std::string> other;
  std::vector<std::string> elsewhere;  // replica 0's loss depends on these, and that of this one does not
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& its_first = first.gradients[i];
    const torch::Tensor& its = result.gradients[i];
    if (!is_about(its_first, its)) other.push_back(parameters[i].name());
    if (its_first.defined() && !its.defined()) elsewhere.push_back(parameters[i].name());
  }
  if (!elsewhere.empty()) {
    throw UsageError(
        fmt::format("replica {}: its loss does not depend on its own {}; the closure must use the module that it is "
                    "given, and that one its own members",
                    replica, first_of(elsewhere)));
  }
  if (is_about(first.loss.loss, result.loss.loss)) {
    if (other.empty()) return;
    throw UsageError(
        fmt::format("replica {}: on the same rows its loss is that of replica 0, and the gradients differ of {}; the "
                    "closure must use the module that it is given, and no other",
                    replica, first_of(other)));
  }
  throw UsageError(fmt::format(
      "replica {} is another function than replica 0: on the same rows its loss is {} and not {}; {}. Does the module "
      "have members that it does not register, or draw random numbers by itself?",
      replica, result.loss.loss, first.loss.loss,
      other.empty() ? std::string("the gradients are all the same") : "the gradients differ of " + first_of(other)));
}

}  // namespace

void refuse_other_functions(const std::vector<ModuleParameter>& parameters, const std::vector<ReplicaResult>& results) {
  for (std::size_t r = 1; r < results.size(); ++r) refuse_other_function(parameters, results.front(), results[r], r);
}

}  // namespace tutti::detail
