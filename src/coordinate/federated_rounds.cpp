#include <tutti/coordinate/federated_rounds.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/coordinate/client_selection.hpp>
#include <tutti/coordinate/update_check.hpp>

namespace tutti {
namespace {

using TaskKind = ClientTask::Kind;

constexpr std::size_t kMostProblems = 5;

// Where answers of a kind come in one by one: their numbers weighted by rows.
class WeightedByRows {
 public:
  void add(const ClientReply& reply) {
    const auto rows = static_cast<double>(reply.rows);
    rows_ += rows;
    loss_ += rows * reply.loss;
    for (const NamedNumber& metric : reply.metrics) {
      if (!std::isfinite(metric.value)) continue;  // of a client with nothing to measure
      auto its = std::ranges::find(sums_, metric.name, &Sum::name);
      if (its == sums_.end()) its = sums_.insert(sums_.end(), {metric.name, 0, 0});
      its->sum += rows * metric.value;
      its->rows += rows;
    }
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(rows_); }
  double loss() const { return loss_ / rows_; }  // no number, where there was nothing to add
  std::vector<NamedNumber> metrics() const {
    std::vector<NamedNumber> metrics;
    for (const Sum& its : sums_) metrics.push_back({its.name, its.sum / its.rows});
    return metrics;
  }

 private:
  struct Sum {
    std::string name;
    double sum = 0;
    double rows = 0;
  };

  double rows_ = 0;
  double loss_ = 0;
  std::vector<Sum> sums_;
};

void note_problem(RoundReport& report, std::string sentence) {
  if (report.problems.size() < kMostProblems) report.problems.push_back(std::move(sentence));
}

// How many clients sent nothing of use.
std::string tell_failures(const RoundReport& report) {
  const std::string dropped_out =
      report.dropped_out > 0 ? fmt::format(", of which {} dropped out", report.dropped_out) : "";
  return fmt::format("{} failed{}, {} refused", report.failed, dropped_out, report.refused);
}

// Where training has gone astray with every client that answered.
std::string guess_why(const RoundReport& report) {
  const bool have_all = report.updates == 0 && report.astray > 0 && report.astray == report.refused;
  return have_all ? "; is the learning rate too large?" : "";
}

// `advice` where the file may have meant something else.
[[noreturn]] void throw_too_few(const RoundReport& report, const std::string& why, std::string_view advice) {
  std::string others;
  for (const std::string& problem : report.problems) {
    if (problem.starts_with("client")) others += fmt::format("; {}", problem);
  }
  throw Error(fmt::format("round {}: {}{}{}{}{}", report.round, why,
                          report.repeats > 0 ? fmt::format(", and was repeated {} times", report.repeats) : "", others,
                          guess_why(report), advice));
}

// So many that the rule can be carried out, and leaves out what it is to leave out.
double least_in_earnest(const strategy::FederatedAggregation& rule) {
  const auto least = static_cast<double>(least_updates(rule));
  if (const auto* trimmed = std::get_if<strategy::TrimmedMean>(&rule); trimmed != nullptr && trimmed->fraction > 0)
    return std::max(least, std::ceil(1 / trimmed->fraction - 1e-9));
  if (const auto* best = std::get_if<strategy::MultiKrum>(&rule))
    return std::max(least, static_cast<double>(best->keep) + static_cast<double>(best->byzantine));
  return least;
}

void refuse_idle_rule(const strategy::FederatedAggregation& rule, std::int64_t updates) {
  refuse_too_few(rule, updates);
  const auto* trimmed = std::get_if<strategy::TrimmedMean>(&rule);
  const double least = least_in_earnest(rule);
  if (static_cast<double>(updates) >= least) return;
  if (trimmed != nullptr)
    throw UsageError(fmt::format("TrimmedMean: expected at least {:.6g} updates, of which {} leaves one out, found {}",
                                 least, trimmed->fraction, updates));
  const auto& best = std::get<strategy::MultiKrum>(rule);
  throw UsageError(
      fmt::format("MultiKrum: expected to keep at most {} of {} updates, {} of which may be hostile, found {}",
                  updates - best.byzantine, updates, best.byzantine, best.keep));
}

double mu_of(const strategy::FederatedAggregation& rule) {
  const auto* proximal = std::get_if<strategy::FedProx>(&rule);
  return proximal == nullptr ? 0 : proximal->mu;
}

}  // namespace

// The updates of a round, until they are made one change. Of rules that can take them one by one nothing is kept.
class FederatedRounds::Gathering {
 public:
  explicit Gathering(const FederatedRoundsOptions& options) : rule_(options.strategy.aggregation) {
    const auto* clipping = std::get_if<strategy::NormClipping>(&rule_);
    mean_ = MeanOfUpdates(clipping == nullptr ? 0 : clipping->max_norm, options.is_trained);
  }

  void add(ClientReply reply, double discount) {
    numbers_.add(reply);
    if (is_mean(rule_)) {
      mean_.add(update_of(reply, discount));
    } else {
      replies_.push_back(std::move(reply));
      discounts_.push_back(discount);
    }
  }

  const WeightedByRows& numbers() const { return numbers_; }

  Change change(const std::vector<bool>& is_trained) const {
    if (is_mean(rule_)) return mean_.result();
    std::vector<ClientUpdate> updates;
    for (std::size_t i = 0; i < replies_.size(); ++i) updates.push_back(update_of(replies_[i], discounts_[i]));
    return aggregate(rule_, updates, is_trained);
  }

 private:
  static ClientUpdate update_of(const ClientReply& reply, double discount) {
    return {.client = reply.task.client,
            .weight = static_cast<double>(reply.rows),
            .discount = discount,
            .values = &reply.values,
            .base = reply.is_change ? nullptr : reply.task.parameters.get()};
  }

  strategy::FederatedAggregation rule_;
  MeanOfUpdates mean_;
  std::vector<ClientReply> replies_;
  std::vector<double> discounts_;
  WeightedByRows numbers_;
};

void refuse_impossible(const strategy::Federated& strategy, const ClientCounts& clients) {
  const std::int64_t chosen = chosen_count(strategy.client_selection, clients);
  if (const auto* round = std::get_if<strategy::Synchronous>(&strategy.round)) {
    // Tags, not the round, say how many can be asked.
    const bool is_bounded = std::holds_alternative<strategy::All>(strategy.client_selection) ||
                            std::holds_alternative<strategy::ByCapability>(strategy.client_selection);
    const std::int64_t most = is_bounded ? chosen : std::min(clients.all, chosen + round->ask_beyond);
    if (round->replies > most)
      throw UsageError(
          fmt::format("a round needs {} updates, and asks {} clients: it could never end", round->replies, most));
    refuse_idle_rule(strategy.aggregation, round->replies > 0 ? round->replies : chosen);
    return;
  }
  const std::int64_t replies = std::get<strategy::Buffered>(strategy.round).replies;
  refuse_idle_rule(strategy.aggregation, replies);
  if (!is_mean(strategy.aggregation) && replies > clients.with_tags)
    throw UsageError(fmt::format("a change is made of {} updates, each of another client, and there are {} clients",
                                 replies, clients.with_tags));
  if (std::holds_alternative<strategy::PowerOfChoice>(strategy.client_selection))
    throw UsageError("PowerOfChoice chooses among the clients of a round, and in Buffered they come one by one");
}

FederatedRounds::FederatedRounds(ParameterSet parameters, ClientPool& pool, FederatedRoundsOptions options)
    : pool_(pool),
      options_(std::move(options)),
      parameters_(std::make_shared<const ParameterSet>(std::move(parameters))),
      optimizer_(options_.strategy.aggregation, options_.is_trained) {
  const strategy::Federated& its = options_.strategy;
  validate(TrainingStrategy(its));
  const std::int64_t clients = std::ssize(pool_.clients());
  if (clients != its.num_clients)
    throw UsageError(fmt::format("expected {} clients, as num_clients says, found {}", its.num_clients, clients));
  if (!options_.is_trained.empty() && options_.is_trained.size() != parameters_->size())
    throw UsageError(fmt::format("is_trained: expected one for each of {} arrays, found {}", parameters_->size(),
                                 options_.is_trained.size()));
  if (!std::holds_alternative<NoCompression>(its.compression) && its.compression != pool_.compression())
    throw UsageError(fmt::format("compression: expected that of the clients' pool, {}, found {}",
                                 to_string(pool_.compression()), to_string(its.compression)));
  const ClientCounts counts = count_clients(its.client_selection, pool_.clients());
  refuse_impossible(its, counts);
  chosen_ = chosen_count(its.client_selection, counts);
  least_ = static_cast<std::int64_t>(least_in_earnest(its.aggregation));
}

RoundReport FederatedRounds::run(double rate_factor) {
  if (const auto* round = std::get_if<strategy::Synchronous>(&options_.strategy.round))
    return run_synchronous(*round, rate_factor);
  return run_buffered(std::get<strategy::Buffered>(options_.strategy.round), rate_factor);
}

std::vector<std::int64_t> FederatedRounds::choose(std::int64_t count, const Choice& choice, RoundReport& report) {
  const strategy::ClientSelection& selection = options_.strategy.client_selection;
  const auto may_be_asked = [&](std::int64_t client) {
    return pool_.is_free(client) && (choice.have_sent == nullptr || !choice.have_sent->contains(client));
  };
  const SelectionInputs inputs{.clients = pool_.clients(),
                               .is_free = may_be_asked,
                               .seed = options_.seed,
                               .call = static_cast<std::uint64_t>(call_)};
  const auto* by_loss = std::get_if<strategy::PowerOfChoice>(&selection);
  if (by_loss == nullptr) return draw_clients(selection, count, inputs);
  const std::vector<std::int64_t> candidates =
      draw_clients(selection, candidate_count(*by_loss, std::ssize(pool_.clients()), count), inputs);
  std::vector<std::int64_t> answered;
  std::vector<double> losses;
  for (const ClientReply& reply : evaluations_of(candidates, choice.until, report)) {
    answered.push_back(reply.task.client);
    losses.push_back(reply.loss);
  }
  return choose_by_loss(answered, losses, count);
}

std::int64_t FederatedRounds::count_free() const {
  const std::vector<ClientInfo>& clients = pool_.clients();
  std::int64_t free = 0;
  for (std::size_t client = 0; client < clients.size(); ++client) {
    if (has_tags(options_.strategy.client_selection, clients[client].tags) &&
        pool_.is_free(static_cast<std::int64_t>(client)))
      ++free;
  }
  return free;
}

void FederatedRounds::ask(const std::vector<std::int64_t>& clients, double rate_factor, RoundReport& report) {
  for (const std::int64_t client : clients) {
    report.bytes_down += pool_.ask({.client = client,
                                    .kind = TaskKind::fit,
                                    .version = version_,
                                    .call = call_,
                                    .parameters = parameters_,
                                    .instructions = {.round = version_ + 1,
                                                     .draw = call_,
                                                     .rate_factor = rate_factor,
                                                     .mu = mu_of(options_.strategy.aggregation),
                                                     .local = options_.strategy.local}});
    ++under_way_;
  }
  report.asked += std::ssize(clients);
}

// A pool of somebody's own may be wrong.
std::optional<ClientReply> FederatedRounds::next_of_pool(double until) {
  std::optional<ClientReply> reply = pool_.next(until);
  if (!reply) return reply;
  const ClientTask& task = reply->task;
  const std::int64_t clients = std::ssize(pool_.clients());
  if (task.client < 0 || task.client >= clients)
    throw Error(fmt::format("the pool has an answer of client {}, and there are {}", task.client, clients));
  if (task.version < 0 || task.version > version_)
    throw Error(fmt::format("the pool has an answer of client {} to version {} of the model, which is at {}",
                            task.client, task.version, version_));
  return reply;
}

std::optional<ClientReply> FederatedRounds::next_fit(double until) {
  if (!early_.empty()) {
    ClientReply reply = std::move(early_.front());
    early_.erase(early_.begin());
    return reply;
  }
  while (std::optional<ClientReply> reply = next_of_pool(until)) {
    if (reply->task.kind != TaskKind::fit) continue;  // of candidates whom nobody waits for any more
    --under_way_;
    return reply;
  }
  return std::nullopt;
}

bool FederatedRounds::is_good(const ClientReply& reply, RoundReport& report) const {
  report.bytes_up += reply.bytes;
  report.rows += std::clamp<std::int64_t>(reply.trained, 0, kMostClientRows);
  if (!reply.failure.empty()) {
    ++report.failed;
    if (reply.has_dropped_out) ++report.dropped_out;
    if (!reply.is_staged) note_problem(report, fmt::format("client {} failed: {}", reply.task.client, reply.failure));
    return false;
  }
  const auto refused = why_refused(reply, {.expected = parameters_.get(),
                                           .max_norm = options_.strategy.max_update_norm,
                                           .rows = pool_.clients()[static_cast<std::size_t>(reply.task.client)].rows,
                                           .is_trained = options_.is_trained});
  if (refused) {
    ++report.refused;
    if (has_gone_astray(reply)) ++report.astray;
    note_problem(report, fmt::format("client {} was refused: {}", reply.task.client, *refused));
  }
  return !refused;
}

RoundReport FederatedRounds::run_synchronous(const strategy::Synchronous& round, double rate_factor) {
  RoundReport report{.round = version_ + 1};
  const auto* discount = std::get_if<strategy::Discount>(&round.late);
  const bool takes_one_by_one = is_mean(options_.strategy.aggregation);
  Gathering gathering(options_);
  const auto take_late = [&](ClientReply reply) {
    ++report.late;
    const auto rounds_late = static_cast<double>(version_ - reply.task.version);
    gathering.add(std::move(reply), std::pow(discount->factor, rounds_late));
  };
  // Of earlier rounds: one of a client at most, who is then free for this one. A mean takes them at once.
  std::vector<ClientReply> late;
  std::set<std::int64_t> have_sent;  // clients whose updates the round has; a repetition asks others
  std::int64_t needed = 0;
  std::int64_t open = 0;  // who were asked in this round and have not answered
  const double began = pool_.now();
  const std::int64_t first_call = call_ + 1;
  for (;; ++report.repeats) {
    ++call_;
    const double until = round.deadline > 0 ? pool_.now() + round.deadline : ClientPool::kNever;
    const std::int64_t count = chosen_ + round.ask_beyond - std::ssize(have_sent) - open;
    if (report.repeats == 0) {
      // Who is still at work for an earlier round cannot be asked; a round of all clients then needs fewer.
      const std::int64_t chosen = round.replies > 0 ? round.replies : std::min(chosen_, count_free());
      needed = std::max({chosen, least_, std::int64_t{1}});
    }
    const std::vector<std::int64_t> clients =
        count > 0 ? choose(count, {.have_sent = &have_sent, .until = until}, report) : std::vector<std::int64_t>();
    ask(clients, rate_factor, report);
    open += std::ssize(clients);
    // Where nobody could be asked it waits for one who is at work for an earlier round, so as to ask him next.
    bool is_one_free = false;
    const auto awaits_earlier = [&] { return clients.empty() && !is_one_free && (under_way_ > 0 || !early_.empty()); };
    while (std::ssize(have_sent) < needed && (open > 0 || awaits_earlier())) {
      std::optional<ClientReply> reply = next_fit(until);
      if (!reply) break;
      const bool is_of_now = reply->task.call >= first_call;
      if (is_of_now)
        --open;
      else
        is_one_free = true;
      if (!is_good(*reply, report)) continue;
      if (is_of_now) {
        have_sent.insert(reply->task.client);
        gathering.add(std::move(*reply), 1);
      } else if (discount == nullptr) {
        ++report.dropped;
      } else if (takes_one_by_one) {
        take_late(std::move(*reply));
      } else {
        late.push_back(std::move(*reply));
      }
    }
    if (std::ssize(have_sent) >= needed) break;
    const std::string still_open =
        open > 0 ? fmt::format(", {} not yet answered after {:.6g} s", open, pool_.now() - began) : "";
    const std::string why =
        fmt::format("it had {} of the {} good updates that it needs, from {} that were asked ({}{})", have_sent.size(),
                    needed, report.asked, tell_failures(report), still_open);
    report.updates = std::ssize(have_sent);
    if (round.too_few == strategy::TooFew::end || report.repeats >= round.max_repeats) {
      const bool needs_all = round.replies == 0 && !have_sent.empty();
      throw_too_few(report, why, needs_all ? "; \"replies\" can say how many of those that are chosen are enough" : "");
    }
    note_problem(report, fmt::format("round {}: {}; it is repeated", report.round, why));
  }
  for (ClientReply& reply : late) {
    // The rule counts each client as one: its newer update has taken the place of this.
    if (have_sent.contains(reply.task.client))
      ++report.dropped;
    else
      take_late(std::move(reply));
  }
  report.updates = std::ssize(have_sent) + report.late;
  apply(gathering, report);
  return report;
}

RoundReport FederatedRounds::run_buffered(const strategy::Buffered& round, double rate_factor) {
  RoundReport report{.round = version_ + 1};
  const std::int64_t concurrency = round.concurrency > 0 ? round.concurrency : chosen_;
  // So many in a row that nothing will come of it.
  const std::int64_t most_failures = 100 + 10 * concurrency;
  std::int64_t failures = 0;
  Gathering gathering(options_);
  std::set<std::int64_t> have_sent;  // where the rule counts each client once, it asks those whom it has not heard
  while (report.updates < round.replies) {
    if (under_way_ + std::ssize(early_) < concurrency) {
      ++call_;
      const std::int64_t more = concurrency - under_way_ - std::ssize(early_);
      ask(choose(more, {.have_sent = &have_sent}, report), rate_factor, report);
    }
    std::optional<ClientReply> reply = next_fit(ClientPool::kNever);
    if (!reply) throw Error(fmt::format("round {}: there is no client left to wait for", report.round));
    const std::int64_t staleness = version_ - reply->task.version;
    const bool is_too_old = round.max_staleness > 0 && staleness > round.max_staleness;
    const bool is_taken = is_good(*reply, report);
    if (is_taken && !is_too_old) {
      ++report.updates;
      if (staleness > 0) ++report.late;
      if (!is_mean(options_.strategy.aggregation)) have_sent.insert(reply->task.client);
      gathering.add(std::move(*reply), std::pow(1 + static_cast<double>(staleness), -round.staleness_exponent));
      failures = 0;
      continue;
    }
    if (is_taken) ++report.dropped;
    if (++failures < most_failures) continue;
    throw Error(fmt::format(
        "round {}: it had {} of the {} good updates that it needs{}, and the last {} answers were no good (of all {}, "
        "{} "
        "too old){}{}",
        report.round, report.updates, round.replies,
        is_mean(options_.strategy.aggregation) ? "" : ", each of another client", failures, tell_failures(report),
        report.dropped, report.problems.empty() ? "" : "; " + report.problems.front(), guess_why(report)));
  }
  apply(gathering, report);
  return report;
}

void FederatedRounds::apply(Gathering& gathering, RoundReport& report) {
  const Change change = gathering.change(options_.is_trained);
  auto changed = std::make_shared<ParameterSet>(*parameters_);
  OuterOptimizer stepped = optimizer_;
  stepped.step(*changed, change);
  for (std::size_t i = 0; i < changed->size(); ++i) {
    if (stays_finite((*changed)[i], &(*parameters_)[i])) continue;
    throw Error(
        fmt::format("round {}: \"{}\" would no longer have finite numbers; the updates, or what the rule makes of "
                    "them, are too large",
                    report.round, (*changed)[i].name()));
  }
  optimizer_ = std::move(stepped);
  parameters_ = std::move(changed);
  ++version_;
  report.seconds = pool_.now();
  report.loss = gathering.numbers().loss();
  report.metrics = gathering.numbers().metrics();
}

std::vector<ClientReply> FederatedRounds::evaluations_of(const std::vector<std::int64_t>& clients, double until,
                                                         RoundReport& report) {
  ++evaluation_;
  for (const std::int64_t client : clients) {
    const std::uint64_t bytes = pool_.ask({.client = client,
                                           .kind = TaskKind::evaluate,
                                           .version = version_,
                                           .call = evaluation_,
                                           .parameters = parameters_,
                                           .instructions = {.round = version_ + 1}});
    report.bytes_down += bytes;
  }
  std::vector<ClientReply> replies;
  for (std::size_t open = clients.size(); open > 0;) {
    std::optional<ClientReply> reply = next_of_pool(until);
    if (!reply) break;
    if (reply->task.kind == TaskKind::fit) {
      --under_way_;
      early_.push_back(std::move(*reply));
      continue;
    }
    if (reply->task.call != evaluation_) continue;
    --open;
    if (reply->failure.empty()) {
      replies.push_back(std::move(*reply));
    } else {
      note_problem(report, fmt::format("client {} could not evaluate: {}", reply->task.client, reply->failure));
    }
  }
  std::ranges::sort(replies, {}, [](const ClientReply& reply) { return reply.task.client; });
  return replies;
}

ClientEvaluation FederatedRounds::evaluate(const std::vector<std::int64_t>& clients,
                                           std::vector<std::string>* problems) {
  WeightedByRows numbers;
  RoundReport report;
  bool is_astray = false;
  for (const ClientReply& reply : evaluations_of(clients, ClientPool::kNever, report)) {
    if (const auto why = why_refused_evaluation(reply)) {
      is_astray |= !std::isfinite(reply.loss);
      note_problem(report, fmt::format("client {} could not evaluate: {}", reply.task.client, *why));
    } else {
      numbers.add(reply);
    }
  }
  // What has gone astray everywhere is told as it is; that nobody could measure anything is an error.
  if (numbers.rows() == 0 && !is_astray)
    throw Error(fmt::format("none of {} clients could evaluate{}", clients.size(),
                            report.problems.empty() ? "" : "; " + report.problems.front()));
  if (problems != nullptr) *problems = std::move(report.problems);
  return {.rows = numbers.rows(), .loss = numbers.loss(), .metrics = numbers.metrics()};
}

// --- checkpoints ---

namespace {

constexpr const char* kCounts = "server/counts";
constexpr std::string_view kServer = "server/";

// Moments are under the name of the rule that made them: another one's would mislead it.
std::string moments_of(const strategy::FederatedAggregation& rule) {
  return fmt::format("{}{}/", kServer, rule_name(rule));
}

// The rule that moments are of, where there are some.
std::optional<std::string> rule_of_moments(const ParameterSet& arrays) {
  for (const NamedArray& array : arrays) {
    std::string_view name = array.name();
    if (!name.starts_with(kServer) || name == kCounts) continue;
    name.remove_prefix(kServer.size());
    return std::string(name.substr(0, name.find('/')));
  }
  return std::nullopt;
}

}  // namespace

void FederatedRounds::save(ParameterSet& arrays) const {
  for (const NamedArray& array : *parameters_) arrays.add(array.layout(), array.bytes());
  const std::vector<std::int64_t> counts = {version_, call_, under_way_};
  arrays.add(kCounts, {std::ssize(counts)}, counts);
  optimizer_.save(arrays, *parameters_, moments_of(options_.strategy.aggregation));
}

std::vector<std::string> FederatedRounds::restore(const ParameterSet& arrays) {
  ParameterSet read = *parameters_;
  copy_named(arrays, read);
  const std::span<const std::int64_t> counts = arrays.at(kCounts).values<std::int64_t>();
  if (counts.size() != 3) throw UsageError(fmt::format("{}: expected 3 numbers, found {}", kCounts, counts.size()));
  const strategy::FederatedAggregation& rule = options_.strategy.aggregation;
  optimizer_.restore(arrays, read, moments_of(rule));
  parameters_ = std::make_shared<const ParameterSet>(std::move(read));
  version_ = counts[0];
  call_ = counts[1];
  under_way_ = counts[2];
  early_.clear();
  const std::optional<std::string> before = rule_of_moments(arrays);
  if (!before || *before == rule_name(rule)) return {};
  return {fmt::format("the server's rule was {} before, and is {} from now on: what it remembers begins anew", *before,
                      rule_name(rule))};
}

}  // namespace tutti
