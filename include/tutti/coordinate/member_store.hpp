// What members of a population go on from: all of it in files, and what is likely to be wanted next in memory, too.
//
//   MemberStore store("runs/first/members", {.idle = 8});
//   store.put({.member = 3, .generation = 2}, state);
//   std::shared_ptr<const MemberState> again = store.get({.member = 3, .generation = 2});
//   store.keep([](MemberKey key) { return key.generation >= 2; });         // the others go
//
// Without a folder everything stays in memory. One thread at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>

#include <tutti/coordinate/population_member.hpp>

namespace tutti {

// A member at the end of a generation.
struct MemberKey {
  std::int64_t member = 0;
  std::int64_t generation = 0;
  friend auto operator<=>(const MemberKey&, const MemberKey&) = default;
};

class MemberStore {
 public:
  // `idle`: how many stay in memory. The folder is made when something is put.
  explicit MemberStore(std::filesystem::path folder = {}, std::int64_t idle = 8);

  // Once it returns, the state outlives the process.
  void put(MemberKey key, MemberState state);
  // An Error where there is none, or its file is damaged.
  std::shared_ptr<const MemberState> get(MemberKey key);
  // Whether it is there, and whole as far as that can be seen without reading it.
  bool has(MemberKey key) const;
  // All others are removed, files included.
  void keep(const std::function<bool(MemberKey)>& is_kept);
  // How many states are in memory.
  std::int64_t in_memory() const { return static_cast<std::int64_t>(recent_.size()); }

  std::filesystem::path file_of(MemberKey key) const;

 private:
  using Entry = std::pair<MemberKey, std::shared_ptr<const MemberState>>;

  void remember(MemberKey key, std::shared_ptr<const MemberState> state);
  std::filesystem::path folder_;
  std::size_t idle_;
  std::list<Entry> recent_;                     // the last used first
  std::optional<std::set<MemberKey>> written_;  // in files, once these were looked for: nobody else writes there
};

}  // namespace tutti
