// population.jsonl: a line for every member and generation of a population, in the order they were evaluated.
//
//   {"generation":2,"of":10,"member":3,"members":8,"score":0.87,"parent":{"member":0,"generation":1},
//    "copied":["weights","optimizer_state","hyper_parameters"],"hyper_parameters":{"optimizer.lr":0.013}}
//
// The parent is who it took over from before it trained, where it did. A member that failed has a "failure", and null
// for its score.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>
#include <tutti/coordinate/member_store.hpp>
#include <tutti/strategy/population.hpp>
#include <tutti/strategy/search_space.hpp>

namespace tutti {

struct MemberRecord {
  std::int64_t generation = 0;                    // from 1 on
  std::int64_t of = 0;                            // as many were meant to be then; 0 where nobody has written it
  std::int64_t member = 0;                        // from 0 on
  std::int64_t members = 0;                       // of so many; 0 where nobody has written it
  std::optional<MemberKey> parent = {};           // whom it took over from before it trained
  std::vector<strategy::MemberPart> copied = {};  // what of it
  std::optional<double> score = {};
  std::vector<double> samples = {};
  std::string failure = {};
  HyperParameters hyper_parameters = {};
  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;

  MemberKey key() const { return {.member = member, .generation = generation}; }
  bool has_copied(strategy::MemberPart part) const;
};

nlohmann::ordered_json to_json(const MemberRecord& record);
MemberRecord member_record_from_json(const JsonValue& value);

class PopulationLog {
 public:
  explicit PopulationLog(std::filesystem::path file);

  // Those that are there; what follows a line that cannot be read is left out, and that is told. A last line that was
  // not written to its end is nothing to tell of.
  std::vector<MemberRecord> read(std::vector<std::string>* problems = nullptr) const;
  // Replaces all that is there.
  void write(const std::vector<MemberRecord>& records) const;
  // Once it returns, the lines outlive the process.
  void append(const std::vector<MemberRecord>& records) const;

  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

}  // namespace tutti
