#include "new_optimizers.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/coordinate/update_rule.hpp>

namespace tutti::detail {
namespace {

// What an array's name begins with where it is one of many, such as "worker/3/"; empty where it is not.
std::string numbered_prefix(std::string_view name, std::string_view folder) {
  const std::size_t slash = name.starts_with(folder) ? name.find('/', folder.size()) : std::string_view::npos;
  return slash == std::string_view::npos ? "" : std::string(name.substr(0, slash + 1));
}

std::set<std::string> prefixes_of_optimizers(const ParameterSet& arrays) {
  std::set<std::string> found;
  for (const NamedArray& array : arrays) {
    const std::string& name = array.name();
    const std::string prefix = name.starts_with("server/rule/") ? "server/rule/" : numbered_prefix(name, "worker/");
    if (!prefix.empty() && arrays.find(prefix + "step") != nullptr) found.insert(prefix);
  }
  return found;
}

// Beside it an optimizer's prefix may have what is not the optimizer's.
bool is_of_optimizer(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return name == "kind" || name == "step" || name.starts_with("state/");
}

bool fits(UpdateRule& rule, const ParameterSet& arrays, const std::string& prefix) {
  try {
    rule.restore(arrays, prefix);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace

std::optional<ParameterSet> with_new_optimizers(const ParameterSet& arrays, const TrainedParameters& trained,
                                                const OptimizerRule& rule) {
  const ParameterSet parameters = values_of(trained);
  const auto new_rule = [&] {
    std::unique_ptr<UpdateRule> its = make_update_rule(rule, trained.rate_factors);
    its->prepare(parameters);
    return its;
  };
  std::vector<std::string> others;
  for (const std::string& prefix : prefixes_of_optimizers(arrays)) {
    if (!fits(*new_rule(), arrays, prefix)) others.push_back(prefix);
  }
  std::vector<std::pair<std::string, const NamedArray*>> missing;
  std::set<std::string> replicas;
  for (const NamedArray& array : arrays) replicas.insert(numbered_prefix(array.name(), "replica/"));
  replicas.erase("");
  for (const std::string& prefix : replicas) {
    for (const NamedArray& parameter : parameters) {
      const NamedArray* common = arrays.find(parameter.name());
      if (common != nullptr && arrays.find(prefix + parameter.name()) == nullptr)
        missing.emplace_back(prefix + parameter.name(), common);
    }
  }
  if (others.empty() && missing.empty()) return std::nullopt;
  ParameterSet fitting;
  for (const NamedArray& array : arrays) {
    const auto is_its = [&](const std::string& prefix) { return is_of_optimizer(array.name(), prefix); };
    if (std::ranges::none_of(others, is_its)) fitting.add(array.layout(), array.bytes());
  }
  for (const auto& [name, common] : missing) fitting.add({name, common->shape(), common->type()}, common->bytes());
  for (const std::string& prefix : others) new_rule()->save(fitting, prefix);
  return fitting;
}

}  // namespace tutti::detail
