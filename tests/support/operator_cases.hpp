// Nodes of every operator with options and inputs drawn at random: most of them possible, some not.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <tutti/base/random.hpp>
#include <tutti/graph/graph_builder.hpp>

namespace tutti::testing {

using Json = nlohmann::ordered_json;

struct OperatorCase {
  std::vector<ValueSpec> inputs;
  Json options = Json::object();
};

// Draws for one case.
class CaseDraws {
 public:
  explicit CaseDraws(std::uint64_t seed) : draws_({seed}) {}

  std::int64_t from(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(draws_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool sometimes() { return draws_.below(2) == 0; }
  template <typename T>
  T one_of(std::vector<T> values) {
    return values[static_cast<std::size_t>(draws_.below(values.size()))];
  }
  Shape shape(std::int64_t least, std::int64_t most, std::int64_t largest = 6) {
    Shape shape;
    for (std::int64_t i = from(least, most); i > 0; --i) shape.push_back(from(1, largest));
    return shape;
  }
  // One number for all, or one each.
  Json sizes(std::size_t count, std::int64_t low, std::int64_t high) {
    if (sometimes()) return from(low, high);
    Json list = Json::array();
    for (std::size_t i = 0; i < count; ++i) list.push_back(from(low, high));
    return list;
  }

 private:
  RandomStream draws_;
};

using DrawCase = std::function<OperatorCase(CaseDraws&)>;

// By operator; all that need no file.
inline std::map<std::string, DrawCase> operator_cases() {
  std::map<std::string, DrawCase> cases;
  const auto maybe = [](CaseDraws& draws, Json& options, const char* key, const Json& value) {
    if (draws.sometimes()) options[key] = value;
  };
  const auto image = [](CaseDraws& draws, std::size_t spatial) {
    Shape shape{draws.from(1, 3) * 2};
    for (std::size_t i = 0; i < spatial; ++i) shape.push_back(draws.from(3, 9));
    return ValueSpec{.shape = shape};
  };
  cases["linear"] = [=](CaseDraws& draws) {
    OperatorCase result{{{.shape = draws.shape(1, 3)}}, {{"units", draws.from(1, 7)}}};
    maybe(draws, result.options, "bias", draws.sometimes());
    return result;
  };
  for (const std::size_t spatial : {std::size_t{1}, std::size_t{2}}) {
    const std::string d = std::to_string(spatial) + "d";
    cases["conv" + d] = [=](CaseDraws& draws) {
      OperatorCase result{{image(draws, spatial)},
                          {{"filters", 2 * draws.from(1, 3)}, {"kernel", draws.sizes(spatial, 1, 4)}}};
      maybe(draws, result.options, "stride", draws.sizes(spatial, 1, 3));
      maybe(draws, result.options, "padding",
            draws.sometimes() ? Json(draws.one_of<std::string>({"same", "valid"})) : draws.sizes(spatial, 0, 2));
      maybe(draws, result.options, "dilation", draws.sizes(spatial, 1, 2));
      maybe(draws, result.options, "groups", draws.from(1, 2));
      maybe(draws, result.options, "bias", false);
      return result;
    };
    cases["conv_transpose" + d] = [=](CaseDraws& draws) {
      OperatorCase result{{image(draws, spatial)},
                          {{"filters", 2 * draws.from(1, 3)}, {"kernel", draws.sizes(spatial, 1, 4)}}};
      maybe(draws, result.options, "stride", draws.sizes(spatial, 1, 3));
      maybe(draws, result.options, "padding", draws.sizes(spatial, 0, 1));
      maybe(draws, result.options, "output_padding", draws.sizes(spatial, 0, 1));
      maybe(draws, result.options, "dilation", draws.sizes(spatial, 1, 2));
      maybe(draws, result.options, "groups", draws.from(1, 2));
      return result;
    };
    for (const char* kind : {"max", "avg"}) {
      cases[std::string(kind) + "_pool" + d] = [=](CaseDraws& draws) {
        OperatorCase result{{image(draws, spatial)}, {{"kernel", draws.sizes(spatial, 1, 3)}}};
        maybe(draws, result.options, "stride", draws.sizes(spatial, 1, 3));
        maybe(draws, result.options, "padding", draws.sizes(spatial, 0, 1));
        maybe(draws, result.options, "ceil", draws.sometimes());
        if (std::string(kind) == "max") maybe(draws, result.options, "dilation", draws.sizes(spatial, 1, 2));
        if (std::string(kind) == "avg") maybe(draws, result.options, "count_padding", draws.sometimes());
        return result;
      };
      cases["adaptive_" + std::string(kind) + "_pool" + d] = [=](CaseDraws& draws) {
        return OperatorCase{{image(draws, spatial)}, {{"size", draws.sizes(spatial, 1, 4)}}};
      };
    }
  }
  const auto norm = [=](CaseDraws& draws) {
    OperatorCase result{{{.shape = draws.shape(1, 3)}}};
    result.inputs[0].shape[0] *= 2;
    maybe(draws, result.options, "eps", 1e-3);
    maybe(draws, result.options, "affine", draws.sometimes());
    return result;
  };
  cases["batch_norm"] = [=](CaseDraws& draws) {
    OperatorCase result = norm(draws);
    maybe(draws, result.options, "momentum", 0.3);
    return result;
  };
  cases["layer_norm"] = [=](CaseDraws& draws) {
    OperatorCase result = norm(draws);
    maybe(draws, result.options, "dimensions", draws.from(1, 3));
    return result;
  };
  cases["group_norm"] = [=](CaseDraws& draws) {
    OperatorCase result = norm(draws);
    result.options["groups"] = draws.from(1, 3);
    return result;
  };
  for (const char* name :
       {"relu", "relu6", "selu", "silu", "mish", "hardswish", "sigmoid", "tanh", "softsign", "log_sigmoid"})
    cases[name] = [](CaseDraws& draws) { return OperatorCase{{{.shape = draws.shape(0, 3)}}}; };
  const std::vector<std::pair<std::string, Json>> with_number{{"leaky_relu", {{"slope", 0.2}}},
                                                              {"elu", {{"alpha", 0.7}}},
                                                              {"softplus", {{"beta", 2.0}}},
                                                              {"gelu", {{"approximate", "tanh"}}},
                                                              {"hardtanh", {{"min", -0.5}, {"max", 0.25}}},
                                                              {"dropout", {{"p", 0.3}}}};
  for (const auto& [name, options] : with_number) {
    cases[name] = [options](CaseDraws& draws) {
      return OperatorCase{{{.shape = draws.shape(0, 3)}}, draws.sometimes() ? options : Json::object()};
    };
  }
  for (const char* name : {"softmax", "log_softmax"}) {
    cases[name] = [=](CaseDraws& draws) {
      OperatorCase result{{{.shape = draws.shape(1, 3)}}};
      maybe(draws, result.options, "dim", draws.from(-3, 2));
      return result;
    };
  }
  cases["prelu"] = [=](CaseDraws& draws) {
    OperatorCase result{{{.shape = draws.shape(0, 3)}}};
    maybe(draws, result.options, "per_channel", draws.sometimes());
    return result;
  };
  cases["embedding"] = [](CaseDraws& draws) {
    return OperatorCase{{{.shape = draws.shape(0, 2), .type = ValueType::int64}},
                        {{"entries", draws.from(1, 9)}, {"units", draws.from(1, 5)}}};
  };
  cases["positional_embedding"] = [=](CaseDraws& draws) {
    OperatorCase result{{{.shape = draws.shape(2, 2)}}};
    maybe(draws, result.options, "kind", "sinusoidal");
    return result;
  };
  cases["attention"] = [=](CaseDraws& draws) {
    const std::int64_t units = 2 * draws.from(1, 4);
    OperatorCase result{{{.shape = {draws.from(1, 5), units}}}, {{"heads", draws.from(1, 3)}}};
    const std::int64_t others = draws.from(1, 5);
    for (std::int64_t i = draws.from(0, 2); i > 0; --i) result.inputs.push_back({.shape = {others, units}});
    maybe(draws, result.options, "causal", draws.sometimes());
    maybe(draws, result.options, "dropout", 0.2);
    maybe(draws, result.options, "bias", draws.sometimes());
    return result;
  };
  cases["transformer_block"] = [=](CaseDraws& draws) {
    OperatorCase result{{{.shape = {draws.from(1, 5), 2 * draws.from(1, 4)}}}, {{"heads", draws.from(1, 2)}}};
    maybe(draws, result.options, "hidden", draws.from(1, 9));
    maybe(draws, result.options, "causal", draws.sometimes());
    maybe(draws, result.options, "dropout", 0.2);
    maybe(draws, result.options, "activation", draws.one_of<std::string>({"gelu", "relu"}));
    maybe(draws, result.options, "norm", draws.one_of<std::string>({"first", "last"}));
    return result;
  };
  for (const char* name : {"lstm", "gru"}) {
    cases[name] = [=](CaseDraws& draws) {
      OperatorCase result{{{.shape = draws.shape(2, 2)}}, {{"units", draws.from(1, 5)}}};
      maybe(draws, result.options, "layers", draws.from(1, 3));
      maybe(draws, result.options, "bidirectional", draws.sometimes());
      maybe(draws, result.options, "dropout", 0.2);
      maybe(draws, result.options, "bias", draws.sometimes());
      maybe(draws, result.options, "output", draws.one_of<std::string>({"sequence", "last"}));
      return result;
    };
  }
  cases["flatten"] = [=](CaseDraws& draws) {
    OperatorCase result{{{.shape = draws.shape(0, 4)}}};
    maybe(draws, result.options, "from", draws.from(-3, 3));
    return result;
  };
  cases["reshape"] = [](CaseDraws& draws) {
    const std::int64_t a = draws.from(1, 4);
    const std::int64_t b = draws.from(1, 4);
    return OperatorCase{
        {{.shape = {a * b, 2}}},
        {{"shape", draws.one_of<Json>({Json{a, b, 2}, Json{-1, b}, Json{2 * a * b}, Json{2, -1, a}, Json{3, -1}})}}};
  };
  cases["permute"] = [](CaseDraws& draws) {
    return OperatorCase{{{.shape = draws.shape(3, 3)}},
                        {{"dims", draws.one_of<Json>({Json{2, 0, 1}, Json{0, -1, 1}, Json{0, 1, 2}, Json{0, 0, 1}})}}};
  };
  cases["concat"] = [=](CaseDraws& draws) {
    OperatorCase result;
    const Shape shape = draws.shape(1, 3);
    const std::int64_t dim = draws.from(0, static_cast<std::int64_t>(shape.size()) - 1);
    for (std::int64_t i = draws.from(2, 4); i > 0; --i) {
      result.inputs.push_back({.shape = shape});
      result.inputs.back().shape[static_cast<std::size_t>(dim)] = draws.from(1, 4);
    }
    if (dim != 0 || draws.sometimes()) result.options["dim"] = dim;
    return result;
  };
  for (const char* name : {"add", "multiply"}) {
    cases[name] = [](CaseDraws& draws) {
      OperatorCase result;
      const Shape shape = draws.shape(1, 3);
      for (std::int64_t i = draws.from(2, 4); i > 0; --i) {
        Shape its(shape.begin() + draws.from(0, static_cast<std::int64_t>(shape.size())), shape.end());
        for (std::int64_t& size : its) size = draws.sometimes() ? size : 1;
        result.inputs.push_back({.shape = its});
      }
      return result;
    };
  }
  cases["mean"] = [=](CaseDraws& draws) {
    OperatorCase result{{{.shape = draws.shape(0, 3)}}};
    maybe(draws, result.options, "dim", draws.sometimes() ? Json(draws.from(-3, 2)) : Json{0, -1});
    maybe(draws, result.options, "keep", draws.sometimes());
    return result;
  };
  return cases;
}

inline GraphBuilder graph_of(const std::string& op, const OperatorCase& its) {
  GraphBuilder builder;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < its.inputs.size(); ++i) {
    names.push_back("input" + std::to_string(i));
    builder.input(names.back(), its.inputs[i].shape, its.inputs[i].type);
  }
  return builder.node("node", op, names, its.options).output("node");
}

}  // namespace tutti::testing
