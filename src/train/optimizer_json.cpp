#include <nlohmann/json.hpp>
#include <tutti/base/options.hpp>
#include <tutti/train/run.hpp>

namespace tutti {
namespace {

constexpr NumberRange kAny{};
constexpr NumberRange kFromZero{.min = 0};
constexpr NumberRange kDecay{.min = 0, .max = 1, .max_excluded = true};

// What an optimizer has besides its rate: read and written by the same names. `field` takes a name, the field and the
// range of a number.
template <typename F>
void for_each_field(Sgd& rule, F field) {
  field("momentum", rule.momentum, kFromZero);
  field("dampening", rule.dampening, kAny);
  field("weight_decay", rule.weight_decay, kFromZero);
  field("nesterov", rule.nesterov, kAny);
}

template <typename Rule, typename F>
requires std::same_as<Rule, Adam> || std::same_as<Rule, AdamW>
void for_each_field(Rule& rule, F field) {
  field("beta1", rule.beta1, kDecay);
  field("beta2", rule.beta2, kDecay);
  field("eps", rule.eps, kFromZero);
  field("weight_decay", rule.weight_decay, kFromZero);
  field("amsgrad", rule.amsgrad, kAny);
}

template <typename F>
void for_each_field(RmsProp& rule, F field) {
  field("alpha", rule.alpha, kFromZero);
  field("eps", rule.eps, kFromZero);
  field("weight_decay", rule.weight_decay, kFromZero);
  field("momentum", rule.momentum, kFromZero);
  field("centered", rule.centered, kAny);
}

template <typename F>
void for_each_field(Adagrad& rule, F field) {
  field("lr_decay", rule.lr_decay, kFromZero);
  field("weight_decay", rule.weight_decay, kFromZero);
  field("initial_accumulator_value", rule.initial_accumulator_value, kFromZero);
  field("eps", rule.eps, kFromZero);
}

OptimizerRule rule_named(const std::string& name) {
  if (name == "adam") return Adam{};
  if (name == "adamw") return AdamW{};
  if (name == "rmsprop") return RmsProp{};
  if (name == "adagrad") return Adagrad{};
  return Sgd{};
}

struct FieldReader {
  const Options& options;

  void operator()(const char* name, double& number, NumberRange range) const {
    number = options.number(name, range, number);
  }
  void operator()(const char* name, bool& flag, NumberRange) const { flag = options.boolean(name, flag); }
};

}  // namespace

OptimizerRule optimizer_from_json(const JsonValue& value) {
  if (!value.is_object()) throw value.expected(R"(an optimizer, as in {"name": "sgd", "lr": 0.1})");
  const Options options(value);
  OptimizerRule rule = rule_named(options.at("name").one_of({"sgd", "adam", "adamw", "rmsprop", "adagrad"}));
  std::visit(
      [&]<typename Rule>(Rule& its) {
        // Of sgd there is no rate that is usual.
        its.lr = std::same_as<Rule, Sgd> ? options.at("lr").number(kFromZero) : options.number("lr", kFromZero, its.lr);
        for_each_field(its, FieldReader{options});
      },
      rule);
  options.refuse_other_keys({});
  try {
    refuse_unless_possible(rule);
  } catch (const UsageError& error) {
    throw value.error(error.what());
  }
  return rule;
}

nlohmann::ordered_json to_json(const OptimizerRule& rule) {
  nlohmann::ordered_json json{{"name", to_string(rule)}};
  std::visit(
      [&](auto its) {
        json["lr"] = its.lr;
        for_each_field(its, [&](const char* name, auto& field, NumberRange) { json[name] = field; });
      },
      rule);
  return json;
}

}  // namespace tutti
