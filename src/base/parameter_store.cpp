#include <tutti/base/parameter_store.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

// Not every file system has files without a name; elsewhere it is taken from one.
int open_nameless(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  std::string name = folder / ".tutti-XXXXXX.tmp";
  const int named = ::mkostemps(name.data(), 4, O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

ParameterStore::ParameterStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

ParameterStore::~ParameterStore() {
  if (file_ >= 0) ::close(file_);
}

void ParameterStore::open_file() {
  std::error_code problem;
  if (folder_.empty()) folder_ = std::filesystem::temp_directory_path(problem);
  if (!problem) std::filesystem::create_directories(folder_, problem);
  if (!problem) {
    file_ = open_nameless(folder_);
    if (file_ < 0) problem.assign(errno, std::generic_category());
  }
  if (problem) throw Error(fmt::format("cannot make a temporary file in {}: {}", folder_.string(), problem.message()));
}

ParameterStore::Place ParameterStore::place_for(const ParameterLayout& layout) {
  if (file_ < 0) open_file();
  const auto known = std::ranges::find(layouts_, layout);
  const Place place{.layout = static_cast<std::uint32_t>(known - layouts_.begin()), .begin = end_};
  if (known == layouts_.end()) layouts_.push_back(layout);
  end_ += byte_count(layout);
  return place;
}

void ParameterStore::put(std::int64_t number, const ParameterSet& set) {
  std::vector<const NamedArray*> arrays;
  for (const NamedArray& array : set) arrays.push_back(&array);
  std::ranges::sort(arrays, {}, &NamedArray::name);
  std::vector<Place> places;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = places_.find(number); found != places_.end()) places = found->second;
    const bool fits = std::ranges::equal(places, arrays, [&](const Place& place, const NamedArray* array) {
      return layouts_[place.layout] == array->layout();
    });
    if (!fits) {
      places.clear();
      for (const NamedArray* array : arrays) places.push_back(place_for(array->layout()));
    }
  }
  for (std::size_t i = 0; i < places.size(); ++i) write(places[i].begin, arrays[i]->bytes());
  const std::lock_guard lock(mutex_);
  places_[number] = std::move(places);
}

void ParameterStore::add(std::int64_t number, const ParameterLayout& layout, std::span<const std::byte> bytes) {
  const auto name_of = [this](const Place& its) -> const std::string& { return layouts_[its.layout].name; };
  Place place;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = places_.find(number);
        found != places_.end() && std::ranges::find(found->second, layout.name, name_of) != found->second.end())
      throw UsageError(fmt::format("there is an array \"{}\" already", layout.name));
    place = place_for(layout);
  }
  write(place.begin, bytes.first(byte_count(layout)));
  const std::lock_guard lock(mutex_);
  std::vector<Place>& places = places_[number];
  places.insert(std::ranges::upper_bound(places, layout.name, {}, name_of), place);
}

ParameterSet ParameterStore::get(std::int64_t number) const {
  std::vector<std::pair<ParameterLayout, std::uint64_t>> arrays;
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(number);
    if (found == places_.end()) return {};
    for (const Place& place : found->second) arrays.emplace_back(layouts_[place.layout], place.begin);
  }
  ParameterSet set;
  for (auto& [layout, begin] : arrays) {
    (void)set.add(std::move(layout));
    read(begin, set[set.size() - 1].bytes());
  }
  return set;
}

void ParameterStore::clear() {
  const std::lock_guard lock(mutex_);
  places_.clear();
  end_ = 0;
}

std::size_t ParameterStore::size() const {
  const std::lock_guard lock(mutex_);
  return places_.size();
}

std::vector<ArrayOnDemand> ParameterStore::on_demand(const std::string& prefix) const {
  const std::lock_guard lock(mutex_);
  std::vector<ArrayOnDemand> all;
  for (const auto& [number, places] : places_) {
    for (const Place& place : places) {
      ParameterLayout layout = layouts_[place.layout];
      layout.name = fmt::format("{}{}/{}", prefix, number, layout.name);
      all.push_back({.layout = std::move(layout),
                     .read = [this, begin = place.begin](std::span<std::byte> into) { read(begin, into); }});
    }
  }
  return all;
}

void ParameterStore::write(std::uint64_t begin, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw Error(fmt::format("cannot write to a temporary file in {}: {}", folder_.string(),
                              std::generic_category().message(errno)));
    begin += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void ParameterStore::read(std::uint64_t begin, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file_, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw Error(fmt::format("cannot read a temporary file in {}: {}", folder_.string(),
                              count == 0 ? "it became shorter" : std::generic_category().message(errno)));
    begin += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace tutti
