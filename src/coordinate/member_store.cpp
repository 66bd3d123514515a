#include <tutti/coordinate/member_store.hpp>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/safetensors.hpp>

namespace tutti {

namespace fs = std::filesystem;

namespace {

// In the file weights have their own names, and the state of the optimizer this before them.
constexpr std::string_view kOptimizer = "optimizer_state/";
constexpr std::string_view kSuffix = ".safetensors";

ParameterSet as_one(const MemberState& state) {
  ParameterSet all = state.weights;
  for (const NamedArray& array : state.optimizer) {
    ParameterLayout layout = array.layout();
    layout.name.insert(0, kOptimizer);
    all.add(std::move(layout), array.bytes());
  }
  return all;
}

MemberState in_parts(const ParameterSet& all) {
  MemberState state;
  for (const NamedArray& array : all) {
    ParameterLayout layout = array.layout();
    const bool is_weight = !layout.name.starts_with(kOptimizer);
    if (!is_weight) layout.name.erase(0, kOptimizer.size());
    (is_weight ? state.weights : state.optimizer).add(std::move(layout), array.bytes());
  }
  return state;
}

// "generation-2-member-3.safetensors"
std::optional<MemberKey> key_in(std::string_view name) {
  constexpr std::string_view kFirst = "generation-";
  constexpr std::string_view kSecond = "-member-";
  const std::size_t middle = name.find(kSecond);
  if (!name.starts_with(kFirst) || middle == std::string_view::npos || !name.ends_with(kSuffix)) return std::nullopt;
  const auto number = [](std::string_view text) -> std::optional<std::int64_t> {
    std::int64_t value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  };
  const auto generation = number(name.substr(kFirst.size(), middle - kFirst.size()));
  const std::size_t begin = middle + kSecond.size();
  const auto member = number(name.substr(begin, name.size() - kSuffix.size() - begin));
  if (!generation || !member) return std::nullopt;
  return MemberKey{.member = *member, .generation = *generation};
}

std::set<MemberKey> keys_in(const fs::path& folder) {
  std::set<MemberKey> keys;
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
    if (const auto key = key_in(entry.path().filename().string())) keys.insert(*key);
  }
  return keys;
}

}  // namespace

MemberStore::MemberStore(fs::path folder, std::int64_t idle)
    : folder_(std::move(folder)), idle_(static_cast<std::size_t>(std::max<std::int64_t>(idle, 0))) {}

fs::path MemberStore::file_of(MemberKey key) const {
  return folder_ / fmt::format("generation-{}-member-{}{}", key.generation, key.member, kSuffix);
}

void MemberStore::put(MemberKey key, MemberState state) {
  auto shared = std::make_shared<const MemberState>(std::move(state));
  if (!folder_.empty()) {
    std::error_code problem;
    fs::create_directories(folder_, problem);
    if (problem) throw Error(fmt::format("cannot make the folder {}: {}", folder_.string(), problem.message()));
    write_safetensors(file_of(key), as_one(*shared), {.checksum = true});
    if (written_) written_->insert(key);
  }
  remember(key, std::move(shared));
}

std::shared_ptr<const MemberState> MemberStore::get(MemberKey key) {
  const auto found = std::ranges::find(recent_, key, &Entry::first);
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
    return recent_.front().second;
  }
  if (folder_.empty())
    throw Error(fmt::format("nothing is kept of member {} after generation {}", key.member, key.generation));
  auto read = std::make_shared<const MemberState>(
      in_parts(read_safetensors(file_of(key), {.require_checksum = true}).parameters));
  remember(key, read);
  return read;
}

bool MemberStore::has(MemberKey key) const {
  if (std::ranges::find(recent_, key, &Entry::first) != recent_.end()) return true;
  std::error_code problem;
  return !folder_.empty() && fs::exists(file_of(key), problem);
}

void MemberStore::remember(MemberKey key, std::shared_ptr<const MemberState> state) {
  std::erase_if(recent_, [&](const Entry& entry) { return entry.first == key; });
  recent_.emplace_front(key, std::move(state));
  if (!folder_.empty() && recent_.size() > idle_) recent_.resize(idle_);
}

void MemberStore::keep(const std::function<bool(MemberKey)>& is_kept) {
  std::erase_if(recent_, [&](const Entry& entry) { return !is_kept(entry.first); });
  if (folder_.empty()) return;
  if (!written_) written_ = keys_in(folder_);
  std::error_code problem;
  std::erase_if(*written_,
                [&](MemberKey key) { return !is_kept(key) && (fs::remove(file_of(key), problem), !problem); });
}

}  // namespace tutti
