// What clients have learnt as rows of numbers, in double and a block at a time: no update is ever copied as a whole.
//
//   for_each_block(updates, is_trained, [&](const ChangeRows& rows) { ... rows[2][i] ... });   // of the third update
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include <tutti/base/data_type.hpp>
#include <tutti/coordinate/aggregation.hpp>

namespace tutti::detail {

// A number that is no number is the same as itself, and 0 is not -0.
template <Element T>
bool have_same_bits(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b);
}

// The numbers from `first` on of an array: 0 where nothing has changed, be it infinite.
void read_change(const ClientUpdate& update, std::size_t array, std::size_t first, std::span<double> change);

// Of all updates the same numbers of an array.
struct ChangeRows {
  std::size_t array = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t updates = 0;
  double* numbers = nullptr;

  std::span<double> operator[](std::size_t update) const { return {numbers + update * count, count}; }
};

// Changes times their discounts, of all trained arrays in their order. The rows may be written to.
void for_each_block(std::span<const ClientUpdate> updates, const std::vector<bool>& is_trained,
                    const std::function<void(const ChangeRows&)>& visit);

// Each column ascending.
void sort_columns(const ChangeRows& rows);

// UsageErrors where an update is not of this layout, `is_trained` not of as many arrays, or a discount none.
void refuse_other_layout(const ClientUpdate& update, std::span<const ParameterLayout> expected);
void refuse_unless_updates_fit(std::span<const ClientUpdate> updates, const std::vector<bool>& is_trained);

// Which updates Bulyan goes on with: n - 2 byzantine of n, by their indices, in their order.
std::vector<std::size_t> bulyan_selection(std::span<const ClientUpdate> updates, std::int64_t byzantine,
                                          const std::vector<bool>& is_trained);

}  // namespace tutti::detail
