#include <tutti/collective/parameter_sets.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

#include <tutti/base/parameter_layouts.hpp>
#include <tutti/collective/collectives.hpp>

namespace tutti {

void broadcast(Communicator& world, ParameterSet& set, Rank root) {
  const bool is_root = world.rank() == root;
  std::vector<std::int64_t> layouts = is_root ? layout_words(set) : std::vector<std::int64_t>();
  auto length = static_cast<std::int64_t>(layouts.size());
  broadcast(world, std::span(&length, 1), {.root = root});
  layouts.resize(static_cast<std::size_t>(length));
  broadcast(world, layouts, {.root = root});
  if (!is_root) set = set_with_layouts(layouts);
  for (NamedArray& array : set) broadcast(world, array.array(), {.root = root});
}

std::vector<ParameterSet> gather(Communicator& world, const ParameterSet& mine, const RootOptions& options) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::vector<std::int64_t> layouts = layout_words(mine);
  std::int64_t data_bytes = 0;
  for (const NamedArray& array : mine) data_bytes += static_cast<std::int64_t>(array.bytes().size());
  const std::vector<std::int64_t> sizes{static_cast<std::int64_t>(layouts.size()), data_bytes};
  std::vector<std::int64_t> all_sizes(sizes.size() * ranks);
  all_gather(world, sizes, all_sizes, {.deadline = options.deadline});
  std::size_t longest = 0;  // in words: everybody sends as many
  for (std::size_t r = 0; r < ranks; ++r) {
    longest = std::max(longest, static_cast<std::size_t>(all_sizes[2 * r]) +
                                    (static_cast<std::size_t>(all_sizes[2 * r + 1]) + sizeof(std::int64_t) - 1) /
                                        sizeof(std::int64_t));
  }
  std::vector<std::int64_t> sent(longest);
  std::ranges::copy(layouts, sent.begin());
  auto* place = reinterpret_cast<std::byte*>(sent.data() + layouts.size());
  for (const NamedArray& array : mine) place = std::ranges::copy(array.bytes(), place).out;
  std::vector<std::int64_t> received(world.rank() == options.root ? longest * ranks : 0);
  gather(world, sent, received, options);
  std::vector<ParameterSet> all;
  for (std::size_t r = 0; r < ranks && world.rank() == options.root; ++r) {
    const auto words = static_cast<std::size_t>(all_sizes[2 * r]);
    const std::span<const std::int64_t> its = std::span(received).subspan(r * longest, longest);
    ParameterSet& set = all.emplace_back(set_with_layouts(its.first(words)));
    const auto* from = reinterpret_cast<const std::byte*>(its.data() + words);
    for (NamedArray& array : set) {
      std::copy_n(from, array.bytes().size(), array.bytes().data());
      from += array.bytes().size();
    }
  }
  return all;
}

}  // namespace tutti
