// Population-based training: members train for a generation, are evaluated, take over from better ones and change
// their hyper-parameters; then the next generation.
//
//   MemberThreads pool({.make = make_member, .threads = 2});
//   Population population({.strategy = {.population_size = 8, .generations = 10}, .space = space, .seed = 7});
//   const PopulationResult result = population.run(pool);
//   result.best->hyper_parameters; population.state_of(*result.best);
//
// In step, the same seed gives the same population whatever the pool: draws are keyed by the seed, the generation and
// the member, and who takes over from whom is decided when all have been evaluated. With a folder it can be killed at
// any moment, and resume() goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <tutti/base/random.hpp>
#include <tutti/coordinate/exploit.hpp>
#include <tutti/coordinate/member_pool.hpp>
#include <tutti/coordinate/member_store.hpp>
#include <tutti/coordinate/population_log.hpp>
#include <tutti/strategy/population.hpp>
#include <tutti/strategy/search_space.hpp>

namespace tutti {

struct PopulationOptions {
  strategy::PopulationBased strategy = {};
  SearchSpace space = {};
  std::uint64_t seed = 0;
  bool higher_is_better = true;
  // population.jsonl, and members/ with what they go on from; nothing is written where empty.
  std::filesystem::path folder = {};
  // Generations whose members stay in files; two at the least, so that there is one to go on from where a file of the
  // newest is damaged.
  std::int64_t keep_last = 2;
  // Of the first generation, by member; drawn from the space where empty.
  std::vector<HyperParameters> first = {};
  // In place of the strategy's: what becomes of the hyper-parameters of who took over.
  std::function<HyperParameters(const HyperParameters& values, RandomStream& draws)> explore = {};
  // Asked now and then; where it says yes, run() ends, and what was not finished is done again by the next.
  std::function<bool()> is_interrupted = {};
  // Told on the caller's thread: a member that was evaluated, in step in the order of their numbers; a generation that
  // all have finished; what it went on in spite of.
  std::function<void(const MemberRecord&, const MemberScore&)> on_member = {};
  std::function<void(std::int64_t generation)> on_generation = {};
  // As soon as a member is through, how many are with the generation that not all have finished.
  std::function<void(std::int64_t generation, std::int64_t through)> on_progress = {};
  std::function<void(const std::string& sentence)> on_problem = {};
};

struct PopulationResult {
  bool is_finished = false;  // otherwise it was interrupted
  std::int64_t generations = 0;
  std::optional<MemberRecord> best = {};  // of all generations
};

// That of a member: what it draws is the same in all generations, and not what others draw.
std::uint64_t member_seed(std::uint64_t seed, std::int64_t member);

// One thread at a time.
class Population {
 public:
  // A UsageError for what cannot be.
  explicit Population(PopulationOptions options);

  // Goes on from what is in the folder. Sentences about what could not be used are told as problems. A UsageError where
  // it is of another population: more or fewer members, another search space, members in step that were not. What is
  // in the folder stays as it is until run().
  void resume();
  // From there, or from the beginning, and what is in the folder goes. Up to the last generation. An Error where all
  // members fail. Where it was interrupted or throws, the pool may still be at work on what it was given; the next run
  // on that pool ends that first, and hears nothing of it.
  PopulationResult run(MemberPool& pool);

  // Of all generations, in the order they were evaluated.
  const std::vector<MemberRecord>& history() const { return history_; }
  // Of a generation, in the order they were evaluated; the newest are found at once.
  std::vector<MemberRecord> of_generation(std::int64_t generation) const;
  // How many generations all members have finished.
  std::int64_t finished() const { return finished_; }
  std::optional<MemberRecord> best() const;
  // What a member went on from after a generation; that of the best is always kept.
  std::shared_ptr<const MemberState> state_of(const MemberRecord& record);
  // How many states of members that do not train are held; with a folder, at most as many as may be idle.
  std::int64_t in_memory() const { return store_.in_memory(); }
  // Those of a member in its first generation.
  HyperParameters first_values(std::int64_t member) const;
  // The generations that made this one what it is, the first to begin with: each trained on what the one before left.
  std::vector<MemberRecord> lineage_of(const MemberRecord& record) const;

 private:
  // What a member does next: on what it goes on, and with which values.
  struct Plan {
    MemberKey of = {};
    std::optional<MemberKey> parent = {};
    std::vector<strategy::MemberPart> copied = {};
    HyperParameters hyper_parameters = {};
  };

  std::int64_t size() const { return options_.strategy.population_size; }
  std::filesystem::path members_folder() const { return options_.folder / "members"; }
  const MemberRecord* last_of(std::int64_t member) const;
  std::vector<MemberResult> results() const;
  Plan plan_for(MemberKey key, const std::optional<std::int64_t>& parent) const;
  void begin(MemberPool& pool, const Plan& plan);
  std::shared_ptr<const MemberState> state_for(const Plan& plan);
  // Of those that are awaited; nothing where it was interrupted.
  std::optional<MemberReply> next_reply(MemberPool& pool, const std::function<bool(MemberKey)>& is_awaited);
  // What comes of a reply: its state is stored, and taken out of it.
  MemberRecord settle(MemberReply& reply, const Plan& plan);
  void add(MemberRecord record, const MemberScore& score);
  // Takes note of a record of the history.
  void count(std::size_t at);
  void count_all();
  bool run_in_step(MemberPool& pool);
  bool run_asynchronously(MemberPool& pool);
  void refuse_where_all_failed() const;
  const MemberRecord* best_until(std::int64_t generation) const;
  void prune();
  void tell_progress(std::int64_t generation, std::int64_t through) const;
  void tell_problem(const std::string& sentence) const;
  std::vector<MemberRecord> whole_generations(const std::vector<MemberRecord>& records);
  std::vector<MemberRecord> whole_members(std::vector<MemberRecord> records);
  bool is_whole(const MemberRecord& record);

  PopulationOptions options_;
  MemberStore store_;
  std::optional<PopulationLog> log_;
  std::vector<MemberRecord> history_;
  std::vector<std::optional<std::size_t>> last_;         // by member: where its newest record is
  std::vector<std::optional<std::size_t>> last_scored_;  // and the newest that has not failed
  std::vector<std::optional<std::size_t>> best_until_;   // by generation: where the best up to it is
  std::int64_t finished_ = 0;
  std::set<MemberKey> damaged_;  // whose files cannot be read any more
};

}  // namespace tutti
