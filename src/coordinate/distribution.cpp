#include <tutti/coordinate/distribution.hpp>

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/options.hpp>

namespace tutti {

double draw(const Distribution& distribution, RandomStream& draws) {
  if (const Uniform* its = std::get_if<Uniform>(&distribution))
    return its->min + (its->max - its->min) * draws.uniform();
  if (const LogNormal* its = std::get_if<LogNormal>(&distribution))
    return its->median * std::exp(its->sigma * draws.normal());
  if (const Exponential* its = std::get_if<Exponential>(&distribution))
    return -its->mean * std::log(1 - draws.uniform());
  return std::get<Always>(distribution).value;
}

Distribution distribution_from_json(const JsonValue& value, NumberRange range) {
  if (value.is_number()) return Always{value.number(range)};
  if (!value.is_object())
    throw value.expected(R"(a number, or what it is drawn from, as in {"method": "Uniform", "min": 1, "max": 2})");
  const Options options(value);
  const std::string& method = value.at("method").one_of({"Uniform", "LogNormal", "Exponential"});
  const auto number = [&](const char* key) { return options.at(key).number(range); };
  Distribution distribution;
  if (method == "Uniform") {
    const Uniform its{.min = number("min"), .max = number("max")};
    if (its.max < its.min)
      throw options.at("max").expected(fmt::format("a number that is not below the minimum, {}", its.min));
    distribution = its;
  } else if (method == "LogNormal") {
    constexpr double kMostSigma = 10;
    distribution =
        LogNormal{.median = number("median"), .sigma = options.at("sigma").number({.min = 0, .max = kMostSigma})};
  } else {
    distribution = Exponential{.mean = number("mean")};
  }
  options.refuse_other_keys({"method"});
  return distribution;
}

nlohmann::ordered_json to_json(const Distribution& distribution) {
  if (const Uniform* its = std::get_if<Uniform>(&distribution))
    return {{"method", "Uniform"}, {"min", its->min}, {"max", its->max}};
  if (const LogNormal* its = std::get_if<LogNormal>(&distribution))
    return {{"method", "LogNormal"}, {"median", its->median}, {"sigma", its->sigma}};
  if (const Exponential* its = std::get_if<Exponential>(&distribution))
    return {{"method", "Exponential"}, {"mean", its->mean}};
  return std::get<Always>(distribution).value;
}

}  // namespace tutti
