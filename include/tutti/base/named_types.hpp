// Things that a run file names, each with what makes it: operators, losses, metrics, data sources. Users add their own.
//
//   NamedTypes<LossType> losses("loss");
//   losses.add({.name = "huber", .resolve = ...});
//   const LossType& type = losses.at(run.at("loss"));     // or a UsageError there, with the nearest name
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/base/json.hpp>

namespace tutti {

namespace detail {

// A UsageError where `name` is no name.
void refuse_unless_name(const std::string& kind, const std::string& name);
UsageError name_is_taken(const std::string& kind, const std::string& name);
UsageError has_no_function(const std::string& kind, const std::string& name);
UsageError unknown_name(const std::string& kind, const JsonValue& value, const std::vector<std::string>& known);

}  // namespace detail

// A type has a `name`, and a function `resolve`.
template <typename Type>
class NamedTypes {
 public:
  // `kind` is what they are; `taken` are names that mean something else.
  explicit NamedTypes(std::string kind, std::vector<std::string> taken = {})
      : kind_(std::move(kind)), taken_(std::move(taken)) {}

  // A UsageError where the name is taken, or is no name, or there is no function.
  void add(Type type) {
    detail::refuse_unless_name(kind_, type.name);
    if (types_.contains(type.name) || std::ranges::find(taken_, type.name) != taken_.end())
      throw detail::name_is_taken(kind_, type.name);
    if (!type.resolve) throw detail::has_no_function(kind_, type.name);
    std::string name = type.name;
    types_.emplace(std::move(name), std::move(type));
  }

  const Type* find(std::string_view name) const {
    const auto found = types_.find(name);
    return found == types_.end() ? nullptr : &found->second;
  }

  // By the name that a document has.
  const Type& at(const JsonValue& value) const {
    if (const Type* type = find(value.string())) return *type;
    std::vector<std::string> known = names();
    known.insert(known.end(), taken_.begin(), taken_.end());
    throw detail::unknown_name(kind_, value, known);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, type] : types_) names.push_back(name);
    return names;
  }

 private:
  std::string kind_;
  std::vector<std::string> taken_;
  std::map<std::string, Type, std::less<>> types_;
};

}  // namespace tutti
