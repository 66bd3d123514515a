// The engine of federated training: it asks clients, checks what they send, and changes the server's model, round by
// round. It knows clients through a ClientPool alone, and decides nothing: who is asked is client_selection's, what
// becomes of updates aggregation's and outer_optimizer's, what is refused update_check's.
//
//   FederatedRounds rounds(initial, pool, {.strategy = strategy, .seed = 7});
//   while (rounds.finished() < strategy.rounds) {
//     const RoundReport report = rounds.run();
//     fmt::print("{}: {} updates, loss {}\n", report.round, report.updates, report.loss);
//   }
//   rounds.parameters();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/aggregation.hpp>
#include <tutti/coordinate/client_pool.hpp>
#include <tutti/coordinate/client_selection.hpp>
#include <tutti/coordinate/outer_optimizer.hpp>
#include <tutti/strategy/training_strategy.hpp>

namespace tutti {

struct FederatedRoundsOptions {
  // All of it but for what is others' affair: clients are told `local` with each fit, and go by it as they like;
  // `inner` is up to whoever makes them, and `threads` to the pool. So is compression, but one that the pool does not
  // have is refused.
  strategy::Federated strategy = {};
  std::uint64_t seed = 0;             // of who is asked
  std::vector<bool> is_trained = {};  // by array: others (buffers) are averaged and no more; all where empty
};

// A UsageError where a strategy cannot be carried out with so many clients: nobody has the tags, or a round needs more
// updates than clients that it asks.
void refuse_impossible(const strategy::Federated& strategy, const ClientCounts& clients);

// Of a round, those of its repetitions included.
struct RoundReport {
  std::int64_t round = 0;        // from 1 on
  std::int64_t asked = 0;        // clients
  std::int64_t updates = 0;      // that were taken, late ones included
  std::int64_t late = 0;         // of these: came after their round
  std::int64_t dropped = 0;      // came too late, or a newer one of the same client took their place
  std::int64_t refused = 0;      // were no good
  std::int64_t astray = 0;       // of these: had numbers that are not finite
  std::int64_t failed = 0;       // clients that said so, or dropped out
  std::int64_t dropped_out = 0;  // of these: did not answer
  std::int64_t repeats = 0;
  std::uint64_t bytes_down = 0;  // to clients
  std::uint64_t bytes_up = 0;
  double seconds = 0;     // of the pool's clock, at its end
  std::int64_t rows = 0;  // that clients who answered computed with
  double loss = 0;        // the clients', weighted by rows
  std::vector<NamedNumber> metrics = {};
  std::vector<std::string> problems = {};  // the first few: "client 3 was refused: ..."
};

// One thread at a time.
class FederatedRounds {
 public:
  // A UsageError where the strategy cannot be carried out with these clients.
  FederatedRounds(ParameterSet parameters, ClientPool& pool, FederatedRoundsOptions options);

  // The next round, with clients' learning rates multiplied by a factor. An Error where it has too few good updates,
  // and is not to be repeated, or was often enough; the model is then as before.
  RoundReport run(double rate_factor = 1);

  // What these clients measure of the model on rows of their own, weighted by them. Who fails is left out, and a
  // sentence in `problems`; an Error where nobody is left.
  ClientEvaluation evaluate(const std::vector<std::int64_t>& clients, std::vector<std::string>* problems = nullptr);

  std::int64_t finished() const { return version_; }
  const ParameterSet& parameters() const { return *parameters_; }

  // The model, and all that the next round depends on but for the pool's part of it. Restoring refuses what does not
  // fit with a UsageError, and returns sentences about what it could not go on with: the moments of another rule.
  void save(ParameterSet& arrays) const;
  std::vector<std::string> restore(const ParameterSet& arrays);

 private:
  class Gathering;

  RoundReport run_synchronous(const strategy::Synchronous& round, double rate_factor);
  RoundReport run_buffered(const strategy::Buffered& round, double rate_factor);
  // Whom to leave out, and until when candidates are waited for.
  struct Choice {
    const std::set<std::int64_t>* have_sent = nullptr;
    double until = ClientPool::kNever;
  };
  std::vector<std::int64_t> choose(std::int64_t count, const Choice& choice, RoundReport& report);
  std::int64_t count_free() const;
  void ask(const std::vector<std::int64_t>& clients, double rate_factor, RoundReport& report);
  std::vector<ClientReply> evaluations_of(const std::vector<std::int64_t>& clients, double until, RoundReport& report);
  std::optional<ClientReply> next_of_pool(double until);
  std::optional<ClientReply> next_fit(double until);
  // Counts an answer, and says what is wrong with it in the report.
  bool is_good(const ClientReply& reply, RoundReport& report) const;
  void apply(Gathering& gathering, RoundReport& report);

  ClientPool& pool_;
  FederatedRoundsOptions options_;
  std::int64_t chosen_ = 0;  // in a round
  std::int64_t least_ = 1;   // updates that the rule needs
  std::shared_ptr<const ParameterSet> parameters_;
  OuterOptimizer optimizer_;
  std::int64_t version_ = 0;        // rounds that are finished
  std::int64_t call_ = 0;           // how often clients were asked
  std::int64_t evaluation_ = 0;     // and how often to evaluate
  std::int64_t under_way_ = 0;      // fits that are asked for and not answered
  std::vector<ClientReply> early_;  // fits that came while evaluations were waited for
};

}  // namespace tutti
