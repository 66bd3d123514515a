// Training strategies in JSON: tables of their names and fields, and one way to read and to write what they describe.
#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/strategy/training_strategy.hpp>

namespace tutti {
namespace strategy {
namespace {

using nlohmann::ordered_json;

// --- names, in the order of enumerators and alternatives ---

template <typename Enum>
constexpr std::array<const char*, 0> kEnumerators = {};
template <>
constexpr std::array kEnumerators<Consistency> = {"synchronous", "bounded_staleness", "asynchronous", "lock_free"};
template <>
constexpr std::array kEnumerators<Topology> = {"ring", "complete", "exponential", "torus", "random"};
template <>
constexpr std::array kEnumerators<Schedule> = {"gpipe", "1f1b", "interleaved"};

template <>
constexpr std::array kEnumerators<TooFew> = {"repeat", "end"};
template <>
constexpr std::array kEnumerators<MemberPart> = {"weights", "optimizer_state", "hyper_parameters"};
template <>
constexpr std::array kEnumerators<Pace> = {"in_step", "asynchronous"};

template <typename Variant>
struct Union {
  const char* tag;  // the key that tells the alternative
  std::array<const char*, std::variant_size_v<Variant>> names;
};

template <typename Variant>
constexpr Union<Variant> kUnion = {};
template <>
constexpr Union<TrainingStrategy> kUnion<TrainingStrategy> = {
    "type", {"Local", "DataParallel", "ModelParallel", "Federated", "PopulationBased", "Custom"}};
template <>
constexpr Union<Inner> kUnion<Inner> = {"type", {"Local", "DataParallel"}};
template <>
constexpr Union<GradientAggregation> kUnion<GradientAggregation> = {"method",
                                                                    {"AllReduce", "ParameterServer", "Decentralized"}};
template <>
constexpr Union<OuterRule> kUnion<OuterRule> = {"method", {"FedAvg", "FedYogi", "FedAvgM", "FedAdam", "FedAdagrad"}};
template <>
constexpr Union<CommunicationProtocol> kUnion<CommunicationProtocol> = {"protocol",
                                                                        {"DataStore", "Direct", "Pipeline"}};
template <>
constexpr Union<FederatedAggregation> kUnion<FederatedAggregation> = {
    "method",
    {"FedAvg", "FedProx", "FedYogi", "FedAvgM", "FedAdam", "FedAdagrad", "Median", "TrimmedMean", "Krum", "MultiKrum",
     "Bulyan", "NormClipping"}};
template <>
constexpr Union<ClientSelection> kUnion<ClientSelection> = {"method",
                                                            {"All", "Random", "ByCapability", "PowerOfChoice"}};
template <>
constexpr Union<LateUpdates> kUnion<LateUpdates> = {"method", {"Drop", "Discount"}};
template <>
constexpr Union<FederatedRound> kUnion<FederatedRound> = {"method", {"Synchronous", "Buffered"}};
template <>
constexpr Union<ExploitStrategy> kUnion<ExploitStrategy> = {"method", {"Truncation", "Binary", "WelchTTest", "None"}};
template <>
constexpr Union<ExploreStrategy> kUnion<ExploreStrategy> = {"method", {"Perturbation", "Resample", "Noise"}};

// --- fields, in the order of the document ---

struct Anything {};

struct OfUpdates {};  // of a compression: one that a message by itself can have

struct JsonText {};  // of a string: the text of a JSON value, which stands in the document as such

struct ListOf {
  const char* element;
  std::size_t min = 0;
};

enum class Presence { required, written, own };  // the latter two may be left out; own ones are, at their defaults

template <typename Struct, typename Member, typename Allowed>
struct Field {
  const char* key;
  Member Struct::*member;
  Allowed allowed;
  Presence presence;
};

template <typename Struct, typename Member, typename Allowed = Anything>
constexpr Field<Struct, Member, Allowed> field(const char* key, Member Struct::*member, Allowed allowed = {},
                                               Presence presence = Presence::required) {
  return {key, member, allowed, presence};
}

template <typename Struct, typename Member, typename Allowed = Anything>
constexpr Field<Struct, Member, Allowed> own(const char* key, Member Struct::*member, Allowed allowed = {}) {
  return {key, member, allowed, Presence::own};
}

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr IntegerRange from_one_to(std::int64_t max) { return {.min = 1, .max = max}; }
constexpr NumberRange kFromZero = {.min = 0};
constexpr NumberRange kAboveZero = {.min = 0, .min_excluded = true};
constexpr NumberRange kShare = {.min = 0, .max = 1, .min_excluded = true};
constexpr NumberRange kDecay = {.min = 0, .max = 1, .max_excluded = true};

template <typename Struct>
constexpr auto kFields = std::tuple();
template <>
constexpr auto kFields<AllReduce> = std::tuple(own("algorithm", &AllReduce::algorithm),
                                               own("compression", &AllReduce::compression),
                                               own("logical_shards", &AllReduce::logical_shards,
                                                   IntegerRange{.min = 0, .max = 65'536}));
template <>
constexpr auto kFields<ParameterServer> =
    std::tuple(own("consistency", &ParameterServer::consistency),
               own("max_staleness", &ParameterServer::max_staleness, IntegerRange{.min = 0, .max = kMaxInt}),
               own("rate_exponent", &ParameterServer::rate_exponent, NumberRange{.min = 0, .max = 10}),
               own("delay_compensation", &ParameterServer::delay_compensation, kFromZero));
template <>
constexpr auto kFields<Decentralized> = std::tuple(field("topology", &Decentralized::topology),
                                                   own("gossip", &Decentralized::gossip));
template <>
constexpr auto kFields<DataParallel> = std::tuple(field("num_replicas", &DataParallel::num_replicas,
                                                        from_one_to(65'536)),
                                                  field("aggregation", &DataParallel::aggregation),
                                                  own("sync_every", &DataParallel::sync_every, from_one_to(kMaxInt)),
                                                  own("outer", &DataParallel::outer));
template <>
constexpr auto kFields<Partition> = std::tuple(field("node_ids", &Partition::node_ids, ListOf{"node id", 1}),
                                               field("target", &Partition::target));
template <>
constexpr auto kFields<DataStore> = std::tuple(own("path", &DataStore::path));
template <>
constexpr auto kFields<Pipeline> = std::tuple(field("micro_batch_size", &Pipeline::micro_batch_size,
                                                    from_one_to(kMaxInt)),
                                              own("schedule", &Pipeline::schedule));
template <>
constexpr auto kFields<AutoPartition> = std::tuple(field("workers", &AutoPartition::workers, from_one_to(1024)));
template <>
constexpr auto kFields<ModelParallel> = std::tuple(own("auto_partition", &ModelParallel::auto_partition),
                                                   own("partitions", &ModelParallel::partitions, ListOf{"partition"}),
                                                   field("communication", &ModelParallel::communication),
                                                   own("recompute", &ModelParallel::recompute));
template <>
constexpr auto kFields<FedProx> = std::tuple(field("mu", &FedProx::mu, kFromZero));
template <>
constexpr auto kFields<FedYogi> = std::tuple(field("beta1", &FedYogi::beta1, kDecay),
                                             field("beta2", &FedYogi::beta2, kDecay),
                                             field("tau", &FedYogi::tau, kAboveZero),
                                             own("lr", &FedYogi::lr, kAboveZero));
template <>
constexpr auto kFields<FedAvgM> = std::tuple(own("momentum", &FedAvgM::momentum, kDecay),
                                             own("lr", &FedAvgM::lr, kAboveZero), own("nesterov", &FedAvgM::nesterov));
template <>
constexpr auto kFields<FedAdam> = std::tuple(own("lr", &FedAdam::lr, kAboveZero), own("beta1", &FedAdam::beta1, kDecay),
                                             own("beta2", &FedAdam::beta2, kDecay),
                                             own("tau", &FedAdam::tau, kAboveZero));
template <>
constexpr auto kFields<FedAdagrad> = std::tuple(own("lr", &FedAdagrad::lr, kAboveZero),
                                                own("tau", &FedAdagrad::tau, kAboveZero));
constexpr NumberRange kTrimmed = {.min = 0, .max = 0.5, .max_excluded = true};
constexpr IntegerRange kClients = {.min = 0, .max = 100'000'000};
template <>
constexpr auto kFields<TrimmedMean> = std::tuple(own("fraction", &TrimmedMean::fraction, kTrimmed));
template <>
constexpr auto kFields<Krum> = std::tuple(field("byzantine", &Krum::byzantine, kClients));
template <>
constexpr auto kFields<MultiKrum> = std::tuple(field("byzantine", &MultiKrum::byzantine, kClients),
                                               own("keep", &MultiKrum::keep, kClients));
template <>
constexpr auto kFields<Bulyan> = std::tuple(field("byzantine", &Bulyan::byzantine, kClients));
template <>
constexpr auto kFields<NormClipping> = std::tuple(field("max_norm", &NormClipping::max_norm, kAboveZero));
template <>
constexpr auto kFields<Random> = std::tuple(field("fraction", &Random::fraction, kShare));
template <>
constexpr auto kFields<ByCapability> = std::tuple(field("required_tags", &ByCapability::required_tags, ListOf{"tag"}));
template <>
constexpr auto kFields<PowerOfChoice> = std::tuple(field("fraction", &PowerOfChoice::fraction, kShare),
                                                   own("candidates", &PowerOfChoice::candidates, kShare));
template <>
constexpr auto kFields<Discount> = std::tuple(own("factor", &Discount::factor, kShare));
template <>
constexpr auto kFields<Synchronous> = std::tuple(own("replies", &Synchronous::replies, kClients),
                                                 own("ask_beyond", &Synchronous::ask_beyond, kClients),
                                                 own("deadline", &Synchronous::deadline, kFromZero),
                                                 own("late", &Synchronous::late), own("too_few", &Synchronous::too_few),
                                                 own("max_repeats", &Synchronous::max_repeats,
                                                     IntegerRange{.min = 0, .max = 1000}));
template <>
constexpr auto kFields<Buffered> = std::tuple(
    own("replies", &Buffered::replies, from_one_to(100'000'000)), own("concurrency", &Buffered::concurrency, kClients),
    own("staleness_exponent", &Buffered::staleness_exponent, NumberRange{.min = 0, .max = 10}),
    own("max_staleness", &Buffered::max_staleness, IntegerRange{.min = 0, .max = kMaxInt}));
template <>
constexpr auto kFields<LocalTraining> = std::tuple(own("epochs", &LocalTraining::epochs, from_one_to(kMaxInt)),
                                                   own("steps", &LocalTraining::steps, from_one_to(kMaxInt)));
template <>
constexpr auto kFields<Federated> =
    std::tuple(field("num_clients", &Federated::num_clients, from_one_to(100'000'000)),
               field("rounds", &Federated::rounds, from_one_to(kMaxInt)), field("aggregation", &Federated::aggregation),
               field("client_selection", &Federated::client_selection), own("inner", &Federated::inner),
               own("round", &Federated::round), own("local", &Federated::local),
               own("compression", &Federated::compression, OfUpdates{}),
               own("max_update_norm", &Federated::max_update_norm, kFromZero),
               own("threads", &Federated::threads, IntegerRange{.min = 0, .max = 1024}));
template <>
constexpr auto kFields<Truncation> = std::tuple(field("fraction", &Truncation::fraction, kShare));
template <>
constexpr auto kFields<Binary> = std::tuple(field("threshold", &Binary::threshold, kFromZero));
constexpr NumberRange kLikelihood = {.min = 0, .max = 1};
template <>
constexpr auto kFields<WelchTTest> =
    std::tuple(own("significance", &WelchTTest::significance,
                   NumberRange{.min = 0, .max = 1, .min_excluded = true, .max_excluded = true}),
               own("scores", &WelchTTest::scores, IntegerRange{.min = 2, .max = 1'000'000}));
template <>
constexpr auto kFields<Perturbation> = std::tuple(field("factor", &Perturbation::factor, kShare),
                                                  own("resample", &Perturbation::resample, kLikelihood));
template <>
constexpr auto kFields<Noise> = std::tuple(field("sigma", &Noise::sigma,
                                                 NumberRange{.min = 0, .max = 1000, .min_excluded = true}),
                                           own("resample", &Noise::resample, kLikelihood));
template <>
constexpr auto kFields<GenerationLength> = std::tuple(own("epochs", &GenerationLength::epochs, from_one_to(kMaxInt)),
                                                      own("steps", &GenerationLength::steps, from_one_to(kMaxInt)));
template <>
constexpr auto kFields<PopulationBased> =
    std::tuple(field("population_size", &PopulationBased::population_size, from_one_to(1'000'000)),
               field("generations", &PopulationBased::generations, from_one_to(kMaxInt)),
               field("exploit", &PopulationBased::exploit), field("explore", &PopulationBased::explore),
               own("inner", &PopulationBased::inner), own("generation", &PopulationBased::generation),
               own("copy", &PopulationBased::copy, ListOf{"part", 1}), own("pace", &PopulationBased::pace),
               own("threads", &PopulationBased::threads, IntegerRange{.min = 0, .max = 1024}),
               own("idle", &PopulationBased::idle, IntegerRange{.min = 0, .max = 1'000'000}));
template <>
constexpr auto kFields<Custom> = std::tuple(field("coordinator", &Custom::coordinator),
                                            field("config", &Custom::config, JsonText{}, Presence::written));

template <typename Struct, typename Call>
void for_each_field(const Call& call) {
  std::apply([&](const auto&... fields) { (call(fields), ...); }, kFields<Struct>);
}

// --- what must hold between fields ---

template <typename Struct>
void refuse_unless_consistent(const Struct&, const JsonValue&) {}

void refuse_unless_consistent(const AllReduce& its, const JsonValue& object) {
  const bool is_direct =
      std::holds_alternative<Auto>(its.algorithm) && std::holds_alternative<NoCompression>(its.compression);
  if (its.logical_shards == 0 || is_direct) return;
  throw object.at("logical_shards")
      .error(fmt::format("the same bits on any number of replicas need the algorithm Auto and no compression, "
                         "found {} and {}",
                         to_string(its.algorithm), to_string(its.compression)));
}

// A field says what would not be done.
void refuse_idle(const JsonValue& object, const char* key, bool is_idle, const std::string& why) {
  if (const auto value = object.find(key); value && is_idle) throw value->error(why);
}

void refuse_unless_consistent(const ParameterServer& its, const JsonValue& object) {
  const std::string found = fmt::format(", found {}", consistency_name(its.consistency));
  refuse_idle(object, "max_staleness", its.consistency != Consistency::bounded_staleness,
              "it belongs to the consistency bounded_staleness" + found);
  const bool has_versions =
      its.consistency == Consistency::bounded_staleness || its.consistency == Consistency::asynchronous;
  for (const char* key : {"rate_exponent", "delay_compensation"})
    refuse_idle(object, key, !has_versions,
                "gradients have an age with the consistency bounded_staleness or asynchronous" + found);
}

void refuse_unless_consistent(const DataParallel& its, const JsonValue& object) {
  const AllReduce* all_reduce = std::get_if<AllReduce>(&its.aggregation);
  if (all_reduce != nullptr && all_reduce->logical_shards > 0 && all_reduce->logical_shards < its.num_replicas)
    throw object.at("aggregation")
        .at("logical_shards")
        .expected(fmt::format("at least one for each of {} replicas", its.num_replicas));
  refuse_idle(object, "outer", its.sync_every == 1,
              "it says what becomes of replicas that take steps by themselves, and needs a sync_every above 1");
  if (its.sync_every == 1) return;
  if (all_reduce == nullptr)
    throw object.at("sync_every").error("replicas that take steps by themselves need the aggregation AllReduce");
  if (!std::holds_alternative<NoCompression>(all_reduce->compression) || all_reduce->logical_shards > 0)
    throw object.at("sync_every")
        .error("replicas that take steps by themselves need an aggregation without compression and logical_shards");
}

// Strings of which each may be given once.
class Given {
 public:
  void add(const JsonValue& value, std::string_view what, std::string place) {
    const auto [first, is_new] = places_.emplace(value.string(), std::move(place));
    if (!is_new) throw value.expected(fmt::format("another {} than at {}", what, first->second));
  }

 private:
  std::map<std::string, std::string> places_;
};

void refuse_unless_consistent(const ByCapability& its, const JsonValue& object) {
  Given given;
  const JsonValue tags = object.at("required_tags");
  for (std::size_t i = 0; i < its.required_tags.size(); ++i)
    given.add(tags.element(i), "tag", fmt::format("required_tags[{}]", i));
}

void refuse_unless_consistent(const ModelParallel& its, const JsonValue& object) {
  const bool are_found = its.auto_partition.workers > 0;
  if (are_found && its.partitions.empty()) return;
  if (are_found)
    throw object.at("auto_partition").error("it finds partitions, and there are some; expected one of the two");
  Given given;
  const JsonValue partitions = object.at("partitions");
  if (its.partitions.empty()) throw partitions.expected("at least one partition");
  for (std::size_t i = 0; i < its.partitions.size(); ++i) {
    const JsonValue node_ids = partitions.element(i).at("node_ids");
    for (std::size_t j = 0; j < its.partitions[i].node_ids.size(); ++j)
      given.add(node_ids.element(j), "node", fmt::format("partitions[{}].node_ids[{}]", i, j));
  }
}

void refuse_unless_consistent(const PowerOfChoice& its, const JsonValue& object) {
  if (its.candidates >= its.fraction) return;
  throw(object.find("candidates") ? object.at("candidates") : object.at("fraction"))
      .error(fmt::format("expected candidates of at least the fraction that is chosen of them, found {} and {}",
                         its.candidates, its.fraction));
}

// Epochs or steps.
template <typename Length>
void refuse_both_lengths(const Length& its, const JsonValue& object) {
  if (its.steps > 0 && object.find("epochs"))
    throw object.at("steps").error("there are epochs, too; expected one of the two");
}
void refuse_unless_consistent(const LocalTraining& its, const JsonValue& object) { refuse_both_lengths(its, object); }
void refuse_unless_consistent(const GenerationLength& its, const JsonValue& object) {
  refuse_both_lengths(its, object);
}

void refuse_unless_consistent(const PopulationBased& its, const JsonValue& object) {
  // Steps are counted, and an epoch may have a thousand million of them.
  if (its.generation.epochs > kMaxInt / its.generations)
    throw object.at("generation")
        .at("epochs")
        .error(fmt::format("expected at most {} epochs in all generations, found {}", kMaxInt,
                           its.generation.epochs * its.generations));
  const std::optional<JsonValue> parts = object.find("copy");
  if (!parts) return;
  Given given;
  for (std::size_t i = 0; i < its.copy.size(); ++i) given.add(parts->element(i), "part", fmt::format("copy[{}]", i));
  if (contains(its.copy, MemberPart::optimizer_state) && !contains(its.copy, MemberPart::weights))
    throw parts->error("the state of an optimizer belongs to weights; expected these, too");
}

void refuse_unless_consistent(const Federated& its, const JsonValue& object) {
  if (std::holds_alternative<PowerSgd>(its.compression))
    throw object.at("compression")
        .error("PowerSgd is for replicas that exchange factors in every step; expected Float16, BFloat16 or TopK");
  const auto refuse_more = [&](const char* key, std::int64_t found) {
    if (found > its.num_clients)
      throw object.at("round").at(key).error(
          fmt::format("expected at most as many as there are clients, {}, found {}", its.num_clients, found));
  };
  if (const auto* round = std::get_if<Synchronous>(&its.round)) refuse_more("replies", round->replies);
  if (const auto* round = std::get_if<Buffered>(&its.round)) refuse_more("concurrency", round->concurrency);
}

// --- reading ---

template <typename... Alternatives>
void read(const JsonValue& value, std::variant<Alternatives...>& result, Anything);

template <typename Struct>
void read_struct(const JsonValue& object, Struct& result, std::vector<std::string> known_keys);

template <std::size_t kCount>
std::size_t read_choice(const JsonValue& value, const std::array<const char*, kCount>& names) {
  const std::string& name = value.one_of({names.begin(), names.end()});
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

template <typename Enum>
requires std::is_enum_v<Enum>
void read(const JsonValue& value, Enum& result, Anything) {
  result = static_cast<Enum>(read_choice(value, kEnumerators<Enum>));
}

template <typename Integer>
void read(const JsonValue& value, Integer& result, IntegerRange range) {
  result = static_cast<Integer>(value.integer(range));
}

void read(const JsonValue& value, bool& result, Anything) { result = value.boolean(); }

void read(const JsonValue& value, double& result, NumberRange range) { result = value.number(range); }

void read(const JsonValue& value, std::string& result, Anything) {
  if (!value.is_string() || value.string().empty()) throw value.expected("a string that is not empty");
  result = value.string();
}

void read(const JsonValue& value, std::string& result, JsonText) { result = value.raw().dump(); }

void read(const JsonValue& value, AllReduceStrategy& result, Anything) {
  result = all_reduce_strategy_from_json(value);
}

void read(const JsonValue& value, Compression& result, Anything) { result = compression_from_json(value); }

void read(const JsonValue& value, Compression& result, OfUpdates) {
  result = compression_from_json(value, {NoCompression{}, TopK{}, Float16{}, BFloat16{}});
}

void read(const JsonValue& value, RemoteTarget& result, Anything) {
  if (value.is_object()) value.refuse_other_keys({"WorkerId", "Tag"});
  if (!value.is_object() || value.keys().size() != 1)
    throw value.expected(R"({"WorkerId": "w0"} or {"Tag": "gpu"}, one of the two)");
  if (const auto tag = value.find("Tag"))
    read(*tag, result.emplace<Tag>().tag, Anything{});
  else
    read(value.at("WorkerId"), result.emplace<WorkerId>().id, Anything{});
}

void read(const JsonValue& value, Partition& result, Anything) { read_struct(value, result, {}); }

void read(const JsonValue& value, AutoPartition& result, Anything) {
  if (!value.is_object()) throw value.expected(R"(how many workers, as in {"workers": 2})");
  read_struct(value, result, {});
}

void read(const JsonValue& value, LocalTraining& result, Anything) {
  if (!value.is_object()) throw value.expected(R"(how long a client trains in a round, as in {"epochs": 5})");
  read_struct(value, result, {});
}

void read(const JsonValue& value, GenerationLength& result, Anything) {
  if (!value.is_object()) throw value.expected(R"(how long a generation is, as in {"epochs": 5})");
  read_struct(value, result, {});
}

template <typename Element>
void read(const JsonValue& value, std::vector<Element>& result, ListOf list) {
  if (value.size() < list.min) throw value.expected(fmt::format("at least one {}", list.element));
  result.clear();
  for (const JsonValue& element : value.elements()) read(element, result.emplace_back(), Anything{});
}

template <typename Struct>
void read_struct(const JsonValue& object, Struct& result, std::vector<std::string> known_keys) {
  for_each_field<Struct>([&](const auto& field) {
    known_keys.emplace_back(field.key);
    const auto value = field.presence == Presence::required ? object.at(field.key) : object.find(field.key);
    if (value) read(*value, result.*field.member, field.allowed);
  });
  object.refuse_other_keys(known_keys);
  refuse_unless_consistent(result, object);
}

// Of a value that must have it; otherwise the error lists what it may be.
template <typename Variant>
JsonValue tag_of(const JsonValue& value) {
  constexpr auto& names = kUnion<Variant>.names;
  const std::string tag = kUnion<Variant>.tag;
  if (const auto its = value.is_object() ? value.find(tag) : std::nullopt) return *its;
  const std::string allowed =
      fmt::format("\"{}\" or \"{}\"", fmt::join(names.begin(), names.end() - 1, "\", \""), names.back());
  if (!value.is_object()) throw value.expected(fmt::format("an object with the key \"{}\": {}", tag, allowed));
  const auto meant = nearest_name(tag, value.keys());
  throw value.error(fmt::format("missing key \"{}\": {}{}", tag, allowed,
                                meant ? fmt::format("; is {} meant to be it?", ordered_json(*meant).dump()) : ""));
}

template <typename Variant, typename Alternative>
void read_alternative(const JsonValue& object, Variant& result) {
  read_struct(object, result.template emplace<Alternative>(), {kUnion<Variant>.tag});
}

template <typename... Alternatives>
void read(const JsonValue& value, std::variant<Alternatives...>& result, Anything) {
  using Variant = std::variant<Alternatives...>;
  constexpr std::array readers = {&read_alternative<Variant, Alternatives>...};
  readers[read_choice(tag_of<Variant>(value), kUnion<Variant>.names)](value, result);
}

// --- writing ---

template <typename... Alternatives>
ordered_json write(const std::variant<Alternatives...>& value, Anything);

template <typename Struct>
void write_struct(const Struct& value, ordered_json& object);

template <typename Scalar, typename Allowed>
ordered_json write(const Scalar& value, Allowed) {
  return value;
}

// One that is none stays a number, for whoever reads it to refuse.
template <typename Enum>
requires std::is_enum_v<Enum> ordered_json write(Enum value, Anything) {
  const auto index = static_cast<std::size_t>(value);
  return index < kEnumerators<Enum>.size() ? ordered_json(kEnumerators<Enum>[index]) : ordered_json(index);
}

ordered_json write(const std::string& value, JsonText) {
  return JsonDocument::parse(value, "Custom.config").root().raw();
}

ordered_json write(const AllReduceStrategy& value, Anything) { return to_json(value); }

ordered_json write(const Compression& value, Anything) { return to_json(value); }
ordered_json write(const Compression& value, OfUpdates) { return to_json(value); }

ordered_json write(const RemoteTarget& value, Anything) {
  if (const Tag* tag = std::get_if<Tag>(&value)) return ordered_json::object({{"Tag", tag->tag}});
  return ordered_json::object({{"WorkerId", std::get<WorkerId>(value).id}});
}

template <typename Struct>
ordered_json write_object(const Struct& value) {
  ordered_json object = ordered_json::object();
  write_struct(value, object);
  return object;
}

ordered_json write(const Partition& value, Anything) { return write_object(value); }

ordered_json write(const AutoPartition& value, Anything) { return write_object(value); }

ordered_json write(const LocalTraining& value, Anything) { return write_object(value); }

ordered_json write(const GenerationLength& value, Anything) { return write_object(value); }

template <typename Element>
ordered_json write(const std::vector<Element>& value, ListOf) {
  ordered_json array = ordered_json::array();
  for (const Element& element : value) array.push_back(write(element, Anything{}));
  return array;
}

template <typename Struct>
void write_struct(const Struct& value, ordered_json& object) {
  for_each_field<Struct>([&](const auto& field) {
    const auto& member = value.*field.member;
    if (field.presence == Presence::own && member == Struct{}.*field.member) return;
    object[field.key] = write(member, field.allowed);
  });
}

template <typename... Alternatives>
ordered_json write(const std::variant<Alternatives...>& value, Anything) {
  constexpr auto& its_union = kUnion<std::variant<Alternatives...>>;
  ordered_json object = ordered_json::object({{its_union.tag, its_union.names[value.index()]}});
  std::visit([&](const auto& alternative) { write_struct(alternative, object); }, value);
  return object;
}

}  // namespace

std::string_view schedule_name(Schedule schedule) { return kEnumerators<Schedule>[static_cast<std::size_t>(schedule)]; }

std::string_view consistency_name(Consistency consistency) {
  return kEnumerators<Consistency>[static_cast<std::size_t>(consistency)];
}

std::string_view topology_name(Topology topology) { return kEnumerators<Topology>[static_cast<std::size_t>(topology)]; }

}  // namespace strategy

std::string_view strategy::part_name(MemberPart part) {
  return kEnumerators<MemberPart>[static_cast<std::size_t>(part)];
}

std::string_view name_of(const TrainingStrategy& strategy) {
  return strategy::kUnion<TrainingStrategy>.names[strategy.index()];
}

nlohmann::ordered_json to_json(const TrainingStrategy& strategy) {
  return strategy::write(strategy, strategy::Anything{});
}

TrainingStrategy training_strategy_from_json(const JsonValue& value) {
  TrainingStrategy result;
  strategy::read(value, result, strategy::Anything{});
  return result;
}

}  // namespace tutti
