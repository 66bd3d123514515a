// Parameter sets that are too many for memory: they lie in a file without a name, which goes with its owner, however
// that ends.
//
//   ParameterStore store("runs/first");
//   store.put(17, set);                  // in place of what was there
//   ParameterSet again = store.get(17);  // the same bits; an empty set where there is nothing
//
// Arrays come back in the order of their names, however they came in.
//
// Memory holds a few bytes for each array. A disk that is full is an Error, and what was there of others stays.
//
// Any thread may call, but one number is for one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>

namespace tutti {

// An array that is read when it is wanted, into bytes that are as many as its own.
struct ArrayOnDemand {
  ParameterLayout layout;
  std::function<void(std::span<std::byte> into)> read;
};

class ParameterStore {
 public:
  // The file is in this folder, or in the system's for temporary files; it is opened by the first that is put in.
  explicit ParameterStore(std::filesystem::path folder = {});
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  ~ParameterStore();

  void put(std::int64_t number, const ParameterSet& set);
  // One array more of a set, whose name must be new there.
  void add(std::int64_t number, const ParameterLayout& layout, std::span<const std::byte> bytes);
  ParameterSet get(std::int64_t number) const;
  void clear();
  // How many sets there are.
  std::size_t size() const;
  // All arrays of all sets, by number, with this before their names: "client/" makes "client/17/hidden.weight". They
  // are to be read before anything else is put in or the store goes.
  std::vector<ArrayOnDemand> on_demand(const std::string& prefix) const;

 private:
  struct Place {
    std::uint32_t layout = 0;  // in layouts_
    std::uint64_t begin = 0;   // in the file
  };

  Place place_for(const ParameterLayout& layout);
  void write(std::uint64_t begin, std::span<const std::byte> bytes);
  void read(std::uint64_t begin, std::span<std::byte> bytes) const;
  void open_file();

  std::filesystem::path folder_;
  mutable std::mutex mutex_;
  int file_ = -1;
  std::uint64_t end_ = 0;                 // of what is taken of the file
  std::vector<ParameterLayout> layouts_;  // each once
  std::map<std::int64_t, std::vector<Place>> places_;
};

}  // namespace tutti
