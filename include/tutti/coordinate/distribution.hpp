// A number that differs from client to client: how fast they are, how likely they are to fail.
//
//   const Distribution speed = LogNormal{.median = 100, .sigma = 0.5};
//   RandomStream draws({seed, client});
//   draw(speed, draws);
//
// In JSON a number alone is always the same; others are objects: {"method": "LogNormal", "median": 100, "sigma": 0.5}.
#pragma once

#include <string>
#include <variant>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>
#include <tutti/base/random.hpp>

namespace tutti {

struct Always {
  double value = 0;
  friend bool operator==(const Always&, const Always&) = default;
};

// Each number from min to max as likely as the others.
struct Uniform {
  double min = 0;
  double max = 1;
  friend bool operator==(const Uniform&, const Uniform&) = default;
};

// Half of them are above the median, few far above: sigma is the standard deviation of the logarithm.
struct LogNormal {
  double median = 1;
  double sigma = 0.5;
  friend bool operator==(const LogNormal&, const LogNormal&) = default;
};

struct Exponential {
  double mean = 1;
  friend bool operator==(const Exponential&, const Exponential&) = default;
};

using Distribution = std::variant<Always, Uniform, LogNormal, Exponential>;

double draw(const Distribution& distribution, RandomStream& draws);

// All that it can draw is in the range: a UsageError at the place of what is not. Of distributions without an end it is
// their median or mean that is asked.
Distribution distribution_from_json(const JsonValue& value, NumberRange range);
nlohmann::ordered_json to_json(const Distribution& distribution);

}  // namespace tutti
